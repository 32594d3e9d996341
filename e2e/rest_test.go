package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// TestRESTRefusals goes through the contract's table: each faulty request gets its status and code, and leaves nothing behind.
func TestRESTRefusals(t *testing.T) {
	t.Parallel()
	s := start(t)
	ok := s.chat("Hello", "")["session_id"].(string)
	const path = "/agents/demo/chat"
	key, bearer := withKey(apiKey), withToken(token)
	plain := func(h http.Header, kind string) http.Header {
		h = h.Clone()
		h.Set("Content-Type", kind)
		return h
	}
	hook := `{"url":"https://example.com","events":["run.failed"]}`
	fine := `{"message":"Hi","channel":"whatsapp"}`
	for name, c := range map[string]struct {
		method, path string
		header       http.Header
		body         string
		status       int
		code         string
	}{
		"no credential":           {"POST", path, http.Header{"Content-Type": {"application/json"}}, fine, 401, "unauthenticated"},
		"a bad key":               {"POST", path, withKey("sk_wrong"), fine, 401, "unauthenticated"},
		"a bad token":             {"GET", "/v1/webhooks", withToken("at_wrong"), "", 401, "unauthenticated"},
		"Basic":                   {"GET", "/v1/webhooks", http.Header{"Authorization": {"Basic eDp5"}}, "", 401, "unauthenticated"},
		"a key for webhooks":      {"GET", "/v1/webhooks", key, "", 403, "forbidden"},
		"registering with a key":  {"POST", "/v1/webhooks", key, hook, 403, "forbidden"},
		"unknown agent":           {"POST", "/agents/nobody/chat", key, fine, 404, "agent_not_found"},
		"unknown session":         {"POST", path, key, `{"message":"Hi","channel":"whatsapp","session_id":"ses_x"}`, 404, "session_not_found"},
		"an empty session":        {"POST", path, key, `{"message":"Hi","channel":"whatsapp","session_id":""}`, 404, "session_not_found"},
		"another channel":         {"POST", path, key, `{"message":"Hi","channel":"sms","session_id":"` + ok + `"}`, 409, "channel_mismatch"},
		"not JSON by its type":    {"POST", path, plain(key, "text/plain"), fine, 415, "unsupported_media_type"},
		"no type":                 {"POST", "/v1/webhooks", http.Header{"Authorization": bearer["Authorization"]}, hook, 415, "unsupported_media_type"},
		"too large":               {"POST", path, key, `{"message":"` + strings.Repeat("x", 1<<20) + `"}`, 413, "body_too_large"},
		"another method":          {"GET", path, key, "", 405, "method_not_allowed"},
		"another path":            {"GET", "/v2/webhooks", bearer, "", 404, "not_found"},
		"another method on hooks": {"DELETE", "/v1/webhooks", bearer, "", 405, "method_not_allowed"},
	} {
		status, header, answer := s.call(c.method, c.path, c.header, c.body)
		if _, sentence := at(answer, "detail").(string); status != c.status || at(answer, "code") != c.code || !sentence {
			t.Errorf("%s: %d %v, want %d %s", name, status, answer, c.status, c.code)
		}
		if status == 401 && header.Get("WWW-Authenticate") == "" || status == 405 && header.Get("Allow") == "" {
			t.Errorf("%s: header %v", name, header)
		}
	}
	if got := at(s.query(token, `{events(last: 100) { nodes { id } } }`, nil), "events", "nodes").([]any); len(got) != 3 {
		t.Errorf("refused requests left %d events behind", len(got)-3)
	}
}

