package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// TestStrangersHoldLittle: who has no valid credential is answered 401 and cut off by the fifth KiB of a body, and after 5 s of a
// short one, on every path; what comes before a credential, a header or a WebSocket's first message, is short too.
func TestStrangersHoldLittle(t *testing.T) {
	t.Parallel()
	s := start(t)
	const many = 1 << 20
	lengths := map[string]string{"a long body": fmt.Sprintf("Content-Length: %d", many), "a body of unknown length": "Transfer-Encoding: chunked"}
	for _, path := range []string{"/graphql", "/agents/demo/chat", "/agents/demo/test", "/v1/webhooks", "/nothing"} {
		want := http.StatusUnauthorized
		if path == "/nothing" {
			want = http.StatusNotFound
		}
		for _, credential := range []string{"X-Nobody: 1", "Authorization: Bearer at_0123456789abcdef", "X-API-Key: sk_0123456789abcdef"} {
			for name, length := range lengths {
				t.Run(path+", "+name+", "+credential, func(t *testing.T) {
					t.Parallel()
					part := strings.Repeat(" ", 8<<10)
					if name != "a long body" {
						part = fmt.Sprintf("%x\r\n%s\r\n", len(part), part)
					}
					s.stranger(t, want, path, credential, length, part)
				})
			}
		}
		t.Run(path+", a slow body", func(t *testing.T) {
			t.Parallel()
			s.stranger(t, want, path, "X-Nobody: 1", "Content-Length: 100", `{"query"`)
		})
	}
	t.Run("a header", func(t *testing.T) {
		t.Parallel()
		s.stranger(t, http.StatusRequestHeaderFieldsTooLarge, "/graphql", "X-Long: "+strings.Repeat("x", 64<<10), "Content-Length: 0", "")
	})
	t.Run("a WebSocket", func(t *testing.T) {
		t.Parallel()
		dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
		conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(s.url(), "http")+"/graphql", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.WriteMessage(websocket.TextMessage, []byte(`{"type":"ping","payload":{"x":"`+strings.Repeat("x", 8<<10)+`"}}`))
		if _, _, err = conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
			t.Errorf("it ended with %v", err)
		}
	})
	long := `{"query":"{ feedCursor }","x":"` + strings.Repeat("x", many-100) + `"}`
	if status, _, answer := s.call("POST", "/graphql", withToken(token), long); status != http.StatusOK || at(answer, "data", "feedCursor") == nil {
		t.Errorf("a body of 1 MiB with a credential: %d %v", status, answer)
	}
}

// stranger begins a POST, sends no more of its body than part, and expects an answer and the end of the connection.
func (s *server) stranger(t *testing.T, want int, path, credential, length, part string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience)) // half of what a caller with a credential has
	head := "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + credential + "\r\n" + length + "\r\n\r\n"
	if _, err := io.WriteString(conn, head+part); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(conn)
	res, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != want {
		t.Errorf("%d %s, %v", res.StatusCode, body, err)
	}
	if rest, err := io.ReadAll(answers); len(rest) > 0 || isTimeout(err) {
		t.Errorf("the connection goes on: %q, %v", rest, err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// TestEachChatIsCharged: a request costs as many of the rate limit as it has `chat` fields. Those beyond it get its error and run no
// turn, and the others do.
func TestEachChatIsCharged(t *testing.T) {
	t.Parallel()
	const limit, asked = 6, 20
	var query strings.Builder
	for i := range asked {
		fmt.Fprintf(&query, `c%d: chat(input: {agentId: "demo", message: "Hello", channel: SMS}) { runId } `, i)
	}
	payload := object{"query": "mutation { " + query.String() + "}"}
	for name, ask := range map[string]func(s *server) any{
		"a request": func(s *server) any { return s.graphql(withToken(token), payload["query"].(string), nil) },
		"a WebSocket": func(s *server) any {
			conn := s.dial(token)
			var m object
			for m["type"] != "next" {
				if err := conn.ReadJSON(&m); err != nil {
					t.Fatal(err)
				}
				if m["type"] == "connection_ack" {
					_ = conn.WriteJSON(object{"id": "1", "type": "subscribe", "payload": payload})
				}
			}
			return m["payload"]
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, fmt.Sprintf("PARLEY_RATE_LIMIT=%d", limit))
			other := at(s.query(token, `mutation { createAccessToken(name: "other", scope: READ) { secret } }`, nil), "createAccessToken", "secret").(string)
			errs, _ := at(ask(s), "errors").([]any)
			for _, e := range errs {
				if at(e, "extensions", "code") != "RATE_LIMITED" || at(e, "extensions", "retryAfter") == nil || at(e, "path", 0) == nil {
					t.Errorf("an error: %v", e)
				}
			}
			// One of the limit comes back every 10 s, and more than that should not be needed for all of them.
			ran := len(at(s.query(other, `{ runs(first: 100) { nodes { id } } }`, nil), "runs", "nodes").([]any))
			if ran < limit-3 || ran >= asked/2 || ran+len(errs) != asked {
				t.Errorf("%d turns ran, and %d of %d were refused, at a limit of %d", ran, len(errs), asked, limit)
			}
		})
	}
}

