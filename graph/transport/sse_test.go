package transport_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"parley/graph/transport"
)

// events reads the response of one operation.
type events struct {
	t *testing.T
	*http.Response
	lines *bufio.Scanner
}

func (w *world) post(t *testing.T, query string, header ...string) *events {
	t.Helper()
	body := `{"query":"` + strings.ReplaceAll(query, `"`, `\"`) + `"}`
	return w.request(t, http.MethodPost, "/graphql", body, header...)
}

func (w *world) get(t *testing.T, query string, header ...string) *events {
	t.Helper()
	return w.request(t, http.MethodGet, "/graphql?query="+url.QueryEscape(query), "", header...)
}

func (w *world) request(t *testing.T, method, path, body string, header ...string) *events {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := w.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return &events{t, res, bufio.NewScanner(res.Body)}
}

// expect reads the next events: the lines of one each, joined by blanks.
func (e *events) expect(want ...string) {
	e.t.Helper()
	for _, w := range want {
		if got := e.next(); got != w {
			e.t.Fatalf("wanted %s\ngot    %s", w, got)
		}
	}
}

func (e *events) next() string {
	var lines []string
	for e.lines.Scan() {
		if e.lines.Text() == "" {
			break
		}
		lines = append(lines, e.lines.Text())
	}
	return strings.Join(lines, " ")
}

// ends checks that the stream is over, and in good order.
func (e *events) ends() {
	e.t.Helper()
	if got := e.next(); got != "" || e.lines.Err() != nil {
		e.t.Fatalf("wanted the end, got %q, %v", got, e.lines.Err())
	}
}

func TestSSEServesOperations(t *testing.T) {
	t.Parallel()
	const both = "text/event-stream, application/json"
	for name, c := range map[string]struct {
		query, accept string
		get           bool
		status        int
		media, answer string
	}{
		"query":            {query: `{name}`, answer: `event: next data: {"data":{"name":"test"}}|event: complete data:`},
		"query by GET":     {query: `{name}`, get: true, answer: `event: next data: {"data":{"name":"test"}}|event: complete data:`},
		"mutation":         {query: `mutation{name}`, answer: `event: next data: {"data":{"name":"test"}}|event: complete data:`},
		"field error":      {query: `{fail}`, answer: `event: next data: {"errors":[{"message":"a field failed","extensions":{"code":"PRESENTED"}}],"data":{"fail":null}}|event: complete data:`},
		"refused":          {query: `{refused}`, answer: `event: next data: {"errors":[{"message":"who are you?","extensions":{"code":"UNAUTHENTICATED"}}]}|event: complete data:`},
		"a stream's panic": {query: `subscription{panics}`, answer: `event: next data: {"errors":[{"message":"recovered","extensions":{"code":"PRESENTED"}}]}|event: complete data:`},
		"no stream":        {query: `subscription{fail}`, answer: `event: next data: {"errors":[{"message":"no stream","extensions":{"code":"PRESENTED"}}]}|event: complete data:`},
		"broken document":  {query: `{`, answer: `event: next data: {"errors":[{"message":"Expected Name, found \u003cEOF\u003e","locations":[{"line":1,"column":2}],"extensions":{"code":"GRAPHQL_PARSE_FAILED"}}]}|event: complete data:`},

		"mutation by GET":          {query: `mutation{name}`, get: true, status: 405},
		"no query":                 {query: ``, get: true, status: 400},
		"a query that takes both":  {query: `{name}`, accept: both, media: "application/json", answer: `{"data":{"name":"test"}}`},
		"a broken one takes both":  {query: `{`, accept: both, media: "application/json"},
		"events wanted more":       {query: `{name}`, accept: "text/event-stream, application/json;q=0.9", answer: `event: next data: {"data":{"name":"test"}}|event: complete data:`},
		"events and anything":      {query: `{name}`, accept: "text/event-stream, */*", answer: `event: next data: {"data":{"name":"test"}}|event: complete data:`},
		"a stream that takes both": {query: `subscription{fail}`, accept: both, answer: `event: next data: {"errors":[{"message":"no stream","extensions":{"code":"PRESENTED"}}]}|event: complete data:`},
		"a stream for anything":    {query: `subscription{fail}`, accept: "*/*", status: 400},
		"events refused":           {query: `{name}`, accept: "text/event-stream;q=0", status: 406},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: &transport.SSE{}})
			ask := w.post
			if c.get {
				ask = w.get
			}
			header := []string{}
			if c.accept != "" {
				header = []string{"Accept", c.accept}
			}
			res := ask(t, c.query, header...)
			if c.status == 0 {
				c.status = 200
			}
			if res.StatusCode != c.status {
				t.Fatalf("status %d", res.StatusCode)
			}
			if c.media == "" && c.status == 200 {
				c.media = "text/event-stream"
			}
			if got := res.Header.Get("Content-Type"); !strings.HasPrefix(got, c.media) {
				t.Errorf("it is %s", got)
			}
			if c.media == "text/event-stream" {
				res.expect(strings.Split(c.answer, "|")...)
				res.ends()
			} else if body, _ := io.ReadAll(res.Body); c.answer != "" && string(body) != c.answer {
				t.Errorf("got %s", body)
			}
		})
	}
}

func TestSSESubscriptionsLiveAndEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: &transport.SSE{}})
	one := w.post(t, `subscription{feed}`)
	feed := wait(t, "the feed", w.feeds)
	feed.items <- "a"
	one.expect(`event: next data: {"data":{"feed":"a"}}`)
	feed.end()
	one.expect(`event: complete data:`)
	one.ends()

	two := w.get(t, `subscription{feed}`)
	feed = wait(t, "the feed", w.feeds)
	feed.endWith(errors.New("the cursor is too old"))
	two.expect(`event: next data: {"errors":[{"message":"the cursor is too old","extensions":{"code":"PRESENTED"}}]}`, `event: complete data:`)
	two.ends()

	// The client goes away.
	three := w.post(t, `subscription{feed}`)
	feed = wait(t, "the feed", w.feeds)
	_ = three.Body.Close()
	wait(t, "the end of the operation", feed.ctx.Done())
}

func TestSSEResumesByLastEventID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: &transport.SSE{KeepAlive: time.Millisecond}})
	for range 3 {
		w.log.add()
	}
	const query = `subscription{numbers(after:"c0")}`
	skip := func(e *events, comment, until string) { // keep-alives stand anywhere between events
		t.Helper()
		for got := e.next(); got != until; got = e.next() {
			if comment != "" && got != comment && got != ":" { // without a cursor: it has not begun
				t.Fatalf("wanted %s, got %q", until, got)
			}
		}
	}
	first := w.post(t, query)
	skip(first, "", `event: next id: c1 data: {"data":{"numbers":1}}`)
	skip(first, "", `event: next id: c2 data: {"data":{"numbers":2}}`)
	skip(first, "", `event: next id: c3 data: {"data":{"numbers":3}}`)
	skip(first, ": c3", `: c3`)

	// The header stands in the place of the argument.
	again := w.get(t, query, "Last-Event-ID", "c2")
	skip(again, ": c2", `event: next id: c3 data: {"data":{"numbers":3}}`)
	fresh := w.get(t, `subscription{numbers}`)
	skip(fresh, "", `: c3`) // where it would resume before it has had anything
	w.log.add()
	skip(fresh, ": c3", `event: next id: c4 data: {"data":{"numbers":4}}`)

	skip(w.get(t, query, "Last-Event-ID", "nonsense"), ":", `event: next data: {"errors":[{"message":"no cursor","extensions":{"code":"BAD_USER_INPUT"}}]}`)
	skip(w.get(t, `{name}`, "Last-Event-ID", "nonsense"), ":", `event: next data: {"data":{"name":"test"}}`)
}

func TestSSEClosesASlowConsumerAndNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: &transport.SSE{WriteTimeout: 200 * time.Millisecond, QueueBytes: 64 << 10}})
	other := w.post(t, `subscription{feed}`)
	feed := wait(t, "the feed", w.feeds)
	// Many, and read from as soon as each has ended: what ends one, its operation or its response, is what notices first.
	var slow errgroup.Group
	for range 20 {
		res := w.post(t, `subscription{flood}`) // and nothing is read
		ctx := wait(t, "the flood", w.floods)
		slow.Go(func() error {
			<-ctx.Done()
			if _, err := io.Copy(io.Discard, res.Body); err == nil {
				return errors.New("a slow one's response ended as if it were complete")
			}
			return nil
		})
	}
	if err := slow.Wait(); err != nil {
		t.Error(err)
	}
	feed.items <- "news"
	other.expect(`event: next data: {"data":{"feed":"news"}}`)
}

func TestSSEEndsWhenTheCredentialIsRevoked(t *testing.T) {
	t.Parallel()
	answer := make(chan bool)
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: &transport.SSE{
		RecheckEvery: time.Millisecond, Revoked: errors.New("who are you?"), Recheck: func(ctx context.Context) bool {
			select {
			case a := <-answer:
				return a
			case <-ctx.Done():
				return false
			}
		},
	}})
	res := w.post(t, `subscription{feed}`)
	feed := wait(t, "the feed", w.feeds)
	answer <- false
	feed.items <- "still open"
	res.expect(`event: next data: {"data":{"feed":"still open"}}`)
	answer <- true
	res.expect(`event: next data: {"errors":[{"message":"who are you?","extensions":{"code":"PRESENTED"}}]}`, `event: complete data:`)
	wait(t, "the end of the operation", feed.ctx.Done())
}

// The queue before a steady reader of a flood is never empty, and that must not put off the end of its stream; nor must a client
// that takes nothing.
func TestSSEOfAFloodEndsWhenTheCredentialIsRevoked(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (w *world, revoke func()) {
		t.Parallel()
		var revoked atomic.Bool
		w = newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: &transport.SSE{
			QueueBytes: 256 << 10, WriteTimeout: time.Hour, RecheckEvery: time.Millisecond, Revoked: errors.New("who are you?"),
			Recheck: func(context.Context) bool { return revoked.Load() },
		}})
		return w, func() { revoked.Store(true) }
	}
	t.Run("of a steady reader", func(t *testing.T) {
		w, revoke := begin(t)
		res, flood := w.flood(t)
		const refusal = `event: next data: {"errors":[{"message":"who are you?","extensions":{"code":"PRESENTED"}}]}`
		got := ""
		for n := int64(0); got != refusal; n++ {
			if n == 100 {
				revoke()
			}
			if n > 1000 || n > 0 && got == "" {
				t.Fatalf("no refusal after %d events: %v", n, res.lines.Err())
			}
			w.ahead(flood, n)
			got = res.next()
		}
		res.expect(`event: complete data:`)
		res.ends()
	})
	t.Run("of one that is stuck", func(t *testing.T) {
		w, revoke := begin(t)
		res, flood := w.flood(t)
		revoke()
		wait(t, "the end of the operation", flood.Done())
		if _, err := io.Copy(io.Discard, res.Body); err == nil {
			t.Error("the response ended as if it were complete")
		}
	})
}

func TestSSEShutdownEndsAFlood(t *testing.T) {
	t.Parallel()
	for name, steady := range map[string]bool{"of a steady reader": true, "of one that is stuck": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			streams := &transport.SSE{QueueBytes: 256 << 10, WriteTimeout: time.Hour}
			w := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: streams})
			res, flood := w.flood(t)
			var reading errgroup.Group
			reading.Go(func() error {
				if !steady {
					<-flood.Done()
				}
				for n := int64(0); steady; n++ {
					w.ahead(flood, n)
					if res.next() == "" {
						break
					}
				}
				_, err := io.Copy(io.Discard, res.Body)
				return errors.Join(err, res.lines.Err())
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := streams.Shutdown(ctx); err != nil {
				t.Fatal(err)
			}
			if err := reading.Wait(); err == nil && !steady {
				t.Error("the response ended as if it were complete")
			}
		})
	}
}

