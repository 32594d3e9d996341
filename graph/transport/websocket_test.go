package transport_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"parley/graph/transport"
)

const (
	protocol = "graphql-transport-ws"
	connInit = `{"type":"connection_init"}`
	connAck  = `{"type":"connection_ack"}`
)

// authenticate takes payloads with a token "good", and contexts that were let in by the request.
func authenticate(ctx context.Context, payload map[string]any) (context.Context, error) {
	switch payload["token"] {
	case "good":
		return ctx, nil
	case "busy":
		return nil, &transport.CloseError{Code: 4429, Reason: "too many sockets"}
	case "panic":
		panic("in Authenticate")
	}
	return nil, errors.New("who are you?")
}

func TestWebSocketClosesByTheProtocolsCodes(t *testing.T) {
	t.Parallel()
	const (
		good = `{"type":"connection_init","payload":{"token":"good"}}`
		feed = `{"id":"1","type":"subscribe","payload":{"query":"subscription{feed}"}}`
	)
	long := strings.Repeat("é", 200)
	for name, c := range map[string]struct {
		live   *transport.WebSocket
		dialed []string
		steps  []string // what is sent; `< x` is received
		binary bool     // the last step goes as a binary message
		code   int
		reason string
	}{
		"4400 not JSON":                {steps: []string{`{`}, code: 4400, reason: "Invalid message: the JSON is broken"},
		"4400 not an object":           {steps: []string{`"ping"`}, code: 4400, reason: "Invalid message: a JSON object is expected"},
		"4400 an array":                {steps: []string{`[` + connInit + `]`}, code: 4400, reason: "Invalid message: batches are not supported: send one operation a request"},
		"4400 no type":                 {steps: []string{`{}`}, code: 4400, reason: "Invalid message: type must be connection_init, ping, pong, subscribe or complete"},
		"4400 type of no string":       {steps: []string{`{"type":1}`}, code: 4400, reason: "Invalid message: type must be a string"},
		"4400 unknown type":            {steps: []string{`{"type":"start"}`}, code: 4400, reason: "Invalid message: type must be connection_init, ping, pong, subscribe or complete"},
		"4400 a server's type":         {steps: []string{`{"type":"next","id":"1","payload":{}}`}, code: 4400, reason: "Invalid message: type must be connection_init, ping, pong, subscribe or complete"},
		"4400 ping payload":            {steps: []string{`{"type":"ping","payload":1}`}, code: 4400, reason: "Invalid message: payload must be an object"},
		"4400 init payload":            {steps: []string{`{"type":"connection_init","payload":[]}`}, code: 4400, reason: "Invalid message: payload must be an object"},
		"4400 complete without id":     {steps: []string{`{"type":"complete"}`}, code: 4400, reason: "Invalid message: id must be a string that is not empty"},
		"4400 id of no string":         {steps: []string{`{"type":"complete","id":1}`}, code: 4400, reason: "Invalid message: id must be a string"},
		"4400 endless id":              {steps: []string{`{"type":"complete","id":"` + strings.Repeat("x", 1025) + `"}`}, code: 4400, reason: "Invalid message: id is longer than 1024 bytes"},
		"4400 subscribe payload":       {steps: []string{good, `<` + connAck, `{"id":"1","type":"subscribe"}`}, code: 4400, reason: "Invalid message: payload must be an object"},
		"4400 subscribe without query": {steps: []string{good, `<` + connAck, `{"id":"1","type":"subscribe","payload":{"extensions":{"persistedQuery":{}}}}`}, code: 4400, reason: "Invalid message: query is missing"},
		"4400 variables of no object":  {steps: []string{good, `<` + connAck, `{"id":"1","type":"subscribe","payload":{"query":"{name}","variables":[]}}`}, code: 4400, reason: "Invalid message: variables must be an object"},
		"4400 a binary message":        {steps: []string{good}, binary: true, code: 4400, reason: "Invalid message: it must be text"},
		"4400 not UTF-8":               {steps: []string{"{\"type\":\"ping\",\"x\":\"\xff\"}"}, code: 4400, reason: "Invalid message: the JSON is not valid UTF-8"},
		"4401 subscribe first":         {steps: []string{feed}, code: 4401, reason: "Unauthorized"},
		"4403 refused":                 {steps: []string{`{"type":"connection_init","payload":{"token":"bad"}}`}, code: 4403, reason: "Forbidden"},
		"4403 no payload":              {steps: []string{connInit}, code: 4403, reason: "Forbidden"},
		"4403 revoked": {
			live:  &transport.WebSocket{Recheck: func(context.Context) bool { return true }, RecheckEvery: time.Millisecond},
			steps: []string{good, `<` + connAck}, code: 4403, reason: "Forbidden",
		},
		"a code of Authenticate's own": {steps: []string{`{"type":"connection_init","payload":{"token":"busy"}}`}, code: 4429, reason: "too many sockets"},
		"4500 Authenticate panics":     {steps: []string{`{"type":"connection_init","payload":{"token":"panic"}}`}, code: 4500, reason: "Internal server error"},
		"4406 another subprotocol":     {dialed: []string{"graphql-ws"}, code: 4406, reason: "Subprotocol not acceptable"},
		"4406 no subprotocol":          {dialed: []string{}, code: 4406, reason: "Subprotocol not acceptable"},
		"4408 no init in time": {
			live: &transport.WebSocket{InitTimeout: 10 * time.Millisecond}, code: 4408, reason: "Connection initialisation timeout",
		},
		"4409 id in use":        {steps: []string{good, `<` + connAck, feed, feed}, code: 4409, reason: "Subscriber for 1 already exists"},
		"4409 with a long id":   {steps: []string{good, `<` + connAck, strings.Replace(feed, `"1"`, `"`+long+`"`, 1), strings.Replace(feed, `"1"`, `"`+long+`"`, 1)}, code: 4409, reason: "Subscriber for " + long[:108]},
		"4429 two inits":        {steps: []string{good, good}, code: 4429, reason: "Too many initialisation requests"},
		"4429 two inits, later": {steps: []string{good, `<` + connAck, good}, code: 4429, reason: "Too many initialisation requests"},
		"1009 a large message": {
			live: &transport.WebSocket{MaxMessage: 100}, steps: []string{`{"type":"ping","payload":{"x":"` + strings.Repeat("x", 1<<20) + `"}}`}, code: 1009, reason: "message too big",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			live := cmp.Or(c.live, &transport.WebSocket{})
			live.Authenticate, live.Log = authenticate, slog.New(slog.DiscardHandler)
			w := newWorld(t, live, transport.HTTP{})
			if c.dialed == nil {
				c.dialed = []string{protocol}
			}
			client := w.dial(t, c.dialed...)
			for i, step := range c.steps {
				if want, receive := strings.CutPrefix(step, "<"); receive {
					client.expect(want)
				} else if c.binary && i == len(c.steps)-1 {
					_ = client.WriteMessage(websocket.BinaryMessage, []byte(step))
				} else {
					client.send(step)
				}
			}
			if c.code == 4429 && name == "4429 two inits" { // the ack may overtake the second init
				if got, err := client.receive(); err == nil && got != connAck {
					t.Fatalf("got %s", got)
				} else if err != nil {
					checkClose(t, err, c.code, c.reason)
					return
				}
			}
			client.expectClose(c.code, c.reason)
			if got := wait(t, "the close", w.closed); got.Code != c.code {
				t.Errorf("Closed was told %v", got)
			}
		})
	}
}

