package transport_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"go.uber.org/goleak"

	"parley/graph/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come. It is no measure of anything.
const patience = 20 * time.Second

const schemaText = `
	type Query { name: String!  number(of: ID): String  nothing: String  fail: String  refused: String  panics: String  header: String  waits: String }
	type Mutation { name: String! }
	type Subscription { feed: String!  flood: String!  fail: String!  panics: String!  numbers(after: String, above: Int): Int! }
`

// feed is one running `subscription { feed }`, driven by its test.
type feed struct {
	ctx   context.Context
	items chan string // closed: the stream ends
}

func (f *feed) end() { close(f.items) }

func (f *feed) endWith(err error) {
	transport.EndWithError(f.ctx, err)
	close(f.items)
}

type closure struct {
	Code   int
	Reason string
}

// world is a server with a schema made by hand, which behaves as gqlgen's generated code does where it matters here.
type world struct {
	*httptest.Server
	gql    *handler.Server
	live   *transport.WebSocket
	feeds  chan *feed
	closed chan closure
	begun  chan struct{} // gets one when `waits` begins
	waits  chan struct{} // closed: `waits` ends, whatever its context says
	floods chan context.Context
	log    *numbers // what `numbers` serves

	flooded atomic.Int64 // results of floods
}

// numbers is a feed of the numbers 1, 2, 3, …, with places.
type numbers struct {
	mu      sync.Mutex
	last    int64
	changed chan struct{}
	made    atomic.Int64  // results that executions made of them
	pad     string        // is in each
	pruned  int64         // those up to it are no more
	begun   chan struct{} // nil, or gets one for each execution, while there is room
	gate    chan struct{} // nil, or closed when executions may go on
}

func (n *numbers) add() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *numbers) end() (int64, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last, n.changed
}

func numberPlace(n int64) transport.Place {
	return transport.Place{Cursor: fmt.Sprintf("c%d", n), Seq: n}
}