// flood begins a flood for a client that has begun to read its first event, over a connection that buffers nothing.
func (w *world) flood(t *testing.T) (*events, context.Context) {
	t.Helper()
	conn, theirs := net.Pipe()
	server := &http.Server{Handler: w.gql, ReadHeaderTimeout: patience}
	serving := make(chan error, 1)
	go func() { serving <- server.Serve(&listener{conn: theirs, closed: make(chan struct{})}) }()
	t.Cleanup(func() {
		_ = conn.Close()
		_ = server.Close()
		if err := <-serving; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	if _, err := io.WriteString(conn, "GET /?query=subscription{flood} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if _, err := r.Peek(1000); err != nil {
		t.Fatal(err)
	}
	return &events{t, res, bufio.NewScanner(res.Body)}, wait(t, "the flood", w.floods)
}

// ahead waits until the queue of a reader that has had n events is far from empty, or the flood is over.
func (w *world) ahead(flood context.Context, n int64) {
	for w.flooded.Load() < n+8 && flood.Err() == nil {
		runtime.Gosched()
	}
}

// listener accepts one connection.
type listener struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	if conn := l.conn; conn != nil {
		l.conn = nil
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *listener) Close() error {
	close(l.closed)
	return nil
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

func TestSSEShutdownLetsTheServerStop(t *testing.T) {
	t.Parallel()
	streams := &transport.SSE{}
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: streams})
	res := w.post(t, `subscription{feed}`)
	feed := wait(t, "the feed", w.feeds)
	query := w.post(t, `{waits}`)
	wait(t, "the query", w.begun)
	feed.items <- "last"
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := streams.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	res.expect(`event: next data: {"data":{"feed":"last"}}`)
	res.ends() // and no `complete`: the client connects again elsewhere
	if late := w.post(t, `subscription{feed}`); late.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a stream that came later: %d", late.StatusCode)
	}
	close(w.waits)
	query.expect(`event: next data: {"data":{"waits":"waited"}}`, `event: complete data:`)
	if err := w.Config.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

func TestQuotaBoundsWhatABusinessHasOpen(t *testing.T) {
	t.Parallel()
	quota := &transport.Quota{Sockets: 2, Subscriptions: 10, Of: func(ctx context.Context) (string, string) {
		if tenant, ok := ctx.Value(tenantKey{}).(string); ok {
			return "a", tenant
		}
		return "a", "one"
	}}
	w := newWorld(t, &transport.WebSocket{Authenticate: inTenant, Quota: quota}, transport.HTTP{Events: &transport.SSE{Quota: quota}})
	first := w.member(t, "one")
	second := w.post(t, `subscription{feed}`)
	wait(t, "the feed", w.feeds)
	w.member(t, "two")
	third := w.dial(t, "graphql-transport-ws")
	third.send(`{"type":"connection_init","payload":{"tenant":"one"}}`)
	third.expectClose(1013, "this business has as many connections open as it may: close one first")
	refused := w.post(t, `subscription{feed}`)
	refused.expect(`event: next data: {"errors":[{"message":"this business has as many connections open as it may: close one first","extensions":{"code":"BAD_USER_INPUT","reason":"limit_reached","validation":[{"loc":[],"msg":"this business has as many connections open as it may: close one first","type":"limit_reached"}]}}]}`, `event: complete data:`)
	w.post(t, `{name}`).expect(`event: next data: {"data":{"name":"test"}}`)

	_ = first.Close() // and another one fits
	for acked := false; !acked; {
		again := w.dial(t, "graphql-transport-ws")
		again.send(`{"type":"connection_init","payload":{"tenant":"one"}}`)
		_, err := again.receive()
		acked = err == nil
	}
	_ = second.Body.Close()
}
