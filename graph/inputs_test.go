package graph_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"parley/graph"
)

// TestHostileInputs: what is wrong with an input is told in a time and a length that the input bounds, whether it stands in the
// document or in a variable. Allocations are the measure, since they are the same on each machine.
func TestHostileInputs(t *testing.T) {
	const create = `mutation($in: AgentInput!) { createAgent(input: $in) { id } }`
	deep := func(n int, open, within, end string) string {
		return strings.Repeat(open, n) + within + strings.Repeat(end, n)
	}
	const tool = `{"name":"t","description":"d","url":"https://example.com","parameters":%s}`
	for name, c := range map[string]struct {
		document, variables, told string
	}{
		"fallbacks in a variable":      {create, `{"in":{"name":"x","model":` + deep(3000, `{"x":1,"provider":"X","fallback":`, "{}", "}") + "}}", `["variables","in"]`},
		"fallbacks in the document":    {`mutation{createAgent(input:{name:"x",model:` + deep(1400, "{provider:X fallback:", "{}", "}") + "}){id}}", "", "nested 100 deep"},
		"lists in a variable":          {create, `{"in":{"knowledge":` + deep(9000, "[", "", "]") + "}}", `["variables","in"]`},
		"lists in the document":        {"{events(after:" + deep(4000, "[", "", "]") + "){nodes{id}}}", "", "nested 100 deep"},
		"a schema in a variable":       {create, `{"in":{"tools":[` + fmt.Sprintf(tool, deep(3000, `{"allOf":[`, "{}", "]}")) + "]}}", `["variables","in"]`},
		"a schema that is not as deep": {create, `{"in":{"tools":[` + fmt.Sprintf(tool, deep(40, `{"allOf":[`, "{}", "]}")) + "]}}", `["input","tools",0,"parameters"]`},
		"a default":                    {`query($f: EventFilter = ` + deep(1000, "{types:[", "", "]}") + `){events(filter:$f){nodes{id}}}`, "", "nested 100 deep"},
		"50,000 values of none":        {create, `{"in":{"channelProfiles":[` + strings.Repeat(`{"channel":"X"},`, 50_000) + "1]}}", "more faults"},
		"1,500 in the document":        {`mutation{createAgent(input:{name:"x" knowledge:[` + strings.Repeat("{x:1}", 1_500) + `]}){id}}`, "", "more faults"},
		"a long name in each of them":  {create, `{"in":{"knowledge":[` + strings.Repeat(`{"`+strings.Repeat("x", 300)+`":1},`, 2_000) + "1]}}", "more faults"},
		"a fault at each level":        {create, `{"in":{"model":` + deep(90, `{"`+strings.Repeat("x", 300)+`":1,"fallback":`, "{}", "}") + "}}", "more faults"},
	} {
		t.Run(name, func(t *testing.T) {
			ask := server(t, graph.HandlerConfig{})
			body, err := json.Marshal(map[string]any{"query": c.document, "variables": json.RawMessage(cmp.Or(c.variables, "{}"))})
			if err != nil {
				t.Fatal(err)
			}
			var answer string
			allocations := testing.AllocsPerRun(1, func() { _, answer = ask(string(body)) })
			if allocations > 1_500_000 {
				t.Errorf("%.0f allocations for %d bytes", allocations, len(body))
			}
			if !strings.Contains(answer, `"BAD_USER_INPUT"`) || !strings.Contains(answer, c.told) || len(answer) > 400<<10 {
				t.Errorf("%d bytes: %.300s", len(answer), answer)
			}
		})
	}
}
