package e2e_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"parley/e2e/servers"
)

// TestTheOperatorsKeyStaysAtHome lets a turn fall back from the operator's server to a business's and the other way round, and has
// the business's server send elsewhere: the operator's key is only ever seen by the operator's server.
func TestTheOperatorsKeyStaysAtHome(t *testing.T) {
	t.Parallel()
	type seen struct {
		mu   sync.Mutex
		keys []string
	}
	serve := func(s *seen, answer http.HandlerFunc) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			s.keys = append(s.keys, r.Header.Get("Authorization"))
			s.mu.Unlock()
			answer(w, r)
		}))
		t.Cleanup(server.Close)
		return server.URL + "/v1"
	}
	busy := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}
	good := func(w http.ResponseWriter, _ *http.Request) {
		for _, event := range says("Fine.") {
			_, _ = io.WriteString(w, "data: "+event+"\n\n")
		}
	}
	var home, away, elsewhere seen
	homeDown := true
	homeURL := serve(&home, func(w http.ResponseWriter, r *http.Request) {
		home.mu.Lock()
		down := homeDown
		home.mu.Unlock()
		if down {
			busy(w, r)
			return
		}
		good(w, r)
	})
	awayURL := serve(&away, good)
	spyURL := serve(&elsewhere, good)
	redirecting := serve(&away, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.TrimSuffix(spyURL, "/v1")+r.URL.Path, http.StatusTemporaryRedirect)
	})
	busyURL := serve(&away, busy)
	s := start(t, "OPENAI_BASE_URL="+homeURL, "OPENAI_API_KEY=sk-operator", "PARLEY_PRIVATE_HOSTS=127.0.0.0/8")
	chat := func(model object) (int, any) {
		t.Helper()
		s.query(token, `mutation($m: ModelInput) { updateAgent(id: "demo", input: {model: $m}) { id } }`, object{"m": model})
		status, _, answer := s.call("POST", "/agents/demo/chat", withKey(apiKey), `{"message": "Hi", "channel": "sms"}`)
		return status, answer
	}
	own := func(url string) object { return object{"provider": "OPENAI", "baseUrl": url} }
	with := func(model, fallback object) object { model["fallback"] = fallback; return model }

	if status, answer := chat(with(object{"provider": "OPENAI"}, own(awayURL))); status != http.StatusOK {
		t.Errorf("from home to away: %d %v", status, answer)
	}
	home.mu.Lock()
	homeDown = false
	home.mu.Unlock()
	if status, answer := chat(with(own(busyURL), object{"provider": "OPENAI"})); status != http.StatusOK {
		t.Errorf("from away to home: %d %v", status, answer)
	}
	if status, answer := chat(own(redirecting)); status != http.StatusBadGateway || at(answer, "code") != "model_failed" {
		t.Errorf("sent elsewhere: %d %v", status, answer)
	}
	if got := strings.Join(home.keys, ","); got != "Bearer sk-operator,Bearer sk-operator" {
		t.Errorf("the operator's server was shown %s", got)
	}
	if got := strings.Join(away.keys, ""); len(away.keys) < 3 || got != "" {
		t.Errorf("the business's servers were shown %q", away.keys)
	}
	if len(elsewhere.keys) != 0 {
		t.Error("a redirect was followed")
	}
}

// TestCallerLeavesInMidStream hangs up after the first words of a stream with a tool in its middle: the turn goes on, and the whole
// reply is stored. Who stays is told what is stored, cut as its channel has it.
func TestCallerLeavesInMidStream(t *testing.T) {
	t.Parallel()
	look := append([]string{chunk(object{"content": "Let me **look**."}, nil)}, calls("look", `{}`)...)
	rest := says("It is", " “open”, ", "and stays so ", "until ten in the evening.")
	model := completions(t, append([]string{chunk(object{"content": "Let me"}, nil), "gate"}, look...), rest, look, rest)
	tool := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "open") }))
	t.Cleanup(tool.Close)
	s := start(t, "OPENAI_BASE_URL="+model.URL+"/v1", "PARLEY_PRIVATE_HOSTS=127.0.0.0/8")
	s.query(token, `mutation($in: AgentInput!) { updateAgent(id: "demo", input: $in) { id } }`, object{"in": object{
		"tools":           []object{{"name": "look", "description": "Looks.", "url": tool.URL, "parameters": object{"type": "object"}}},
		"channelProfiles": []object{{"channel": "SMS", "maxLength": 50}},
	}})
	live := s.subscribe(token, eventsLive, object{"after": at(s.query(token, `{feedCursor}`, nil), "feedCursor")})
	header := withKey(apiKey)
	header.Set("Accept", "text/event-stream")
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url()+"/agents/demo/chat", strings.NewReader(`{"message": "Open?", "channel": "sms"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	leave()
	_ = res.Body.Close()
	close(model.gate)
	live.wait()
	const want = "Let meLet me look.\n\nIt is \"open\", and stays so..."
	if node := at(live.wait(), "events", "node"); at(node, "type") != "MESSAGE_CREATED" || at(node, "data", "text") != want {
		t.Errorf("stored: %v", node)
	}
	if node := at(live.wait(), "events", "node"); at(node, "type") != "RUN_FINISHED" {
		t.Errorf("in the end: %v", node)
	}
	said, last, done := s.streamed("/agents/demo/chat", withKey(apiKey), `{"message": "Open?", "channel": "sms"}`)
	stored := at(s.query(token, `{ events(last: 2) { nodes { data } } }`, nil), "events", "nodes", 0, "data", "text")
	if last != "done" || said != stored || said != done["reply"] || said != "Let me look.\n\nIt is \"open\", and stays so until..." {
		t.Errorf("told %q, stored %q, and in the end %v", said, stored, done)
	}
}

// TestThreeLines runs the README's three lines for a language model as they stand, but for the addresses.
func TestThreeLines(t *testing.T) {
	t.Parallel()
	servers.Need(t, "curl")
	raw, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "\n## A language model of your own\n")
	_, rest, _ = strings.Cut(rest, "```sh\n")
	lines, _, found := strings.Cut(rest, "```\n")
	if !found || strings.Count(lines, "\n") != 3 {
		t.Fatalf("these are not three lines:\n%s", lines)
	}
	model := completions(t, says("Good ", "day."))
	addr := servers.FreePort(t)
	for _, change := range [][2]string{{"http://127.0.0.1:11434/v1", model.URL + "/v1"}, {"127.0.0.1:8081", addr}, {"go run .", binary}} {
		if !strings.Contains(lines, change[0]) {
			t.Errorf("nothing says %s", change[0])
		}
		lines = strings.ReplaceAll(lines, change[0], change[1])
	}
	cmd := exec.Command("sh", "-c", lines)
	cmd.Dir, cmd.Env = t.TempDir(), clean()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := os.Create(filepath.Join(cmd.Dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = out // a file, for the server keeps it open
	err = cmd.Run()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the server
	answer, readErr := os.ReadFile(out.Name())
	if err != nil || readErr != nil || !strings.Contains(string(answer), `"reply":"Good day."`) || at(model.request(0), "model") != "llama3.2" {
		t.Errorf("%v %v\n%s", err, readErr, answer)
	}
}