// TestWhatSubscriptionsKeep: what a socket's subscriptions keep of memory is bounded, whether it is in a comment, a variable, a name
// or a list; equal documents are kept once, and lists and ids are short.
func TestWhatSubscriptionsKeep(t *testing.T) {
	t.Parallel()
	s := start(t)
	long := strings.Repeat("x", 400<<10)
	feed := func(comment string, filter any) object {
		return object{"query": "subscription($f: EventFilter) { events(filter: $f) { node { id } } } #" + comment, "variables": object{"f": filter}}
	}
	many := make([]string, 70_000)
	for i := range many {
		many[i] = "RUN_FAILED"
	}
	for name, c := range map[string]struct {
		payload object
		at      int    // which one is refused
		reason  string // and why
	}{
		"a comment":     {feed(long, nil), 2, "limit_reached"},
		"doubles":       {feed("", object{"types": many}), 0, "validation_error"},
		"an id":         {feed("", object{"agentId": strings.Repeat("x", 65)}), 0, "validation_error"},
		"equal ones":    {feed("", object{"types": many[:3], "agentId": strings.Repeat("x", 64)}), 100, ""},
		"a literal one": {object{"query": `subscription { events(filter: {types: [` + strings.Repeat("RUN_FAILED ", 101) + `]}) { node { id } } }`}, 0, "validation_error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := s.dial(token)
			read := func() (m object) {
				t.Helper()
				_ = conn.SetReadDeadline(time.Now().Add(patience))
				for m["type"] == nil || m["type"] == "ping" {
					if err := conn.ReadJSON(&m); err != nil {
						t.Fatal(err)
					}
				}
				return m
			}
			read() // the ack
			for i := range c.at + 1 {
				_ = conn.WriteJSON(object{"id": fmt.Sprint(i), "type": "subscribe", "payload": c.payload})
				if i < c.at && c.reason != "" {
					_ = conn.WriteJSON(object{"id": fmt.Sprintf("q%d", i), "type": "subscribe", "payload": object{"query": "{ feedCursor }"}})
					if m := read(); m["type"] != "next" {
						t.Fatalf("%d: %v", i, encode(m))
					}
					read() // complete
				}
			}
			m := read()
			code, reason := at(m, "payload", 0, "extensions", "code"), at(m, "payload", 0, "extensions", "reason")
			if c.reason == "" { // the operations that a socket may have
				if code != "RATE_LIMITED" || m["id"] != fmt.Sprint(c.at) {
					t.Errorf("the last of %d: %s", c.at+1, encode(m))
				}
			} else if code != "BAD_USER_INPUT" || (reason != c.reason && at(m, "payload", 0, "extensions", "validation") == nil) || m["id"] != fmt.Sprint(c.at) {
				t.Errorf("the last of %d: %s", c.at+1, encode(m))
			}
		})
	}
}

// TestBoundsOfABusiness: sockets and subscriptions have a bound that the operator sets, whichever tokens a business uses, and another
// business has its own.
func TestBoundsOfABusiness(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_MAX_SOCKETS=3", "PARLEY_MAX_SUBSCRIPTIONS=2")
	_, theirs := s.createBusiness("Other")
	second := at(s.query(token, `mutation { createAccessToken(name: "second", scope: READ) { secret } }`, nil), "createAccessToken", "secret").(string)
	const feed = `subscription { events { cursor } }`
	s.subscribe(token, feed, object{})
	s.subscribe(second, feed, object{})
	third := s.subscribe(second, feed, object{})
	if why := <-third.end; !strings.Contains(why, `"reason":"limit_reached"`) {
		t.Errorf("the third subscription: %s", why)
	}
	fourth := s.dial(token)
	if _, _, err := fourth.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseTryAgainLater) {
		t.Errorf("the fourth socket: %v", err)
	}
	s.subscribe(theirs, feed, object{})
	_ = third.conn.Close()
	eventually(t, "a place", func() bool {
		conn := s.dial(token)
		_, m, err := conn.ReadMessage()
		return err == nil && strings.Contains(string(m), "connection_ack")
	})
}

