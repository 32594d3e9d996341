package e2e_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// mayImport is the picture of docs/architecture.md: which packages of ours each may import. Change it only with a decision
// record. Tests may import more.
var mayImport = map[string][]string{
	"parley":                    {"parley/agent", "parley/agent/anthropic", "parley/agent/embedded", "parley/agent/openai", "parley/egress", "parley/graph", "parley/graphiql", "parley/rest", "parley/store", "parley/store/hook", "parley/stream", "parley/webhook"},
	"parley/agent":              {"parley/agent/render", "parley/egress", "parley/lru", "parley/store", "parley/stream"},
	"parley/agent/embedded":     {"parley/agent", "parley/lru", "parley/store"},
	"parley/agent/openai":       {"parley/agent", "parley/agent/provider", "parley/store"},
	"parley/agent/anthropic":    {"parley/agent", "parley/agent/provider", "parley/store"},
	"parley/agent/provider":     {"parley/agent", "parley/store"},
	"parley/agent/modeltest":    {"parley/agent", "parley/agent/provider", "parley/egress", "parley/store"},
	"parley/agent/render":       {"parley/store"},
	"parley/bench":              {"parley/e2e/servers"},
	"parley/e2e":                {},
	"parley/e2e/servers":        {},
	"parley/deploy":             {},
	"parley/docs/tour/receiver": {},
	"parley/docs/tour/watch":    {},
	"parley/egress":             {},
	"parley/graphiql":           {},
	"parley/graph":              {"parley/agent", "parley/graph/transport", "parley/lru", "parley/store", "parley/store/hook", "parley/stream"},
	"parley/graph/transport":    {},
	"parley/lru":                {},
	"parley/rest":               {"parley/agent", "parley/store", "parley/store/hook"},
	"parley/store":              {"parley/lru"},
	"parley/store/hook":         {"parley/store"},
	"parley/stream":             {"parley/lru", "parley/store", "parley/store/hook"},
	"parley/webhook":            {"parley/egress", "parley/lru", "parley/store", "parley/store/hook", "parley/stream"},
}

func TestImportPicture(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-f", `{{.ImportPath}} {{.Name}} {{.Doc | printf "%.1s"}}|{{join .Imports " "}}`, "parley/...")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		head, imports, _ := strings.Cut(strings.TrimSpace(line), "|")
		pkg, rest, _ := strings.Cut(head, " ")
		allowed, known := mayImport[pkg]
		if !known {
			t.Errorf("%s stands nowhere in the picture", pkg)
		}
		if _, doc, _ := strings.Cut(rest, " "); doc == "" {
			t.Errorf("%s has no package comment", pkg)
		}
		for _, i := range strings.Fields(imports) {
			if strings.HasPrefix(i+"/", "parley/") && !slices.Contains(allowed, i) {
				t.Errorf("%s must not import %s", pkg, i)
			}
		}
	}
}