func checkClose(t *testing.T, err error, code int, reason string) {
	t.Helper()
	var closed *websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != code || closed.Text != reason {
		t.Fatalf("wanted a close with %d %q, got %v", code, reason, err)
	}
}

// TestWebSocketClosesBrokenFrames: whatever is wrong with a frame, the client is told by a close
// frame.
func TestWebSocketClosesBrokenFrames(t *testing.T) {
	t.Parallel()
	const masked, mask, text = 0x80, "\x00\x00\x00\x00", "\x81"
	ping := `{"type":"ping"}`
	for name, c := range map[string]struct {
		frames string
		code   int
		reason string
	}{
		"close":                        {"\x88\x80" + mask, 1000, ""},
		"close with a code":            {"\x88\x82" + mask + "\x0f\xa0", 4000, ""},
		"close with half of a code":    {"\x88\x81" + mask + "\x03", 1002, "WebSocket protocol error"},
		"close with an impossible one": {"\x88\x82" + mask + "\x03\xed", 1002, "WebSocket protocol error"},
		"half of a code, after others": {
			text + string([]byte{masked + byte(len(ping))}) + mask + ping + "\x89\x81" + mask + "x" + "\x8a\x80" + mask + "\x88\x81" + mask + "\x03",
			1002, "WebSocket protocol error",
		},
		"an endless length":    {text + "\xff\x80\x00\x00\x00\x00\x00\x00\x00" + mask, 1002, "WebSocket protocol error"},
		"a length of 2⁶²":      {text + "\xff\x40\x00\x00\x00\x00\x00\x00\x00" + mask, 1009, "message too big"},
		"without a mask":       {text + "\x02{}", 1002, "WebSocket protocol error"},
		"an unknown opcode":    {"\x83\x80" + mask, 1002, "WebSocket protocol error"},
		"an endless ping":      {"\x89\xfe\x00\x7e" + mask, 1002, "WebSocket protocol error"},
		"a stray continuation": {"\x80\x80" + mask, 1002, "WebSocket protocol error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, &transport.WebSocket{}, transport.HTTP{})
			client := w.dial(t, protocol)
			if _, err := client.NetConn().Write([]byte(c.frames)); err != nil {
				t.Fatal(err)
			}
			got, err := client.receive()
			for err == nil && got == `{"type":"pong"}` { // if it was sent before the fault came
				got, err = client.receive()
			}
			checkClose(t, err, c.code, c.reason)
		})
	}
}

