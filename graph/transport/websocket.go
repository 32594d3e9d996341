package transport

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

const (
	// The kernel may hold so much for a connection that does not read. Left alone it would grow to some 4 MiB, and a bound
	// on our own queue would mean little.
	kernelBuffer = 128 << 10

	// Clients say little: with a buffer of its own a socket does not keep the server's, which is
	// larger. Gorilla takes it if it has more than 256 bytes.
	readBuffer = 1 << 10

	// strangersMessage is the largest message of a socket that is not acknowledged.
	strangersMessage = 4 << 10

	// endPatience is what a client has to take the last of a socket or an event stream when the server shuts down. A revoked
	// credential's stream has it too: with the time until a recheck, that is less than the 5 s that are promised.
	endPatience = time.Second
)

// WebSocket serves operations of every kind by the graphql-transport-ws protocol. Its zero value works; it must not be
// copied, and its fields must not change once it serves. The package comment says what it promises.
type WebSocket struct {
	// Authenticate is called at connection_init with its payload, and returns the context that the socket's operations
	// run in, derived from ctx: the request's own, which may hold a viewer already, and which ends with the socket. An
	// error refuses the connection: a *CloseError as it says, any other with 4403 "Forbidden". Nil lets everyone in.
	Authenticate func(ctx context.Context, initPayload map[string]any) (context.Context, error)

	// Admit is called before each operation with the context from Authenticate; its error is the operation's answer. Nil
	// admits everything.
	Admit func(ctx context.Context) error

	// Recheck is called every RecheckEvery (3 s, give or take a tenth) for as long as an acknowledged socket is open, with
	// the context from Authenticate; true closes it with 4403. A lookup that failed is no revocation: return false.
	Recheck      func(ctx context.Context) (revoked bool)
	RecheckEvery time.Duration

	// CheckOrigin decides whether a page of that Origin may connect. Nil: only one of this host.
	CheckOrigin func(r *http.Request) bool

	// OriginRefusal tells a page that CheckOrigin refuses what to do; empty: that it may not
	// connect.
	OriginRefusal string

	// Closed is told how each socket ended, when that is decided; its goroutines may end a little later. The code is the
	// client's own if it closed the socket, and 1006 if it vanished. It must not block.
	Closed func(ctx context.Context, code int, reason string)

	// Groups lets equal subscriptions share one execution; nil: each runs by itself.
	Groups *Groups

	// Quota bounds the sockets of a business and what their subscriptions keep: one more socket is closed with 1013, as it may fit
	// later. Nil: no bound.
	Quota *Quota

	// Log gets the panics of Authenticate and Recheck, those of resolvers being the executor's; slog.Default() if nil.
	Log *slog.Logger

	InitTimeout  time.Duration // for connection_init to come; 3 s, as the protocol's reference has it
	KeepAlive    time.Duration // between pings; a peer that is silent for twice as long is gone; 15 s, below what proxies allow
	WriteTimeout time.Duration // for a peer to take anything of what is sent, and for its queue to have room; 10 s
	QueueBytes   int64         // the most that waits for one peer; 1 MiB
	MaxMessage   int64         // the largest message a client may send, else 1009; 1 MiB, and 4 KiB until it is acknowledged
	// The most subscriptions at a time on a socket, and so many others beside them; one more is
	// answered with an error; 100.
	MaxOperations int

	buffers sync.Pool // of *[]byte: what writers encode into
	flusher flusher

	mu       sync.Mutex // guards what follows
	sockets  map[*socket]struct{}
	handlers int           // sockets that are being opened, or whose goroutines have not all ended
	drained  chan struct{} // made by Shutdown, closed when no handler is left
	brief    int           // queries and mutations that run: unlike subscriptions they end by themselves
	calm     chan struct{} // made by Shutdown, closed when none of those is left
}

var _ graphql.Transport = (*WebSocket)(nil)

// CloseError is an error of Authenticate that chooses the close code and the reason that the client sees.
type CloseError struct {
	Code   int
	Reason string
}

func (e *CloseError) Error() string { return fmt.Sprintf("close with %d: %s", e.Code, e.Reason) }

// limits are the settings with their defaults in place.
type limits struct {
	init, keepAlive, write, recheck time.Duration
	queue, message                  int64
	operations                      int
}

func (t *WebSocket) limits() limits {
	return limits{
		init:       cmp.Or(t.InitTimeout, 3*time.Second),
		keepAlive:  cmp.Or(t.KeepAlive, 15*time.Second),
		write:      cmp.Or(t.WriteTimeout, 10*time.Second),
		recheck:    cmp.Or(t.RecheckEvery, 3*time.Second),
		queue:      cmp.Or(t.QueueBytes, 1<<20),
		message:    cmp.Or(t.MaxMessage, 1<<20),
		operations: cmp.Or(t.MaxOperations, 100),
	}
}

func (t *WebSocket) log() *slog.Logger { return cmp.Or(t.Log, slog.Default()) }