func TestRESTWebhooks(t *testing.T) {
	t.Parallel()
	s := start(t)
	status, _, made := s.call("POST", "/v1/webhooks", withToken(token), `{"url":"https://example.com/a","events":["run.failed","run.finished","run.failed"],"x":1}`)
	if status != http.StatusCreated || fmt.Sprint(at(made, "events")) != "[run.failed run.finished]" || len(made.(object)) != 5 ||
		!strings.HasPrefix(at(made, "secret").(string), "whsec_") {
		t.Errorf("created: %d %v", status, made)
	}
	if at, err := time.Parse(time.RFC3339Nano, at(made, "created_at").(string)); err != nil || at.Location() != time.UTC {
		t.Errorf("created_at: %v, %v", at, err)
	}
	_, _ = s.register("https://example.com/b", "call.ended")
	status, _, list := s.call("GET", "/v1/webhooks", withToken(token), "")
	if status != http.StatusOK || at(list, 0, "url") != "https://example.com/b" || at(list, 1, "id") != at(made, "id") || len(at(list, 1).(object)) != 4 {
		t.Errorf("list: %d %v", status, list)
	}
	if status, _, doc := s.call("GET", "/openapi.json", nil, ""); status != 200 || at(doc, "openapi") != "3.1.0" || at(doc, "paths", "/v1/webhooks", "post") == nil {
		t.Errorf("openapi.json: %d", status)
	}
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_RATE_LIMIT=3")
	for i := range 5 {
		status, header, answer := s.call("GET", "/v1/webhooks", withToken(token), "")
		if limited := i >= 3; limited != (status == http.StatusTooManyRequests) || limited && (header.Get("Retry-After") == "" || at(answer, "code") != "rate_limited") {
			t.Errorf("request %d: %d %v %v", i+1, status, header, answer)
		}
	}
	if code, reason := s.refused(withToken(token), `{ viewer { scope } }`, nil); code != "RATE_LIMITED" || reason != "rate_limited" {
		t.Errorf("GraphQL: %v %v", code, reason)
	}
	if status, _, _ := s.call("POST", "/agents/demo/chat", withKey(apiKey), `{"message":"Hi","channel":"sms"}`); status != http.StatusOK {
		t.Errorf("another credential: %d", status)
	}
}

// TestRateLimitOnSockets: a socket counts, and so does each operation on it; who is over the limit is told to come again.
func TestRateLimitOnSockets(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_RATE_LIMIT=3")
	conn := s.dial(token)
	var ack object
	if err := conn.ReadJSON(&ack); err != nil || ack["type"] != "connection_ack" {
		t.Fatalf("no connection_ack: %v, %v", ack, err)
	}
	var types []any
	for _, id := range []string{"1", "2", "3"} {
		if err := conn.WriteJSON(object{"id": id, "type": "subscribe", "payload": object{"query": "{ feedCursor }"}}); err != nil {
			t.Fatal(err)
		}
		for m := (object{}); m["type"] != "complete" && m["type"] != "error"; {
			m = object{}
			if err := conn.ReadJSON(&m); err != nil {
				t.Fatal(err)
			}
			types = append(types, m["type"])
			if m["type"] == "error" && at(m, "payload", 0, "extensions", "code") != "RATE_LIMITED" {
				t.Errorf("refused with %v", m)
			}
		}
	}
	if got := fmt.Sprint(types); got != "[next complete next complete error]" {
		t.Errorf("three operations: %s", got)
	}
	if _, _, err := s.dial(token).ReadMessage(); !websocket.IsCloseError(err, websocket.CloseTryAgainLater) {
		t.Errorf("another socket: %v", err)
	}
}

// TestTurnsOfASession has ten turns of one session at once: all are answered, one after the other. An agent set to REJECT
// answers all but one at once with 409.
func TestTurnsOfASession(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_EMBEDDED_MODEL_LATENCY=20ms")
	session := s.chat("Hello", "")["session_id"].(string)
	body := encode(object{"message": "When are you open?", "channel": "whatsapp", "session_id": session})
	tenAtOnce := func() (statuses []int) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				status, _, _, err := s.try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey), body)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				statuses = append(statuses, status)
			})
		}
		wg.Wait()
		return statuses
	}
	if got := tenAtOnce(); slices.Max(got) != 200 {
		t.Errorf("ENQUEUE: %v", got)
	}
	events := at(s.query(token, `query($s: ID!) { events(last: 100, filter: {sessionId: $s}) { nodes { sequence runId type } } }`, object{"s": session}), "events", "nodes").([]any)
	if len(events) != 33 {
		t.Fatalf("%d events of 11 turns", len(events))
	}
	for i, e := range events {
		if at(e, "sequence") != float64(i+1) || at(e, "runId") != at(events[i/3*3], "runId") {
			t.Fatalf("event %d: %v: the turns ran into each other", i+1, e)
		}
	}
	s.query(token, `mutation { updateAgent(id: "demo", input: {onConcurrent: REJECT}) { id } }`, nil)
	if got := tenAtOnce(); slices.Min(got) != 200 || slices.Max(got) != 409 {
		t.Errorf("REJECT: %v", got)
	}
}