func TestWebSocketServesOperations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ query, messages string }{
		"query":            {`{name}`, `{"id":"1","type":"next","payload":{"data":{"name":"test"}}} {"id":"1","type":"complete"}`},
		"mutation":         {`mutation{name}`, `{"id":"1","type":"next","payload":{"data":{"name":"test"}}} {"id":"1","type":"complete"}`},
		"headers":          {`{header}`, `{"id":"1","type":"next","payload":{"data":{"header":"from the handshake"}}} {"id":"1","type":"complete"}`},
		"field error":      {`{fail}`, `{"id":"1","type":"next","payload":{"errors":[{"message":"a field failed","extensions":{"code":"PRESENTED"}}],"data":{"fail":null}}} {"id":"1","type":"complete"}`},
		"refused":          {`{refused}`, `{"id":"1","type":"error","payload":[{"message":"who are you?","extensions":{"code":"UNAUTHENTICATED"}}]}`},
		"panic":            {`{panics}`, `{"id":"1","type":"error","payload":[{"message":"recovered","extensions":{"code":"PRESENTED"}}]}`},
		"a stream's panic": {`subscription{panics}`, `{"id":"1","type":"error","payload":[{"message":"recovered","extensions":{"code":"PRESENTED"}}]}`},
		"no stream":        {`subscription{fail}`, `{"id":"1","type":"error","payload":[{"message":"no stream","extensions":{"code":"PRESENTED"}}]}`},
		"broken document":  {`{`, `{"id":"1","type":"error","payload":[{"message":"Expected Name, found \u003cEOF\u003e","locations":[{"line":1,"column":2}],"extensions":{"code":"GRAPHQL_PARSE_FAILED"}}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newWorld(t, &transport.WebSocket{}, transport.HTTP{}).connect(t)
			for range 2 { // an id is free again when its operation has ended
				client.subscribe("1", c.query)
				for want := range strings.SplitSeq(strings.ReplaceAll(c.messages, "} {", "}\n{"), "\n") {
					client.expect(want)
				}
			}
			client.send(`{"type":"ping","payload":{"a":1}}`)
			client.expect(`{"type":"pong","payload":{"a":1}}`)
		})
	}
}

func TestWebSocketSubscriptionsLiveAndEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{})
	client := w.connect(t)
	begin := func(id string) *feed {
		client.subscribe(id, `subscription{feed}`)
		return wait(t, "the feed", w.feeds)
	}

	one, two := begin("one"), begin("two")
	one.items <- "a"
	client.expect(`{"id":"one","type":"next","payload":{"data":{"feed":"a"}}}`)
	two.items <- "b"
	client.expect(`{"id":"two","type":"next","payload":{"data":{"feed":"b"}}}`)

	one.end()
	client.expect(`{"id":"one","type":"complete"}`)
	client.send(`{"id":"one","type":"complete"}`) // crossed with the server's: ignored

	two.endWith(errors.New("the cursor is too old"))
	client.expect(`{"id":"two","type":"error","payload":[{"message":"the cursor is too old","extensions":{"code":"PRESENTED"}}]}`)

	// The client's complete ends the operation silently, and frees its id at once.
	old := begin("again")
	client.send(`{"id":"again","type":"complete"}`)
	wait(t, "the end of the operation", old.ctx.Done())
	fresh := begin("again")
	fresh.items <- "c"
	client.expect(`{"id":"again","type":"next","payload":{"data":{"feed":"c"}}}`)

	// The end of the socket ends its operations.
	_ = client.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, "bye"), time.Now().Add(patience))
	client.expectClose(1000, "")
	wait(t, "the end of the operation", fresh.ctx.Done())
}

func TestWebSocketSendsNothingOfACompletedOperation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{})
	client := w.connect(t)
	client.subscribe("1", `subscription{flood}`) // its queue is full when it ends
	if _, err := client.receive(); err != nil {
		t.Fatal(err)
	}
	client.send(`{"id":"1","type":"complete"}`)
	client.subscribe("1", `subscription{feed}`)
	feed := wait(t, "the feed", w.feeds)
	feed.items <- "first"
	for { // what was under way
		got, err := client.receive()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(got, "first") {
			break
		}
	}
	feed.items <- "second"
	client.expect(`{"id":"1","type":"next","payload":{"data":{"feed":"second"}}}`)
}

func TestWebSocketAuthenticatesOnceBeforeOperations(t *testing.T) {
	t.Parallel()
	type key struct{}
	asked := make(chan string, 1)
	proceed := make(chan struct{})
	w := newWorld(t, &transport.WebSocket{
		Authenticate: func(ctx context.Context, payload map[string]any) (context.Context, error) {
			asked <- fmt.Sprint(payload["token"])
			<-proceed
			return context.WithValue(ctx, key{}, "viewer"), nil
		},
	}, transport.HTTP{})
	client := w.dial(t, protocol)
	client.send(`{"type":"connection_init","payload":{"token":"good"}}`)
	if got := wait(t, "Authenticate", asked); got != "good" {
		t.Errorf("Authenticate got %s", got)
	}
	client.send(`{"type":"ping"}`) // reading goes on meanwhile
	client.expect(`{"type":"pong"}`)
	close(proceed)
	client.expect(connAck)
	client.subscribe("1", `subscription{feed}`)
	if got := wait(t, "the feed", w.feeds).ctx.Value(key{}); got != "viewer" {
		t.Errorf("the operation's context holds %v", got)
	}
}

func TestWebSocketRecheckClosesOnlyWhenRevoked(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan string)
	w := newWorld(t, &transport.WebSocket{
		Log:          slog.New(slog.DiscardHandler),
		RecheckEvery: time.Millisecond,
		Recheck: func(ctx context.Context) bool {
			asked <- struct{}{}
			switch <-answer {
			case "panic":
				panic("the lookup failed")
			case "revoked":
				return true
			}
			return false
		},
	}, transport.HTTP{})
	client := w.connect(t)
	client.subscribe("1", `subscription{feed}`)
	feed := wait(t, "the feed", w.feeds)
	for _, says := range []string{"fine", "panic", "fine"} {
		wait(t, "a recheck", asked)
		answer <- says
	}
	wait(t, "a recheck", asked)
	feed.items <- "still open"
	client.expect(`{"id":"1","type":"next","payload":{"data":{"feed":"still open"}}}`)
	answer <- "revoked"
	client.expectClose(4403, "Forbidden")
	wait(t, "the end of the operation", feed.ctx.Done())
}

func TestWebSocketLimitsOperations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{MaxOperations: 2}, transport.HTTP{})
	defer close(w.waits)
	client := w.connect(t)
	const refused = `{"id":"%s","type":"error","payload":[{"message":"this socket runs as many operations as it may: complete one first","extensions":{"code":"RATE_LIMITED"}}]}`

	// Subscriptions leave room for what ends by itself.
	for _, id := range []string{"s", "t"} {
		client.subscribe(id, `subscription{feed}`)
		wait(t, "the feed", w.feeds)
	}
	client.subscribe("u", `subscription{feed}`)
	client.expect(fmt.Sprintf(refused, "u"))
	client.subscribe("u", `mutation{name}`)
	client.expect(`{"id":"u","type":"next","payload":{"data":{"name":"test"}}}`)
	client.expect(`{"id":"u","type":"complete"}`)
	for _, id := range []string{"a", "b"} {
		client.subscribe(id, `{waits}`)
		wait(t, "the operation", w.begun)
	}
	client.subscribe("c", `{name}`)
	client.expect(fmt.Sprintf(refused, "c"))
	// Completed ones that do not end count on, up to three times the limit.
	for _, id := range []string{"a", "b"} {
		client.send(`{"type":"complete","id":"` + id + `"}`)
	}
	for _, id := range []string{"d", "e"} {
		client.subscribe(id, `{waits}`)
		wait(t, "the operation", w.begun)
	}
	client.send(`{"type":"complete","id":"d"}`)
	client.subscribe("f", `{name}`)
	client.expect(fmt.Sprintf(refused, "f"))
}

func TestWebSocketPingsAndFindsADeadPeer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{KeepAlive: time.Second}, transport.HTTP{})
	w.connect(t) // reads nothing from here on, and so answers no ping
	alive := w.connect(t)
	frames := make(chan struct{}, 100)
	alive.SetPingHandler(func(data string) error {
		frames <- struct{}{}
		return alive.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(patience))
	})
	alive.pings = true
	for ended := false; !ended; {
		alive.expect(`{"type":"ping"}`)
		wait(t, "a ping frame", frames)
		select {
		case got := <-w.closed:
			if got != (closure{1001, "pings went unanswered"}) {
				t.Errorf("closed with %v", got)
			}
			ended = true
		default:
		}
	}
	alive.expect(`{"type":"ping"}`)
}

func TestWebSocketAnswersPingFrames(t *testing.T) {
	t.Parallel()
	client := newWorld(t, &transport.WebSocket{}, transport.HTTP{}).connect(t)
	pongs := make(chan string, 1)
	client.SetPongHandler(func(data string) error { pongs <- data; return nil })
	_ = client.WriteControl(websocket.PingMessage, []byte("abc"), time.Now().Add(patience))
	client.subscribe("1", `{name}`)
	client.expect(`{"id":"1","type":"next","payload":{"data":{"name":"test"}}}`)
	client.expect(`{"id":"1","type":"complete"}`)
	if got := wait(t, "the pong", pongs); got != "abc" {
		t.Errorf("pong %q", got)
	}
}

func TestWebSocketRefusesHandshakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{})
	address := "ws" + strings.TrimPrefix(w.URL, "http")
	dial := func(header http.Header) int {
		conn, resp, err := (&websocket.Dialer{Subprotocols: []string{protocol}}).Dial(address, header)
		if err == nil {
			_ = conn.Close()
			return 101
		}
		defer func() { _ = resp.Body.Close() }()
		var body struct {
			Errors []struct{ Extensions struct{ Code string } }
		}
		if json.NewDecoder(resp.Body).Decode(&body) != nil || len(body.Errors) == 0 || body.Errors[0].Extensions.Code == "" {
			t.Error("not a GraphQL error")
		}
		return resp.StatusCode
	}
	if got := dial(http.Header{"Origin": {"https://elsewhere.example"}}); got != http.StatusForbidden {
		t.Errorf("another origin: %d", got)
	}
	if got := dial(http.Header{"Origin": {w.URL}}); got != http.StatusSwitchingProtocols {
		t.Errorf("own origin: %d", got)
	}
	if err := w.live.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if got := dial(nil); got != http.StatusServiceUnavailable {
		t.Errorf("after Shutdown: %d", got)
	}
}

func TestWebSocketPingsCarryTheCursors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{KeepAlive: time.Second / 10}, transport.HTTP{})
	w.log.add()
	client := w.connect(t)
	client.pings = true
	client.subscribe("a", `subscription{numbers}`)
	client.subscribe("b", `subscription{feed}`) // has no places
	wait(t, "the feed", w.feeds)
	until := func(want string) {
		t.Helper()
		for got := ""; got != want; {
			var err error
			if got, err = client.receive(); err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
		}
	}
	until(`{"type":"ping","payload":{"cursors":{"a":"c1"}}}`) // before it has had anything
	w.log.add()
	until(`{"id":"a","type":"next","payload":{"data":{"numbers":2}}}`)
	until(`{"type":"ping","payload":{"cursors":{"a":"c2"}}}`)
	client.send(`{"type":"complete","id":"a"}`)
	until(`{"type":"ping"}`)
}

// A filter that selects little must not keep a cursor where it was: it would expire.
func TestKeepAlivesCarryHowFarAFilterHasLooked(t *testing.T) {
	t.Parallel()
	for name, groups := range map[string]*transport.Groups{"alone": nil, "in a group": grouping()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, &transport.WebSocket{KeepAlive: time.Second / 10, Groups: groups},
				transport.HTTP{Events: &transport.SSE{KeepAlive: time.Second / 10, Groups: groups}})
			const query = `subscription{numbers(after:"c0",above:3)}`
			client, stream := w.connect(t), w.post(t, query)
			client.pings = true
			client.subscribe("a", query)
			until := func(message, event string) {
				t.Helper()
				for got, n := "", 0; got != message; n++ {
					var err error
					if got, err = client.receive(); err != nil || n > 200 {
						t.Fatalf("waiting for %s: %s, %v", message, got, err)
					}
				}
				for got, n := "", 0; got != event; n++ {
					if got = stream.next(); stream.lines.Err() != nil || n > 200 {
						t.Fatalf("waiting for %s: %s, %v", event, got, stream.lines.Err())
					}
				}
			}
			until(`{"type":"ping","payload":{"cursors":{"a":"c0"}}}`, ": c0")
			for n := 1; n <= 3; n++ {
				w.log.add()
				until(fmt.Sprintf(`{"type":"ping","payload":{"cursors":{"a":"c%d"}}}`, n), fmt.Sprintf(": c%d", n))
			}
			w.log.add()
			until(numberMessage("a", 4), `event: next id: c4 data: {"data":{"numbers":4}}`)
			until(`{"type":"ping","payload":{"cursors":{"a":"c4"}}}`, ": c4")
		})
	}
}
