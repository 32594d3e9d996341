package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
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
		{"a stranger", stranger, "/graphql", `{"query":"{__typename}"}`, 403, "", `PARLEY_ALLOWED_ORIGINS`},
		{"allowed, REST", friend, "/v1/webhooks", `{}`, 422, friend, `"detail"`},
		{"a stranger, REST", stranger, "/v1/webhooks", `{}`, 403, "", `"code":"origin_not_allowed"`},
	} {
		res, body := call(c.origin, c.path, c.body)
		if res.StatusCode != c.status || res.Header.Get("Access-Control-Allow-Origin") != c.allow || !strings.Contains(body, c.answer) {
			t.Errorf("%s: %d %q %s", c.name, res.StatusCode, res.Header.Get("Access-Control-Allow-Origin"), body)
		}
	}

	for origin, allowed := range map[string]bool{friend: true, stranger: false} {
		res, body := ask(t, http.MethodOptions, address+"/graphql", "", "Origin", origin, "Access-Control-Request-Method", "POST")
		if got := res.Header.Get("Access-Control-Allow-Origin") == origin && res.StatusCode == http.StatusNoContent &&
			strings.Contains(res.Header.Get("Access-Control-Allow-Headers"), "Authorization"); got != allowed {
			t.Errorf("preflight of %s: %d %v", origin, res.StatusCode, res.Header)
		}
		if told := res.StatusCode == http.StatusForbidden && strings.Contains(body, "PARLEY_ALLOWED_ORIGINS"); told == allowed {
			t.Errorf("preflight of %s: %d %s", origin, res.StatusCode, body)
		}
		dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
		conn, res, err := dialer.Dial("ws"+strings.TrimPrefix(address, "http")+"/graphql", http.Header{"Origin": {origin}})
		if (err == nil) != allowed {
			t.Errorf("a WebSocket of %s: %v", origin, err)
		}
		if !allowed {
			refusal, _ := io.ReadAll(res.Body)
			if res.StatusCode != http.StatusForbidden || !strings.Contains(string(refusal), `"reason":"origin_not_allowed"`) ||
				!strings.Contains(string(refusal), "PARLEY_ALLOWED_ORIGINS") {
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
		if _, err := newOrigins(wrong, nil); err == nil {
			t.Errorf("%q was taken", wrong)
		}
	}
}

// TestRefusedOriginsAreLogged: once an origin, and of no more than so many, however many are made
// up.
func TestRefusedOriginsAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	allowed, err := newOrigins("https://app.example.com", slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	guarded := allowed.guard(http.NotFoundHandler())
	from := func(method, origin string) {
		r := httptest.NewRequestWithContext(t.Context(), method, "/graphql", nil)
		r.Header.Set("Origin", origin)
		r.Header.Set("Access-Control-Request-Method", http.MethodPost)
		guarded.ServeHTTP(httptest.NewRecorder(), r)
		allowed.mayConnect(r)
	}
	for range 3 {
		for _, method := range []string{http.MethodOptions, http.MethodPost} {
			from(method, "https://evil.example.com")
			from(method, "https://app.example.com")
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") ||
		!strings.Contains(got, "PARLEY_ALLOWED_ORIGINS") || !strings.Contains(got, "origin=https://evil.example.com") {
		t.Errorf("it logged %s", got)
	}
	for i := range 1000 {
		from(http.MethodPost, fmt.Sprintf("https://%d.%s", i, strings.Repeat("x", 10_000)))
	}
	if lines := strings.Count(log.String(), "\n"); lines != maxRefusedOrigins || log.Len() > 100<<10 {
		t.Errorf("it logged %d lines of %d bytes", lines, log.Len())
	}
}

// TestHeadersOfASocket: the payload of connection_init names its headers as clients like.
func TestHeadersOfASocket(t *testing.T) {
	t.Parallel()
	address := serveInProcess(t, func(*Settings) {})
	for _, c := range []struct{ payload, answer string }{
		{`{"Authorization":"Bearer at_test"}`, "connection_ack"},
		{`{"authorization":"bearer at_test"}`, "connection_ack"},
		{`{"x-api-key":"sk_test"}`, "connection_ack"},
		{`{"authorization":"Bearer at_wrong"}`, "4403"},
		{`{"Authorization":"Bearer at_wrong","authorization":"Bearer at_test"}`, "4403"},
		{`{"authorization":1}`, "4403"},
		{`{}`, "4403"},
	} {
		dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
		conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(address, "http")+"/graphql", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.WriteMessage(websocket.TextMessage, []byte(`{"type":"connection_init","payload":`+c.payload+`}`)); err != nil {
			t.Fatal(err)
		}
		_, got, err := conn.ReadMessage()
		if answer := fmt.Sprint(string(got), err); !strings.Contains(answer, c.answer) {
			t.Errorf("%s: %s", c.payload, answer)
		}
		_ = conn.Close()
	}
}

// TestSecretsAreNotCached: no cache may keep an answer that shows a secret.
func TestSecretsAreNotCached(t *testing.T) {
	t.Parallel()
	address := serveInProcess(t, func(*Settings) {})
	for _, c := range []struct{ path, body, secret string }{
		{"/v1/webhooks", `{"url":"https://example.com/","events":["run.failed"]}`, `"secret":"whsec_`},
		{"/graphql", `{"query":"mutation { createApiKey(name: \"x\") { secret } }"}`, `"secret":"sk_`},
		{"/graphql", `{"query":"mutation { createWebhookEndpoint(input: {url: \"https://example.com/2\", events: [RUN_FAILED]}) { secret } }"}`, `"secret":"whsec_`},
	} {
		res, body := ask(t, http.MethodPost, address+c.path, c.body, "Content-Type", "application/json", "Authorization", "Bearer at_test")
		if !strings.Contains(body, c.secret) || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %q %s", c.path, res.Header.Get("Cache-Control"), body)
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

// TestAPanicIsCountedAsAFailure: a handler that panics has answered nothing, and is no success.
func TestAPanicIsCountedAsAFailure(t *testing.T) {
	t.Parallel()
	var told []int
	o := &observer{
		log: slog.New(slog.DiscardHandler), route: func(*http.Request) string { return "/" },
		told: func(r request) { told = append(told, r.status) }, draining: func() bool { return false },
	}
	h := o.observe(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panics" {
			panic("a fault of ours")
		}
	}))
	for _, path := range []string{"/panics", "/fine"} {
		func() {
			defer func() { _ = recover() }()
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
		}()
	}
	if !slices.Equal(told, []int{http.StatusInternalServerError, http.StatusOK}) {
		t.Errorf("told of %v", told)
	}
}