// follow serves the numbers above one as a resolver does.
func (n *numbers) follow(ctx context.Context, after *string, above int64) graphql.ResponseHandler {
	at, _ := n.end()
	if after = transport.After(ctx, after); after != nil {
		if _, err := fmt.Sscanf(*after, "c%d", &at); err != nil {
			return graphql.OneShot(&graphql.Response{Errors: gqlerror.List{{Message: "no cursor", Extensions: map[string]any{"code": "BAD_USER_INPUT"}}}})
		}
	}
	if at < n.pruned {
		return graphql.OneShot(&graphql.Response{Errors: gqlerror.List{{Message: "expired", Extensions: map[string]any{"code": "CURSOR_EXPIRED"}}}})
	}
	transport.Began(ctx, numberPlace(at))
	select {
	case n.begun <- struct{}{}:
	default:
	}
	return func(ctx context.Context) *graphql.Response {
		for {
			if until, bounded := transport.Until(ctx); bounded && at >= until {
				transport.Reached(ctx, numberPlace(at))
				return nil
			}
			last, changed := n.end()
			if at < last {
				if at++; at <= above {
					transport.Passed(ctx, numberPlace(at))
					continue
				}
				if n.gate != nil {
					<-n.gate
				}
				transport.Mark(ctx, numberPlace(at))
				n.made.Add(1)
				return &graphql.Response{Data: fmt.Appendf(nil, `{"numbers":%d%s}`, at, n.pad)}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

func newWorld(t *testing.T, live *transport.WebSocket, h transport.HTTP) *world {
	t.Helper()
	w := &world{live: live, feeds: make(chan *feed, 100), closed: make(chan closure, 1000), begun: make(chan struct{}, 100), waits: make(chan struct{}), floods: make(chan context.Context, 100), log: &numbers{changed: make(chan struct{})}}
	schema := gqlparser.MustLoadSchema(&ast.Source{Input: schemaText})
	w.gql = handler.New(&graphql.ExecutableSchemaMock{
		SchemaFunc: func() *ast.Schema { return schema },
		ComplexityFunc: func(context.Context, string, string, int, map[string]any) (int, bool) {
			return 0, false
		},
		ExecFunc: w.exec,
	})
	w.gql.SetRecoverFunc(func(context.Context, any) error { return errors.New("recovered") })
	w.gql.SetErrorPresenter(func(ctx context.Context, err error) *gqlerror.Error {
		shown := graphql.DefaultErrorPresenter(ctx, err)
		if shown.Extensions == nil {
			shown.Extensions = map[string]any{"code": "PRESENTED"}
		}
		return shown
	})
	live.Closed = func(_ context.Context, code int, reason string) { w.closed <- closure{code, reason} }
	w.gql.AddTransport(live)
	w.gql.AddTransport(h)
	w.Server = httptest.NewServer(w.gql)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := live.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if h.Events != nil {
			if err := h.Events.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		}
		w.Close()
	})
	return w
}

// exec runs the first field of an operation, and all of them when they are names.
func (w *world) exec(ctx context.Context) graphql.ResponseHandler {
	op := graphql.GetOperationContext(ctx)
	first := op.Operation.SelectionSet[0].(*ast.Field)
	if op.Operation.Operation == ast.Subscription {
		return w.subscribe(ctx, op, first)
	}
	if first.Name == "refused" { // before execution
		return graphql.OneShot(w.respond(ctx, op, first))
	}
	answered := false
	return func(ctx context.Context) *graphql.Response {
		if answered {
			return nil
		}
		answered = true
		return w.respond(ctx, op, first)
	}
}

func (w *world) respond(ctx context.Context, op *graphql.OperationContext, field *ast.Field) *graphql.Response {
	value := func(v string) *graphql.Response {
		b, _ := json.Marshal(map[string]string{field.Alias: v})
		return &graphql.Response{Data: b}
	}
	switch field.Name {
	case "number":
		return value(fmt.Sprint(op.Variables["n"]))
	case "fail":
		graphql.AddError(ctx, errors.New("a field failed"))
		return &graphql.Response{Data: []byte(`{"fail":null}`)}
	case "refused":
		return &graphql.Response{Errors: gqlerror.List{{
			Message: "who are you?", Extensions: map[string]any{"code": "UNAUTHENTICATED"},
		}}}
	case "nothing":
		return &graphql.Response{Data: []byte(`null`)}
	case "panics":
		panic("a resolver's panic")
	case "header":
		return value(op.Headers.Get("X-Test"))
	case "waits":
		w.begun <- struct{}{}
		<-w.waits
		return value("waited")
	case "__type":
		return &graphql.Response{Data: []byte(`{"__type":null}`)}
	default:
		return value("test")
	}
}

func (w *world) subscribe(ctx context.Context, op *graphql.OperationContext, field *ast.Field) graphql.ResponseHandler {
	switch field.Name {
	case "numbers":
		var after *string
		if text, ok := field.ArgumentMap(op.Variables)["after"].(string); ok {
			after = &text
		}
		above, _ := field.ArgumentMap(op.Variables)["above"].(int64)
		return w.log.follow(ctx, after, above)
	case "fail":
		graphql.AddError(ctx, errors.New("no stream"))
		return nil
	case "panics":
		return func(context.Context) *graphql.Response { panic("a stream's panic") }
	case "flood":
		w.floods <- ctx
		text := `{"flood":"` + strings.Repeat("x", 16<<10) + `"}`
		return func(ctx context.Context) *graphql.Response {
			if ctx.Err() != nil {
				return nil
			}
			w.flooded.Add(1)
			return &graphql.Response{Data: []byte(text)}
		}
	}
	f := &feed{ctx: ctx, items: make(chan string)}
	w.feeds <- f
	var buf bytes.Buffer // used again for each response, as generated code does
	return func(ctx context.Context) *graphql.Response {
		select {
		case item, ok := <-f.items:
			if !ok {
				return nil
			}
			buf.Reset()
			buf.WriteString(`{"feed":"` + item + `"}`)
			return &graphql.Response{Data: buf.Bytes()}
		case <-ctx.Done():
			return nil
		}
	}
}

func wait[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// client is a raw WebSocket client.
type client struct {
	t *testing.T
	*websocket.Conn
	pings bool // whether receive shows the server's ping messages
}

func (w *world) dial(t *testing.T, protocols ...string) *client {
	t.Helper()
	dialer := websocket.Dialer{Subprotocols: protocols, HandshakeTimeout: patience}
	conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(w.URL, "http"), http.Header{"X-Test": {"from the handshake"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t: t, Conn: conn}
}

// connect dials and is acknowledged.
func (w *world) connect(t *testing.T) *client {
	t.Helper()
	c := w.dial(t, "graphql-transport-ws")
	c.send(`{"type":"connection_init"}`)
	c.expect(`{"type":"connection_ack"}`)
	return c
}

func (c *client) send(text string) {
	c.t.Helper()
	if err := c.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) subscribe(id, query string) {
	c.t.Helper()
	payload, _ := json.Marshal(map[string]any{"id": id, "type": "subscribe", "payload": map[string]any{"query": query}})
	c.send(string(payload))
}

func (c *client) receive() (string, error) {
	for {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, data, err := c.ReadMessage()
		if err != nil {
			return "", err
		}
		if c.pings || !strings.HasPrefix(string(data), `{"type":"ping"`) {
			return string(data), nil
		}
	}
}

func (c *client) expect(want string) {
	c.t.Helper()
	got, err := c.receive()
	if err != nil {
		c.t.Fatalf("wanted %s, got %v", want, err)
	}
	if got != want {
		c.t.Fatalf("wanted %s\ngot    %s", want, got)
	}
}

func (c *client) expectClose(code int, reason string) {
	c.t.Helper()
	got, err := c.receive()
	var closed *websocket.CloseError
	if !errors.As(err, &closed) {
		c.t.Fatalf("wanted a close with %d, got %q, %v", code, got, err)
	}
	if closed.Code != code || closed.Text != reason {
		c.t.Fatalf("wanted a close with %d %q, got %d %q", code, reason, closed.Code, closed.Text)
	}
}
