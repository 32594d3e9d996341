package e2e_test

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"parley/e2e/servers"
)

// TestGuide runs every request of docs/api.md, in one shell, and holds the answers against those
// that stand below them.
func TestGuide(t *testing.T) {
	t.Parallel()
	servers.Need(t, "curl")
	doc, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	const next = "--- next ---"
	var script strings.Builder
	var answers [][]string // language, text
	for _, block := range regexp.MustCompile("```sh\n([^`]*)```\n+```(json|text)\n([^`]*)```").FindAllStringSubmatch(string(doc), -1) {
		script.WriteString(block[1] + "\necho; echo '" + next + "'\n")
		answers = append(answers, block[2:])
	}
	// The first one sets the variables.
	if shells := strings.Count(string(doc), "```sh"); len(answers) != shells-1 || len(answers) < 14 {
		t.Fatalf("of %d requests %d have an answer", shells-1, len(answers))
	}
	receiver := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	run := exec.CommandContext(t.Context(), "bash", "-c", script.String())
	run.Env = append(os.Environ(), "PARLEY="+start(t).url(), "KEY="+apiKey, "TOKEN="+token, "HOOK="+receiver.URL, "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	var errs strings.Builder
	run.Stderr = &errs
	out, err := run.Output()
	if err != nil {
		t.Errorf("the requests end with %v", err)
	}
	given := strings.Split(string(out), next+"\n")
	for i, answer := range answers {
		if got := strings.ReplaceAll(given[i], "\r", ""); !answered(t, answer[0], answer[1], got) {
			t.Errorf("request %d was answered\n%s\nand not\n%s", i+1, got, answer[1])
		}
	}
	if t.Failed() {
		t.Logf("the shell said %s", &errs)
	}
}

// answered says whether an answer is as the document has it: `…` stands for anything.
func answered(t *testing.T, language, want, got string) bool {
	t.Helper()
	if language == "text" {
		return like(strings.TrimSpace(want), strings.TrimSpace(got))
	}
	var is, should any
	if err := json.Unmarshal([]byte(want), &should); err != nil {
		t.Fatalf("%s: %v", want, err)
	}
	return json.Unmarshal([]byte(got), &is) == nil && matches(should, is)
}

func matches(want, got any) bool {
	switch want := want.(type) {
	case object:
		o, ok := got.(object)
		for name, value := range want {
			given, there := o[name]
			ok = ok && there && matches(value, given)
		}
		return ok && len(o) == len(want)
	case []any:
		list, ok := got.([]any)
		for i, value := range want {
			ok = ok && i < len(list) && matches(value, list[i])
		}
		return ok && len(list) == len(want)
	case string:
		text, ok := got.(string)
		return want == "…" || ok && like(want, text)
	}
	return want == got
}

func like(want, got string) bool {
	return regexp.MustCompile("(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(want), "…", ".*") + "$").MatchString(got)
}

// TestGuideHasTenRequests, and the test of them has eyes.
func TestGuideHasTenRequests(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	if recipes := regexp.MustCompile(`(?m)^### \d+\. `).FindAll(doc, -1); len(recipes) != 10 {
		t.Errorf("the guide has %d requests", len(recipes))
	}
	for want, right := range map[string]bool{
		`{"a": "…", "b": [1, true]}`: true, `{"a": "x…", "b": [1, true]}`: true, `{"a": "y…", "b": [1, true]}`: false,
		`{"a": "xy"}`: false, `{"a": "xy", "b": [1]}`: false, `{"a": "xy", "b": [1, false]}`: false, `{"a": "xy", "b": [1, true], "c": null}`: false,
	} {
		if answered(t, "json", want, `{"a": "xy", "b": [1, true]}`) != right {
			t.Errorf("%s is taken for another", want)
		}
	}
}