// TestCallerLeaves has a caller that hangs up while the agent thinks: the turn runs to its end all the same.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_EMBEDDED_MODEL_LATENCY=300ms")
	live := s.subscribe(token, eventsLive, object{"after": at(s.query(token, `{feedCursor}`, nil), "feedCursor")})
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _, _, _ = s.try(ctx, "POST", "/agents/demo/chat", withKey(apiKey), `{"message":"Hello","channel":"sms"}`)
	}()
	session := at(live.wait(), "events", "node", "sessionId") // the message is stored: the turn has begun
	leave()
	<-left
	for _, want := range []string{"MESSAGE_CREATED", "RUN_FINISHED"} {
		if node := at(live.wait(), "events", "node"); at(node, "type") != want || at(node, "sessionId") != session {
			t.Errorf("after the caller left: %v", node)
		}
	}
}

func TestSessionExpires(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_SESSION_TTL=1us")
	session := s.chat("Hello", "")["session_id"]
	status, _, answer := s.call("POST", "/agents/demo/chat", withKey(apiKey), encode(object{"message": "Hi", "channel": "whatsapp", "session_id": session}))
	if status != http.StatusGone || at(answer, "code") != "session_expired" {
		t.Errorf("%d %v", status, answer)
	}
}

// TestModelFailures has a language model that fails, and one that gives nothing in time: the caller is told, run.failed is
// sent, and the session goes on as it was before.
func TestModelFailures(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var answer http.HandlerFunc
	var asked []object
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req object
		if err := decode(r.Body, &req); err != nil {
			t.Error(err)
		}
		mu.Lock()
		asked = append(asked, req)
		h := answer
		mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(model.Close)
	set := func(h http.HandlerFunc) {
		mu.Lock()
		defer mu.Unlock()
		answer = h
	}
	good := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"id":"c","object":"chat.completion","created":1,"model":"test-model","choices":[{"index":0,"finish_reason":"stop",
			"message":{"role":"assistant","content":"Good day."}}],"usage":{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}}`))
	}
	s := start(t, "OPENAI_BASE_URL="+model.URL+"/v1", "OPENAI_API_KEY=secret-key", "PARLEY_TURN_TIMEOUT=1s")
	set(good)
	first := s.chat("Hello", "")
	if first["reply"] != "Good day." || first["model"] != "openai/test-model" || at(first, "usage", "input_tokens") != 11.0 || at(first, "usage", "source") != "provider" {
		t.Errorf("the answer: %v", first)
	}
	hung := make(chan struct{})
	defer close(hung)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		status int
		code   string
	}{
		"fails": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, 502, "model_failed"},
		"hangs": {func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-hung:
			}
		}, 504, "model_timeout"},
	} {
		live := s.subscribe(token, eventsLive, object{"after": at(s.query(token, `{feedCursor}`, nil), "feedCursor")})
		set(c.answer)
		status, _, got := s.call("POST", "/agents/demo/chat", withKey(apiKey), encode(object{"message": "Lost", "channel": "whatsapp", "session_id": first["session_id"]}))
		if status != c.status || at(got, "code") != c.code {
			t.Errorf("%s: %d %v", name, status, got)
		}
		live.wait()
		if node := at(live.wait(), "events", "node"); at(node, "type") != "RUN_FAILED" || at(node, "data", "error_class") != c.code {
			t.Errorf("%s: %v", name, node)
		}
	}
	set(good)
	s.chat("And now?", first["session_id"].(string))
	mu.Lock()
	last := encode(asked[len(asked)-1])
	mu.Unlock()
	if strings.Contains(last, "Lost") || !strings.Contains(last, "Good day.") || !strings.Contains(last, "And now?") {
		t.Errorf("the model was told %s", last)
	}
	if strings.Contains(s.log(), "secret-key") {
		t.Error("the operator's key stands in the log")
	}
}