// TestManyWatchers: 300 subscriptions to the deliveries on one token, each by another operation name and comment, cost a change one
// execution and not 300. All of them get every change.
func TestManyWatchers(t *testing.T) {
	t.Parallel()
	const sockets, each = 6, 50
	s := start(t)
	r := receive(t, nil)
	s.register(r.URL, "run.finished")
	var conns []*websocket.Conn
	for i := range sockets {
		conn := s.dial(token)
		conns = append(conns, conn)
		var ack object
		if err := conn.ReadJSON(&ack); err != nil || ack["type"] != "connection_ack" {
			t.Fatal(ack, err)
		}
		for j := range each {
			query := fmt.Sprintf("subscription s%d_%d { deliveries { id status event { type } attempts { number } } } # %d", i, j, i*each+j)
			_ = conn.WriteJSON(object{"id": fmt.Sprint(j), "type": "subscribe", "payload": object{"query": query}})
		}
	}
	metric := func(name string) (n float64) {
		t.Helper()
		_, _, metrics, err := s.try(t.Context(), "GET", "/metrics", nil, "")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(metrics)) {
			_, _ = fmt.Sscanf(line, name+" %g", &n)
		}
		return n
	}
	// All watch when one chat's changes have come to every one of them.
	all := func(conn *websocket.Conn) {
		t.Helper()
		done := map[any]bool{}
		for len(done) < each {
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			var m object
			if err := conn.ReadJSON(&m); err != nil {
				t.Fatal(err)
			}
			switch {
			case m["type"] == "error":
				t.Fatal(encode(m))
			case at(m, "payload", "data", "deliveries", "status") == "DELIVERED":
				done[m["id"]] = true
			}
		}
	}
	for _, conn := range conns {
		_ = conn.WriteJSON(object{"id": "q", "type": "subscribe", "payload": object{"query": "{ feedCursor }"}})
	}
	eventually(t, "watched", func() bool {
		before := metric("parley_live_results_given_total")
		s.chat("Hello", "")
		r.wait()
		eventually(t, "given", func() bool { return metric("parley_live_results_given_total") > before })
		return metric("parley_live_results_given_total")-before >= sockets*each
	})
	made, given := metric("parley_live_results_made_total"), metric("parley_live_results_given_total")
	s.chat("Hello", "")
	for _, conn := range conns {
		all(conn)
	}
	if made, given = metric("parley_live_results_made_total")-made, metric("parley_live_results_given_total")-given; made > given/sockets/each*2 {
		t.Errorf("%.0f results were made, for the %.0f that were given", made, given)
	}
}

// TestAgentsAreBounded: a business has as many agents as the operator lets it, however many are made at once.
func TestAgentsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 5 // with demo
	s := start(t, fmt.Sprintf("PARLEY_MAX_AGENTS=%d", most))
	var query strings.Builder
	for i := range 10 {
		fmt.Fprintf(&query, `a%d: createAgent(input: {name: "A"}) { id } `, i)
	}
	answer := s.graphql(withToken(token), "mutation { "+query.String()+"}", nil)
	for _, e := range at(answer, "errors").([]any) {
		if at(e, "extensions", "code") != "BAD_USER_INPUT" || at(e, "extensions", "reason") != "limit_reached" {
			t.Errorf("an error: %v", e)
		}
	}
	if n := len(at(s.query(token, "{ agents(first: 100) { nodes { id } } }", nil), "agents", "nodes").([]any)); n != most {
		t.Errorf("%d agents", n)
	}
	s.query(token, `mutation { deleteAgent(id: "demo") }`, nil)
	s.query(token, `mutation { createAgent(input: {name: "A"}) { id } }`, nil)
}

// TestReadsEnd: whatever a query, a mutation or a REST read waits for, it is answered in time, and says why.
func TestReadsEnd(t *testing.T) {
	t.Parallel()
	f := production(t, 1)
	s := f.replicas[0]
	db := f.db()
	defer func() { _ = db.Close() }()
	lock, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback() }()
	if _, err := lock.ExecContext(t.Context(), "LOCK TABLE runs, endpoints IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for name, c := range map[string]struct {
		method, path, body string
		status             int
	}{
		"a query":     {"POST", "/graphql", `{"query":"{ runs { nodes { id } } }"}`, http.StatusOK},
		"a REST read": {"GET", "/v1/webhooks", "", http.StatusServiceUnavailable},
	} {
		status, header, answer, err := s.try(ctx, c.method, c.path, withToken(token), c.body)
		if err != nil || status != c.status || !strings.Contains(string(answer), "too_slow") || status != http.StatusOK && header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %v %s, %v", name, status, header, answer, err)
		}
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.query(token, "{ runs { nodes { id } } }", nil)
	var lists strings.Builder
	for i := range 20 {
		fmt.Fprintf(&lists, `l%d: events(filter: {sessionId: "ses_%d"}) { nodes { id } } `, i, i)
	}
	if code, _ := s.refused(withToken(token), "{ "+lists.String()+"}", nil); code != "TOO_COMPLEX" {
		t.Errorf("20 lists at once: %v", code)
	}
}
