package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// once are the headers of a chat with an idempotency key.
func once(keys ...string) http.Header {
	h := withKey(apiKey)
	h["Idempotency-Key"] = keys
	return h
}

const chatOnce = `mutation($in: ChatInput!) { chat(input: $in) { reply runId messageId sessionId status model usage { source } } }`

// TestIdempotencyKey goes through what a key promises, on both doors: they are the same request.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	s := start(t)
	otherKey, otherToken := s.createBusiness("Other & Sons")
	const (
		path = "/agents/demo/chat"
		body = `{"message": "When are you open on Saturday?", "channel": "sms", "metadata": {"b": 1.0, "a": ["x", {"d": 2, "c": 12345678901234567890}]}, "more": 1}`
		same = `{"metadata":{"a":["\u0078",{"c":12345678901234567890,"d":2e0}],"b":1},"channel":"sms","session_id":null,"message":"When are you open on Saturday?"}`
	)
	status, header, first := s.call("POST", path, once("k 1"), body)
	if status != http.StatusOK || header.Get("Idempotency-Replayed") != "" {
		t.Fatalf("first: %d %v %v", status, header, first)
	}
	s.kill() // what is kept is kept on disk
	s.up()
	for range 2 {
		if status, header, again := s.call("POST", path, once("k 1"), same); status != http.StatusOK || header.Get("Idempotency-Replayed") != "true" || encode(again) != encode(first) {
			t.Errorf("again: %d %v %v", status, header, again)
		}
	}
	input := object{
		"agentId": "demo", "message": "When are you open on Saturday?", "channel": "SMS", "idempotencyKey": "k 1",
		"metadata": object{"a": []any{"x", object{"c": json.Number("12345678901234567890"), "d": 2}}, "b": 1},
	}
	graphQL := at(s.query(token, chatOnce, object{"in": input}), "chat")
	if at(graphQL, "runId") != at(first, "run_id") || at(graphQL, "reply") != at(first, "reply") || at(graphQL, "messageId") != at(first, "message_id") {
		t.Errorf("again by GraphQL: %v", graphQL)
	}
	header = once("k 1")
	header.Set("Accept", "text/event-stream")
	_, header, raw, err := s.try(t.Context(), "POST", path, header, same)
	if err != nil || header.Get("Idempotency-Replayed") != "true" || strings.Count(string(raw), "event: delta") != 1 || !strings.Contains(string(raw), at(first, "run_id").(string)) {
		t.Errorf("again as a stream: %v %s %v", header, raw, err)
	}
	const live = `subscription($in: ChatInput!) { chat(input: $in) { text reply { runId } } }`
	sub := s.subscribe(token, live, object{"in": input})
	if why := <-sub.end; !strings.Contains(why, "complete") || len(sub.next) != 2 {
		t.Fatalf("the subscription ended with %s after %d answers", why, len(sub.next))
	}
	if text, last := <-sub.next, <-sub.next; at(text, "chat", "text") != at(first, "reply") || at(last, "chat", "reply", "runId") != at(first, "run_id") {
		t.Errorf("again as a subscription: %v %v", text, last)
	}
	for name, other := range map[string]string{
		"message":  `{"message": "When are you open on Sunday?", "channel": "sms", "metadata": {"b": 1, "a": ["x", {"d": 2, "c": 12345678901234567890}]}}`,
		"channel":  strings.Replace(same, `"sms"`, `"gmail"`, 1),
		"metadata": strings.Replace(same, `67890`, `67891`, 1),
		"session":  strings.Replace(same, `null`, `"`+at(first, "session_id").(string)+`"`, 1),
	} {
		if status, _, answer := s.call("POST", path, once("k 1"), other); status != http.StatusUnprocessableEntity || at(answer, "code") != "idempotency_key_reused" {
			t.Errorf("another %s: %d %v", name, status, answer)
		}
	}
	if status, _, answer := s.call("POST", "/agents/nobody/chat", once("k 1"), same); status != http.StatusUnprocessableEntity || at(answer, "code") != "idempotency_key_reused" {
		t.Errorf("another agent: %d %v", status, answer)
	}
	input["message"] = "Another"
	if code, reason := s.refused(withToken(token), chatOnce, object{"in": input}); code != "BAD_USER_INPUT" || reason != "idempotency_key_reused" {
		t.Errorf("another message by GraphQL: %v %v", code, reason)
	}

	for name, header := range map[string]http.Header{"empty": once(""), "long": once(strings.Repeat("k", 256)), "twice": once("a", "b")} {
		status, _, answer := s.call("POST", path, header, `{"message": "", "channel": "sms"}`)
		faults, _ := at(answer, "detail").([]any)
		if status != http.StatusUnprocessableEntity || len(faults) != 2 || fmt.Sprint(at(faults, 0, "loc")) != "[body message]" || fmt.Sprint(at(faults, 1, "loc")) != "[header idempotency-key]" {
			t.Errorf("%s: %d %v", name, status, answer)
		}
	}
	input["idempotencyKey"] = "a\nb"
	answer := s.graphql(withToken(token), chatOnce, object{"in": input})
	if fault := at(answer, "errors", 0, "extensions", "validation", 0); at(fault, "type") != "value_error" || fmt.Sprint(at(fault, "loc")) != "[input idempotencyKey]" {
		t.Errorf("a key of two lines: %v", answer)
	}

	// A refused request takes no key: not of this business, and not of another.
	if status, _, answer := s.call("POST", "/agents/nobody/chat", once("k 2"), same); status != http.StatusNotFound {
		t.Errorf("no agent: %d %v", status, answer)
	}
	if status, header, _ := s.call("POST", path, once("k 2"), same); status != http.StatusOK || header.Get("Idempotency-Replayed") != "" {
		t.Errorf("a key that was refused: %d %v", status, header)
	}
	theirs := at(s.query(otherToken, `mutation { createAgent(input: {name: "Theirs", prompt: "We sell tea."}) { id } }`, nil), "createAgent", "id").(string)
	header = withKey(otherKey)
	header["Idempotency-Key"] = []string{"k 1"}
	if status, header, answer := s.call("POST", "/agents/"+theirs+"/chat", header, body); status != http.StatusOK || header.Get("Idempotency-Replayed") != "" {
		t.Errorf("another business with the same key: %d %v", status, answer)
	}
	if runs := at(s.query(token, `{ runs { nodes { id } } }`, nil), "runs", "nodes").([]any); len(runs) != 2 {
		t.Errorf("%d runs", len(runs))
	}
}

