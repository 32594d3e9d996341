package e2e_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// hostile are addresses that no business may have called: every special range, in every spelling that somebody's parser takes.
var hostile = []string{
	"0.0.0.0", "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "192.0.0.192",
	"192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
	"[::]", "[::1]", "[fc00::1]", "[fe80::1]", "[fec0::1]", "[ff02::1]", "[2001:db8::1]", "[2001::1]", "[100::1]", "[fd00:ec2::254]",
	"[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]",
	"[fe80::1%25eth0]", "[::1%25lo]", "2130706433", "017700000001", "0x7f000001", "0177.0.0.1", "0x7f.0.0.1", "127.1", "127.0.1", "0",
	"localhost", "LOCALHOST.", "a.localhost", "printer.local", "metadata.google.internal", "intranet", "１２７.0.0.1", "①②⑦.0.0.1",
	"127。0。0。1", "%31%32%37.0.0.1", "example.com@127.0.0.1", "127.0.0.1.", "example.com\\@127.0.0.1",
}

// TestHostileAddressesAreRefused tries each wherever a business can set an address. (Names that resolve to such an address pass
// here, and are refused when they are dialled: see package webhook.)
func TestHostileAddressesAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_ALLOW_PRIVATE_WEBHOOKS=false")
	id, _ := s.register("https://example.com/hook", "run.finished")
	agent := func(in object) (string, object) {
		return `mutation($in: AgentInput!) { updateAgent(id: "demo", input: $in) { id } }`, object{"in": in}
	}
	for _, host := range hostile {
		url := "https://" + host + "/x"
		status, _, answer := s.call("POST", "/v1/webhooks", withToken(token), encode(object{"url": url, "events": []string{"run.failed"}}))
		if status != http.StatusUnprocessableEntity {
			t.Errorf("POST /v1/webhooks, %s: %d %v", host, status, answer)
		}
		try := func(where, query string, variables object) {
			if code, _ := s.refused(withToken(token), query, variables); code != "BAD_USER_INPUT" {
				t.Errorf("%s, %s: %v", where, host, code)
			}
		}
		try("createWebhookEndpoint", `mutation($url: String!) { createWebhookEndpoint(input: {url: $url, events: [RUN_FAILED]}) { secret } }`, object{"url": url})
		try("updateWebhookEndpoint", `mutation($id: ID!, $url: String!) { updateWebhookEndpoint(id: $id, input: {url: $url}) { id } }`, object{"id": id, "url": url})
		query, in := agent(object{"webhookUrl": url})
		try("webhookUrl", query, in)
		query, in = agent(object{"model": object{"provider": "OPENAI", "baseUrl": url}})
		try("baseUrl", query, in)
		for _, where := range []string{"OPENAI", "ANTHROPIC"} {
			query, in = agent(object{"model": object{"provider": "EMBEDDED", "fallback": object{"provider": where, "baseUrl": url}}})
			try("a fallback's baseUrl", query, in)
		}
		query, in = agent(object{"mcpServers": []any{object{"name": "m", "url": url}}})
		try("an MCP server's url", query, in)
		query, in = agent(object{"tools": []any{object{"name": "t", "description": "d", "parameters": object{}, "url": url}}})
		try("a tool's url", query, in)
	}
	if _, _, list := s.call("GET", "/v1/webhooks", withToken(token), ""); len(list.([]any)) != 1 || at(list, 0, "url") != "https://example.com/hook" {
		t.Errorf("something was stored: %v", list)
	}
}

// TestEgressProxy: with a proxy every delivery goes by way of it, and its refusal is told from the receiver's.
func TestEgressProxy(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 100)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.Host
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(proxy.Close)
	s := start(t, "PARLEY_EGRESS_PROXY="+proxy.URL, "PARLEY_ALLOW_PRIVATE_WEBHOOKS=false", "PARLEY_DELIVERY_RETRIES=0")
	id, _ := s.register("https://receiver.example/hook", "run.finished")
	s.chat("Hello", "")
	if got := <-asked; got != "CONNECT receiver.example:443" {
		t.Errorf("the proxy was asked to %s", got)
	}
	eventually(t, "failed", func() bool { return len(s.list(id, "FAILED")) == 1 })
	if _, _, d := s.attempts(at(s.list(id, "FAILED"), 0, "id")); at(d, "attempts", 0, "error") != "proxy" || at(d, "attempts", 0, "remoteAddress") != proxy.Listener.Addr().String() {
		t.Errorf("refused by the proxy: %v", d)
	}
}
