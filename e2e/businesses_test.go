package e2e_test

import (
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestTwoBusinesses has two businesses on one server: everything of the one answers to the other like what does not exist.
func TestTwoBusinesses(t *testing.T) {
	t.Parallel()
	s := start(t)
	otherKey, otherToken := s.createBusiness("Other & Sons")
	viewer := s.query(otherToken, `{ viewer { business { id name } scope credential } }`, nil)
	if at(viewer, "viewer", "business", "name") != "Other & Sons" || at(viewer, "viewer", "scope") != "ADMIN" ||
		at(viewer, "viewer", "credential") != otherToken[:8] {
		t.Errorf("the other's viewer: %v", viewer)
	}

	r := receive(t, nil)
	endpoint, _ := s.register(r.URL, everything...)
	foreign := s.query(otherToken, `mutation { createAgent(input: {name: "Theirs", prompt: "We sell tea."}) { id } }`, nil)
	theirAgent := at(foreign, "createAgent", "id").(string)
	theirs := s.subscribe(otherToken, eventsLive, object{"after": at(s.query(otherToken, `{feedCursor}`, nil), "feedCursor")})
	mine := s.chat("Hello", "")
	for range 3 {
		r.wait()
	}
	delivery := at(s.query(token, `{ deliveries { nodes { id } } }`, nil), "deliveries", "nodes", 0, "id")
	cursor := at(s.query(token, `{feedCursor}`, nil), "feedCursor")

	// Reading: lists are empty, and ids are unknown.
	view := s.query(otherToken, `query($e: ID!, $d: ID!) {
		agent(id: "demo") { id } webhookEndpoints { id } webhookEndpoint(id: $e) { id } delivery(id: $d) { id }
		deliveries { nodes { id } } theirs: deliveries(endpointId: $e) { nodes { id } } events { nodes { id } } agents { nodes { id } }
	}`, object{"e": endpoint, "d": delivery})
	for name, path := range map[string][]any{
		"agent": {"agent"}, "endpoint": {"webhookEndpoint"}, "delivery": {"delivery"}, "endpoints": {"webhookEndpoints", 0},
		"deliveries": {"deliveries", "nodes", 0}, "deliveries of an endpoint": {"theirs", "nodes", 0}, "events": {"events", "nodes", 0},
		"agents": {"agents", "nodes", 1},
	} {
		if got := at(view, path...); got != nil {
			t.Errorf("%s of another business: %v", name, got)
		}
	}
	// Writing, and subscribing: not found.
	for name, c := range map[string]struct {
		query     string
		variables object
		code      string
	}{
		"chat":       {`mutation { chat(input: {agentId: "demo", message: "Hi", channel: SMS}) { reply } }`, nil, "NOT_FOUND"},
		"update":     {`mutation($id: ID!) { updateWebhookEndpoint(id: $id, input: {status: DISABLED}) { id } }`, object{"id": endpoint}, "NOT_FOUND"},
		"delete":     {`mutation($id: ID!) { deleteWebhookEndpoint(id: $id) }`, object{"id": endpoint}, "NOT_FOUND"},
		"rotate":     {`mutation($id: ID!) { rotateWebhookSecret(id: $id) { secret } }`, object{"id": endpoint}, "NOT_FOUND"},
		"agent":      {`mutation { updateAgent(id: "demo", input: {name: "Mine"}) { id } }`, nil, "NOT_FOUND"},
		"delete one": {`mutation { deleteAgent(id: "demo") }`, nil, "NOT_FOUND"},
		"cursor":     {`query($c: String) { events(after: $c) { nodes { id } } }`, object{"c": cursor}, "BAD_USER_INPUT"},
	} {
		if code, _ := s.refused(withToken(otherToken), c.query, c.variables); code != c.code {
			t.Errorf("%s: %v, want %s", name, code, c.code)
		}
	}
	if status, _, answer := s.call("POST", "/agents/demo/chat", withKey(otherKey), `{"message":"Hi","channel":"sms"}`); status != 404 || at(answer, "code") != "agent_not_found" {
		t.Errorf("chat with another's agent: %d %v", status, answer)
	}
	body := encode(object{"message": "Hi", "channel": "whatsapp", "session_id": mine["session_id"]})
	if status, _, answer := s.call("POST", "/agents/"+theirAgent+"/chat", withKey(otherKey), body); status != 404 || at(answer, "code") != "session_not_found" {
		t.Errorf("going on with another's session: %d %v", status, answer)
	}
	if status, _, list := s.call("GET", "/v1/webhooks", withToken(otherToken), ""); status != http.StatusOK || len(list.([]any)) != 0 {
		t.Errorf("the other's webhooks: %d %v", status, list)
	}
	// Their own chat comes on their feed, and it is the first thing that does.
	if status, _, answer := s.call("POST", "/agents/"+theirAgent+"/chat", withKey(otherKey), `{"message":"Do you sell tea?","channel":"sms"}`); status != 200 || at(answer, "reply") != "We sell tea." {
		t.Errorf("their chat: %d %v", status, answer)
	}
	if got := at(theirs.wait(), "events", "node", "agentId"); got != theirAgent {
		t.Errorf("on their feed: an event of the agent %v", got)
	}
}

// createBusiness runs the command `business create` beside the server, and returns the secrets that it prints.
func (s *server) createBusiness(name string) (key, token string) {
	s.t.Helper()
	create := exec.Command(binary, "business", "create", name)
	create.Dir, create.Env = s.dir, append(clean(), s.env...)
	out, err := create.Output()
	if err != nil {
		s.t.Fatal(err)
	}
	return regexp.MustCompile(`sk_\w+`).FindString(string(out)), regexp.MustCompile(`at_\w+`).FindString(string(out))
}

// TestBusinessBeforeTheFirstStart: it takes the demo's place, the log says so, and warns of bootstrap secrets that open
// nothing. A start after an ordinary first one has nothing to explain.
func TestBusinessBeforeTheFirstStart(t *testing.T) {
	t.Parallel()
	s := &server{t: t, dir: t.TempDir(), env: []string{"PARLEY_ADDR=127.0.0.1:0", "PARLEY_BOOTSTRAP_API_KEY=" + apiKey, "PARLEY_BOOTSTRAP_TOKEN=" + token}}
	_, own := s.createBusiness("Early")
	s.up()
	for _, want := range []string{"level=INFO msg=\"no demo business was made", "businesses=1", "level=WARN msg=\"PARLEY_BOOTSTRAP_API_KEY OPENS NOTHING", "level=WARN msg=\"PARLEY_BOOTSTRAP_TOKEN OPENS NOTHING"} {
		if strings.Count(s.log(), want) != 1 {
			t.Errorf("the log lacks %s:\n%s", want, s.log())
		}
	}
	if got := s.query(own, `{ viewer { business { name } } agents { nodes { id } } }`, nil); at(got, "viewer", "business", "name") != "Early" || at(got, "agents", "nodes", 0) != nil {
		t.Errorf("the early business: %v", got)
	}
	if strings.Contains(s.log(), apiKey) || strings.Contains(s.log(), token) {
		t.Errorf("the log shows a secret:\n%s", s.log())
	}

	usual := start(t)
	usual.kill()
	usual.up()
	for _, word := range []string{"no demo", "NOTHING"} {
		if strings.Contains(usual.log(), word) {
			t.Errorf("the second start explains:\n%s", usual.log())
		}
	}
}
