package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestHostileInputs sends what would keep the server busy, or would be answered with many times its size: it is refused, with its
// place, and the server goes on.
func TestHostileInputs(t *testing.T) {
	t.Parallel()
	s := start(t)
	deep := func(n int, open, within, end string) string {
		return strings.Repeat(open, n) + within + strings.Repeat(end, n)
	}
	tool := func(schema string) string {
		return `{"name": "x", "tools": [{"name": "t", "description": "d", "url": "https://example.com", "parameters": {"type": "object", "properties": {"x": ` + schema + `}}}]}`
	}
	for name, c := range map[string]struct{ in, place string }{
		"3,000 allOf in each other":     {tool(deep(3000, `{"allOf":[`, "{}", "]}")), `"in"`},
		"33 of them":                    {tool(deep(33, `{"allOf":[`, "{}", "]}")), `"parameters"`},
		"5,000 schemas":                 {tool(`{"allOf":[` + strings.Repeat("{},", 4999) + "{}]}"), `"parameters","properties","x","allOf",99`},
		"3,000 fallbacks":               {`{"name": "x", "model": ` + deep(3000, `{"provider":"OPENAI","fallback":`, `{"provider":"OPENAI"}`, "}") + "}", `"in"`},
		"2 fallbacks":                   {`{"name": "x", "model": ` + deep(2, `{"provider":"OPENAI","fallback":`, `{"provider":"OPENAI"}`, "}") + "}", `"model","fallback","fallback"`},
		"40,000 snippets without texts": {`{"name": "x", "knowledge": [` + strings.Repeat(`{"title":"","text":""},`, 39_999) + `{"title":"","text":""}]}`, `"knowledge",98`},
		"8 tools that are no schemas":   {`{"name": "x", "tools": [` + strings.TrimSuffix(strings.Repeat(`{"name":"t","description":"d","url":"x","parameters":{"properties":{"`+strings.Repeat("y", 250)+`":`+`{"allOf":[`+strings.Repeat("1,", 1000)+`1]}}}},`, 8), ",") + "]}", `"tools"`},
	} {
		status, _, answer := s.call("POST", "/graphql", withToken(token), `{"query": "mutation($in: AgentInput!) { createAgent(input: $in) { id } }", "variables": {"in": `+c.in+"}}")
		told := encode(at(answer, "errors", 0, "extensions", "validation"))
		if status != http.StatusOK || at(answer, "errors", 0, "extensions", "code") != "BAD_USER_INPUT" || !strings.Contains(told, c.place) || len(told) > 300<<10 {
			t.Errorf("%s: %d, %d bytes: %.1000s", name, status, len(told), told)
		}
	}
	for name, metadata := range map[string]string{"65 deep": deep(65, `{"a":`, "1", "}"), "9,000 deep": deep(9000, `{"a":`, "1", "}"), "100,000 deep": deep(100_000, `{"a":`, "1", "}")} {
		status, _, answer := s.call("POST", "/agents/demo/chat", withKey(apiKey), `{"message": "Hi", "channel": "sms", "metadata": `+metadata+"}")
		if status != http.StatusUnprocessableEntity || at(answer, "detail", 0, "loc", 0) != "body" {
			t.Errorf("metadata %s: %d %.300s", name, status, encode(answer))
		}
	}
	s.chat("Hello", "")
}