// TestIdempotencyKeyOfAFailedTurn: only an answer is kept. Whoever asks again gets a new turn.
func TestIdempotencyKeyOfAFailedTurn(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_EMBEDDED_MODEL_LATENCY=10s", "PARLEY_TURN_TIMEOUT=100ms")
	for _, body := range []string{`{"message":"Hi","channel":"sms"}`, `{"message":"Hi","channel":"sms"}`, `{"message":"Hello","channel":"sms"}`} {
		if status, header, answer := s.call("POST", "/agents/demo/chat", once("k"), body); status != http.StatusGatewayTimeout || header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%d %v", status, answer)
		}
	}
	if runs := at(s.query(token, `{ runs(status: FAILED) { nodes { id } } }`, nil), "runs", "nodes").([]any); len(runs) != 3 {
		t.Errorf("%d runs", len(runs))
	}
}

// outcomes counts the answers to requests with one key.
type outcomes struct {
	mu       sync.Mutex
	answered map[string]int // by run
	inFlight int
}

// ask sends the request to a server, by REST or GraphQL.
func (o *outcomes) ask(s *server, byREST bool, key, session string) {
	var run any
	code := ""
	if byREST {
		body := object{"message": "When are you open?", "channel": "whatsapp"}
		if session != "" {
			body["session_id"] = session
		}
		_, _, raw, err := s.try(context.Background(), "POST", "/agents/demo/chat", once(key), encode(body))
		var answer object
		if err == nil {
			err = json.Unmarshal(raw, &answer)
		}
		run, code = at(answer, "run_id"), fmt.Sprint(at(answer, "code"), err)
	} else {
		in := object{"agentId": "demo", "message": "When are you open?", "channel": "WHATSAPP", "idempotencyKey": key}
		if session != "" {
			in["sessionId"] = session
		}
		_, _, raw, err := s.try(context.Background(), "POST", "/graphql", withKey(apiKey), encode(object{"query": chatOnce, "variables": object{"in": in}}))
		var answer object
		if err == nil {
			err = json.Unmarshal(raw, &answer)
		}
		run, code = at(answer, "data", "chat", "runId"), fmt.Sprint(at(answer, "errors", 0, "extensions", "reason"), err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case run != nil:
		if o.answered == nil {
			o.answered = map[string]int{}
		}
		o.answered[run.(string)]++
	case code == "idempotency_in_flight<nil>":
		o.inFlight++
	default:
		s.t.Errorf("an answer that a key does not have: %s", code)
	}
}

// TestFiftyAtOnce asks with one key by REST and GraphQL, on one server and on two, for a new session and in one: there is one
// turn, and whoever does not get its answer is told that it runs.
func TestFiftyAtOnce(t *testing.T) {
	t.Parallel()
	one := []*server{start(t, "PARLEY_EMBEDDED_MODEL_LATENCY=300ms")}
	two := production(t, 2, "PARLEY_EMBEDDED_MODEL_LATENCY=300ms").replicas
	for name, servers := range map[string][]*server{"embedded": one, "production": two} {
		session := servers[0].chat("Hello", "")["session_id"].(string)
		for i, session := range []string{"", session} {
			key := fmt.Sprint("key ", i)
			var o outcomes
			var wg sync.WaitGroup
			for n := range 50 {
				wg.Go(func() { o.ask(servers[n%len(servers)], n%4 < 2, key, session) })
			}
			wg.Wait()
			if len(o.answered) != 1 || o.inFlight == 0 {
				t.Errorf("%s, %s: %v were answered, %d in flight", name, key, o.answered, o.inFlight)
			}
			o.ask(servers[len(servers)-1], i == 0, key, session)
			if len(o.answered) != 1 {
				t.Errorf("%s, %s: afterwards %v", name, key, o.answered)
			}
		}
		if runs := at(servers[0].query(token, `{ runs { nodes { id } } }`, nil), "runs", "nodes").([]any); len(runs) != 3 {
			t.Errorf("%s: %d runs", name, len(runs))
		}
	}
}

// TestIdempotencyKeyAfterACrash kills a server in the middle of a turn with a key. Until its run is ended as failed the key is
// in flight; then whoever asks again gets a new turn, and its answer from then on.
func TestIdempotencyKeyAfterACrash(t *testing.T) {
	t.Parallel()
	const latency = "PARLEY_EMBEDDED_MODEL_LATENCY=4s" // time for the server to be asked, and killed, meanwhile
	replicas := production(t, 2, latency).replicas
	alone := start(t, latency)
	for name, c := range map[string]struct{ dying, other *server }{"embedded": {alone, alone}, "production": {replicas[0], replicas[1]}} {
		live := c.dying.subscribe(token, eventsLive, nil)
		lost := make(chan struct{})
		go func() {
			defer close(lost)
			_, _, _, _ = c.dying.try(context.Background(), "POST", "/agents/demo/chat", once("k"), `{"message":"When are you open?","channel":"whatsapp"}`)
		}()
		live.wait() // the message is stored
		var o outcomes
		o.ask(c.other, false, "k", "")
		if o.inFlight != 1 {
			t.Errorf("%s: before the crash: %v", name, o.answered)
		}
		c.dying.kill()
		<-lost
		if c.dying == c.other {
			c.dying.up()
		} else if o.ask(c.other, true, "k", ""); o.inFlight != 2 {
			t.Errorf("%s: right after the crash: %v", name, o.answered)
		}
		eventually(t, "answered", func() bool {
			o.ask(c.other, true, "k", "")
			return len(o.answered) > 0
		})
		o.ask(c.other, false, "k", "")
		runs := at(c.other.query(token, `{ runs { nodes { id status errorClass } } }`, nil), "runs", "nodes").([]any)
		if len(o.answered) != 1 || len(runs) != 2 || o.answered[at(runs, 0, "id").(string)] != 2 || at(runs, 0, "status") != "FINISHED" || at(runs, 1, "errorClass") != "interrupted" {
			t.Errorf("%s: %v of the runs %v", name, o.answered, runs)
		}
	}
}
