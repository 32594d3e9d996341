package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

func ask(t *testing.T, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(raw)
}

func TestOrigins(t *testing.T) {
	t.Parallel()
	const friend, stranger = "https://app.example.com", "https://evil.example.com"
	address := serveInProcess(t, func(s *Settings) { s.AllowedOrigins = "https://other.example.com, " + friend })
	call := func(origin, path, body string) (*http.Response, string) {
		return ask(t, http.MethodPost, address+path, body, "Origin", origin, "Content-Type", "application/json", "Authorization", "Bearer at_test")
	}
	for _, c := range []struct {
		name, origin, path, body string
		status                   int
		allow, answer            string
	}{
		{"its own", address, "/graphql", `{"query":"{__typename}"}`, 200, "", `{"data":{"__typename":"Query"}}`},
		{"allowed", friend, "/graphql", `{"query":"{__typename}"}`, 200, friend, `{"data":{"__typename":"Query"}}`},
		{"a stranger", stranger, "/graphql", `{"query":"{__typename}"}`, 403, "", `"code":"FORBIDDEN"`},
		{"allowed, REST", friend, "/v1/webhooks", `{}`, 422, friend, `"detail"`},
		{"a stranger, REST", stranger, "/v1/webhooks", `{}`, 403, "", `"code":"origin_not_allowed"`},
	} {
		res, body := call(c.origin, c.path, c.body)
		if res.StatusCode != c.status || res.Header.Get("Access-Control-Allow-Origin") != c.allow || !strings.Contains(body, c.answer) {
			t.Errorf("%s: %d %q %s", c.name, res.StatusCode, res.Header.Get("Access-Control-Allow-Origin"), body)
		}
	}

	for origin, allowed := range map[string]bool{friend: true, stranger: false} {
		res, _ := ask(t, http.MethodOptions, address+"/graphql", "", "Origin", origin, "Access-Control-Request-Method", "POST")
		if got := res.Header.Get("Access-Control-Allow-Origin") == origin && res.StatusCode == http.StatusNoContent &&
			strings.Contains(res.Header.Get("Access-Control-Allow-Headers"), "Authorization"); got != allowed {
			t.Errorf("preflight of %s: %d %v", origin, res.StatusCode, res.Header)
		}
		dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
		conn, res, err := dialer.Dial("ws"+strings.TrimPrefix(address, "http")+"/graphql", http.Header{"Origin": {origin}})
		if (err == nil) != allowed {
			t.Errorf("a WebSocket of %s: %v", origin, err)
		}
		if !allowed {
			refusal, _ := io.ReadAll(res.Body)
			if res.StatusCode != http.StatusForbidden || !strings.Contains(string(refusal), `"reason":"origin_not_allowed"`) {
				t.Errorf("a WebSocket of %s: %d %s", origin, res.StatusCode, refusal)
			}
		}
		if err == nil {
			if res.Header.Get("X-Request-Id") == "" {
				t.Error("a handshake without a request id")
			}
			_ = conn.Close()
		}
	}
	for _, wrong := range []string{"app.example.com", "https://app.example.com/path", "*", "null"} {
		if _, err := parseOrigins(wrong); err == nil {
			t.Errorf("%q was taken", wrong)
		}
	}
}

func TestRequestsHaveAnID(t *testing.T) {
	t.Parallel()
	address := serveInProcess(t, func(*Settings) {})
	for _, path := range []string{"/healthz", "/graphql", "/v1/webhooks", "/nowhere"} {
		res, _ := ask(t, http.MethodGet, address+path, "")
		if !strings.HasPrefix(res.Header.Get("X-Request-Id"), "req_") {
			t.Errorf("%s: %q", path, res.Header.Get("X-Request-Id"))
		}
	}
	res, _ := ask(t, http.MethodGet, address+"/healthz", "", "X-Request-Id", "from-a.proxy:1")
	if got := res.Header.Get("X-Request-Id"); got != "from-a.proxy:1" {
		t.Errorf("the caller's id became %q", got)
	}
	res, _ = ask(t, http.MethodGet, address+"/healthz", "", "X-Request-Id", strings.Repeat("x", 65))
	if got := res.Header.Get("X-Request-Id"); !strings.HasPrefix(got, "req_") {
		t.Errorf("an endless id became %q", got)
	}
}