// TestNoSecretIsLogged has an agent call servers whose addresses and headers hold secrets, and that fail in every way: the log has
// the agent's and the server's names, and none of the secrets.
func TestNoSecretIsLogged(t *testing.T) {
	t.Parallel()
	serve := func(h http.HandlerFunc) string {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return server.URL
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	echo := serve(func(w http.ResponseWriter, r *http.Request) { // as some do: it says what was asked of it
		var req object
		_ = decode(r.Body, &req)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, encode(object{"jsonrpc": "2.0", "id": req["id"], "error": object{
			"code": -32000, "message": "not for " + r.URL.String() + " with " + r.Header.Get("Authorization"),
		}}))
	})
	refusing := serve(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "not for "+r.URL.String(), http.StatusForbidden)
	})
	broken := serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{")
	})
	nested := []any{}
	for range 9_000 { // 18 KB
		nested = []any{nested}
	}
	deep := contextServer(t, object{"name": "a", "inputSchema": object{"type": "object", "enum": nested}}).URL
	schemas := make([]object, 3) // that would each take minutes
	for i := range schemas {
		schema := object{}
		for range 45 {
			schema = object{"allOf": []object{schema, {"a": 1}}}
		}
		schemas[i] = object{"name": fmt.Sprint("s", i), "inputSchema": object{"type": "object", "allOf": slices.Repeat([]object{schema}, 30)}}
	}
	wide := contextServer(t, schemas...).URL

	s := start(t, "PARLEY_PRIVATE_HOSTS=127.0.0.0/8", "PARLEY_DELIVERY_RETRIES=0")
	headers := object{"Authorization": "Bearer hush-header"}
	var servers []object
	for name, url := range map[string]string{"gone": gone.URL, "echo": echo, "refusing": refusing, "broken": broken, "deep": deep, "wide": wide} {
		servers = append(servers, object{"name": name, "url": url + "/mcp?api_key=hush-query", "headers": headers})
	}
	for name, url := range map[string]string{"away": gone.URL, "refusing": refusing, "here": completions(t, calls("t", `{}`), says("Fine.")).URL} {
		made := s.query(token, newAgent, object{"in": object{
			"name": name, "model": object{"provider": "OPENAI", "baseUrl": url + "/v1?api_key=hush-query", "apiKey": "hush-key"},
			"tools":      []object{{"name": "t", "description": "d", "url": gone.URL + "/?api_key=hush-query", "headers": headers, "parameters": object{}}},
			"mcpServers": servers, "webhookUrl": gone.URL + "/?api_key=hush-query",
		}})
		status, _, answer := s.call("POST", "/agents/"+at(made, "createAgent", "id").(string)+"/chat", withKey(apiKey), `{"message": "Go", "channel": "sms"}`)
		if want := map[bool]int{true: http.StatusOK, false: http.StatusBadGateway}[name == "here"]; status != want {
			t.Errorf("%s: %d %v", name, status, answer)
		}
	}
	if code := s.stop(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	log := s.log()
	if strings.Contains(log, "hush") {
		t.Errorf("a secret is logged:\n%s", log)
	}
	for _, told := range []string{"server=gone", "server=echo", "server=refusing", "server=broken", "server=deep", "server=wide", "a run failed"} {
		if !strings.Contains(log, told) {
			t.Errorf("the log does not tell of %s:\n%s", told, log)
		}
	}
}

// TestTheOperatorsModelIsNotForTools: the address in OPENAI_BASE_URL needs no trust, and gives none: the operator's own model is
// asked there, and nothing that a business sets may go there, nor to another name or port of it.
func TestTheOperatorsModelIsNotForTools(t *testing.T) {
	t.Parallel()
	model := completions(t, says("From the operator's model."))
	s := start(t, "OPENAI_BASE_URL="+model.URL+"/v1", "OPENAI_API_KEY=sk-operator")
	for name, in := range map[string]object{
		"a tool":        {"tools": []object{{"name": "t", "description": "d", "url": model.URL, "parameters": object{}}}},
		"an MCP server": {"mcpServers": []object{{"name": "m", "url": model.URL}}},
		"a model":       {"model": object{"provider": "OPENAI", "baseUrl": model.URL + "/v1"}},
		"a fallback":    {"model": object{"provider": "EMBEDDED", "fallback": object{"provider": "ANTHROPIC", "baseUrl": model.URL}}},
	} {
		in["name"] = "x"
		if code, _ := s.refused(withToken(token), newAgent, object{"in": in}); code != "BAD_USER_INPUT" {
			t.Errorf("%s at the operator's model: %s", name, code)
		}
	}
	made := s.query(token, newAgent, object{"in": object{"name": "x", "model": object{"provider": "OPENAI"}}})
	status, _, answer := s.call("POST", "/agents/"+at(made, "createAgent", "id").(string)+"/chat", withKey(apiKey), `{"message": "Hi", "channel": "sms"}`)
	if status != http.StatusOK || at(answer, "reply") != "From the operator's model." {
		t.Errorf("%d %v", status, answer)
	}
}