// Supports takes WebSocket handshakes.
func (t *WebSocket) Supports(r *http.Request) bool { return websocket.IsWebSocketUpgrade(r) }

// Do opens one socket, which is served from then on: Shutdown ends it, and waits for all that it started.
func (t *WebSocket) Do(w http.ResponseWriter, r *http.Request, exec graphql.GraphExecutor) {
	if !t.enter() {
		refuseHandshake(w, http.StatusServiceUnavailable, refusal(codeUnavailable, "the server is shutting down"))
		return
	}
	taken := false
	defer func() {
		if !taken {
			t.leave()
		}
	}()

	upgrader := websocket.Upgrader{
		CheckOrigin:      t.CheckOrigin,
		Subprotocols:     []string{subprotocol},
		HandshakeTimeout: t.limits().write,
		// Nothing is written through gorilla's buffer, so none is kept.
		WriteBufferPool: &t.buffers,
		Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			w.Header().Set("Sec-Websocket-Version", "13")
			if status == http.StatusForbidden {
				no := refusal(codeForbidden, cmp.Or(t.OriginRefusal, "pages of this origin may not connect"))
				no.Extensions["reason"] = "origin_not_allowed"
				refuseHandshake(w, status, no)
				return
			}
			refuseHandshake(w, status, refusal(codeBadUserInput, reason.Error(), valueError(reason.Error(), "header")))
		},
	}
	in := &incoming{}
	// With what others have said of the response.
	conn, err := upgrader.Upgrade(hijacker{w, in}, r, w.Header())
	if err != nil {
		return // answered
	}
	in.muted = true
	if tcp, ok := in.Conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = tcp.SetWriteBuffer(kernelBuffer)
	}
	// The request's goroutine, its stack and its buffers go; the socket may stay for days.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	s := &socket{
		t: t, limits: t.limits(), exec: exec, conn: conn, in: in, header: r.Header, ctx: ctx, cancel: cancel,
		initialised: make(chan struct{}), operations: map[string]*operation{},
	}
	s.out = newWriter(in.Conn, s.limits.write, s.limits.queue, &t.buffers, &t.flusher)
	s.out.slow = s.closeSlow
	if !t.add(s) {
		s.closeWithin(closeGoingAway, reasonGoingAway, endPatience, true)
	}
	taken = true
	go func() {
		defer t.leave()
		defer t.remove(s)
		defer cancel()
		s.serve()
	}()
}

// Shutdown lets queries and mutations that run send their results, for a second at most, and closes every socket with 1001
// "going away", which makes clients subscribe again elsewhere, ends their operations and waits for them. New handshakes get a 503. When ctx ends first, the connections that are left are cut, and
// its error is returned.
func (t *WebSocket) Shutdown(ctx context.Context) error {
	t.mu.Lock()
	if t.drained == nil {
		t.drained = make(chan struct{})
		if t.handlers == 0 {
			close(t.drained)
		}
		t.calm = make(chan struct{})
		if t.brief == 0 {
			close(t.calm)
		}
	}
	drained, calm := t.drained, t.calm
	t.mu.Unlock()
	select {
	case <-calm:
	case <-time.After(endPatience):
	case <-ctx.Done():
	}
	t.mu.Lock()
	sockets := t.open()
	t.mu.Unlock()
	for _, s := range sockets {
		s.closeWithin(closeGoingAway, reasonGoingAway, endPatience, true)
	}
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	sockets = t.open()
	t.mu.Unlock()
	for _, s := range sockets {
		s.out.abort()
	}
	return fmt.Errorf("shut down WebSockets: %w", ctx.Err())
}

// Open is how many sockets are open.
func (t *WebSocket) Open() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sockets)
}

// open lists the sockets; mu is held.
func (t *WebSocket) open() []*socket {
	sockets := make([]*socket, 0, len(t.sockets))
	for s := range t.sockets {
		sockets = append(sockets, s)
	}
	return sockets
}

func (t *WebSocket) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.drained != nil {
		return false
	}
	t.handlers++
	return true
}

func (t *WebSocket) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handlers--
	if t.drained != nil && t.handlers == 0 {
		close(t.drained)
	}
}

// begin counts a query or mutation in, until done is called.
func (t *WebSocket) begin() (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.brief++
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.brief--
		if t.brief == 0 && t.calm != nil {
			select {
			case <-t.calm: // others have begun since
			default:
				close(t.calm)
			}
		}
	}
}

// add is false when Shutdown has been called during the handshake.
func (t *WebSocket) add(s *socket) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sockets == nil {
		t.sockets = map[*socket]struct{}{}
	}
	t.sockets[s] = struct{}{}
	return t.drained == nil
}

func (t *WebSocket) remove(s *socket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sockets, s)
}

func refuseHandshake(w http.ResponseWriter, status int, err *gqlerror.Error) {
	HTTP{}.write(w, nil, mediaJSON, status, &graphql.Response{Errors: gqlerror.List{err}})
}
