package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/gorilla/websocket"
)

// socket is one open WebSocket. Its goroutines: one reads, one writes while there is something to write, and each
// operation has one. What time brings runs on
// timers, so that a socket with nothing to do has no goroutine for it.
type socket struct {
	t      *WebSocket
	limits limits
	exec   graphql.GraphExecutor
	conn   *websocket.Conn
	in     *incoming // what conn reads from; the reading goroutine's
	header map[string][]string
	out    *writer
	ctx    context.Context // ends when the socket begins to close
	cancel context.CancelFunc
	work   sync.WaitGroup // every goroutine of the socket but the reader

	initialised chan struct{} // closed at connection_init
	holds       account       // what its subscriptions keep; guarded by the Quota

	mu         sync.Mutex      // guards what follows; taken before out.mu
	viewer     context.Context // what operations run in, nil until the connection is acknowledged
	operations map[string]*operation
	running    int // goroutines of operations, those of completed ones too
	timers     []*time.Timer
	over       bool // it closes: nothing begins any more
}

// serve runs the socket to its end.
func (s *socket) serve() {
	defer func() {
		if v := recover(); v != nil {
			s.panicked("a panic in a WebSocket", v)
			s.cut(closeAbnormal, "")
			s.out.abort()
		}
	}()
	if s.conn.Subprotocol() == subprotocol {
		s.after(s.limits.init, func() bool {
			select {
			case <-s.initialised:
			default:
				s.close(closeInitTimeout, reasonInitTimeout)
			}
			return false
		})
	} else {
		s.close(closeSubprotocol, reasonSubprotocol)
	}
	s.read()
	s.work.Wait()
	<-s.out.done
	_ = s.conn.Close()
}

// close ends the socket and its operations; only the first code and reason count.
func (s *socket) close(code int, reason string) {
	s.closeWithin(code, reason, s.limits.write, false)
}

func (s *socket) closeWithin(code int, reason string, patience time.Duration, flush bool) {
	if s.out.finish(code, reason, patience, flush) {
		s.closed(code, reason)
	}
}

func (s *socket) closed(code int, reason string) {
	s.cancel()
	s.mu.Lock()
	s.over = true
	for _, timer := range s.timers {
		timer.Stop()
	}
	s.mu.Unlock()
	if s.t.Closed != nil {
		s.t.Closed(s.ctx, code, reason)
	}
}

// closeSlow ends a socket whose peer does not read. The close frame can only follow what the kernel has already taken, so
// it waits for a while longer: a peer that comes back learns why it was closed. That costs one frame's memory.
func (s *socket) closeSlow() {
	s.closeWithin(closeTryAgainLater, ReasonSlow, 3*s.limits.write, false)
}

// read handles the client's messages until the connection ends.
func (s *socket) read() {
	patience := 2 * s.limits.keepAlive
	s.conn.SetReadLimit(s.limits.message)
	s.conn.SetPongHandler(func(string) error {
		s.in.ended()
		s.out.extend(patience)
		return nil
	})
	s.conn.SetPingHandler(func(data string) error {
		s.in.ended()
		_ = s.out.send(s.ctx, frame{opcode: websocket.PongMessage, body: []byte(data), urgent: true})
		return nil
	})
	s.conn.SetCloseHandler(func(code int, _ string) error { // readEnded answers it
		if code == closeNoStatus && s.in.brokenClose() {
			return errBrokenClose
		}
		return nil
	})
	for {
		s.out.extend(patience)
		kind, message, err := s.conn.NextReader()
		var data []byte
		if err == nil {
			limit := s.messageLimit()
			if data, err = io.ReadAll(io.LimitReader(message, limit+1)); int64(len(data)) > limit {
				s.close(closeTooBig, reasonMessageTooBig)
				s.drain()
				return
			}
		}
		if err != nil {
			s.readEnded(err)
			return
		}
		s.in.ended()
		switch {
		case s.ctx.Err() != nil: // closing: only the peer's close frame is awaited
		case kind != websocket.TextMessage:
			s.close(closeInvalid, "Invalid message: it must be text")
		default:
			aside(func() { s.handle(data) })
		}
	}
}

// messageLimit is how large the message that now begins may be. Until the server knows who is there it may hold a credential, and a
// client has nothing else to say.
func (s *socket) messageLimit() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.viewer == nil {
		return min(s.limits.message, strangersMessage)
	}
	return s.limits.message
}

// readEnded closes the socket for the reason that reading ended.
func (s *socket) readEnded(err error) {
	var closed *websocket.CloseError
	var network net.Error
	switch {
	case errors.As(err, &closed) && closed.Code == closeNoStatus:
		s.close(closeNormal, "")
	case errors.As(err, &closed) && closed.Code != closeAbnormal:
		s.close(closed.Code, "")
	case errors.As(err, &network) && network.Timeout():
		s.close(closeGoingAway, reasonUnanswered)
	case errors.Is(err, websocket.ErrReadLimit) && s.in.spoke: // else the length's first bit is set
		s.close(closeTooBig, reasonMessageTooBig)
		s.drain()
	case closed == nil && network == nil:
		s.close(closeProtocolError, reasonProtocolError)
		s.drain()
	default: // the peer is gone
		s.cut(closeAbnormal, "")
	}
}

// cut ends the socket without a close frame: nobody is there to read it.
func (s *socket) cut(code int, reason string) {
	if s.out.finish(0, "", 0, false) {
		s.closed(code, reason)
	}
}

var errBrokenClose = errors.New("a close frame has one byte")

// drain reads for a moment what a client goes on sending after its fault. If the connection were closed over unread bytes,
// TCP would reset it, and the client might never see the close frame.
func (s *socket) drain() {
	conn := s.conn.NetConn()
	_ = conn.SetReadDeadline(time.Now().Add(closeReplyWait))
	_, _ = io.Copy(io.Discard, conn)
}

// handle acts on one message. It blocks on nothing but a full queue.
func (s *socket) handle(data []byte) {
	m, err := parseMessage(data)
	if err != nil {
		s.close(closeInvalid, "Invalid message: "+err.Error())
		return
	}
	switch m.kind {
	case typeConnectionInit:
		select {
		case <-s.initialised:
			s.close(closeTooManyInits, reasonTooManyInits)
		default:
			close(s.initialised)
			s.after(s.limits.keepAlive, s.ping)
			s.work.Go(func() { s.authenticate(m.payload) })
		}
	case typePing:
		pong := textFrame(nil, pongMessage(m.payload))
		pong.urgent = true
		_ = s.out.send(s.ctx, pong)
	case typePong: // any message is a sign of life; this one is nothing else
	case typeSubscribe:
		members, err := decodeObject(m.payload)
		if err == nil && !members.has("query") {
			err = errors.New("query is missing")
		}
		if err != nil {
			s.close(closeInvalid, "Invalid message: "+err.Error())
			return
		}
		params, err := members.params()
		if err != nil {
			s.close(closeInvalid, "Invalid message: "+err.Error())
			return
		}
		now := graphql.Now()
		params.Headers, params.ReadTime = s.header, graphql.TraceTiming{Start: now, End: now}
		s.subscribe(m.id, params)
	case typeComplete:
		s.complete(m.id)
	}
}

// authenticate answers connection_init, PROTOCOL.md section "ConnectionInit".
func (s *socket) authenticate(payload json.RawMessage) {
	defer func() {
		if v := recover(); v != nil {
			s.panicked("a panic in Authenticate", v)
			s.close(closeInternal, reasonInternal)
		}
	}()
	viewer := s.ctx
	if s.t.Authenticate != nil {
		var params map[string]any
		if payload != nil {
			_ = json.Unmarshal(payload, &params) // parseMessage saw that it is an object
		}
		var err error
		if viewer, err = s.t.Authenticate(s.ctx, params); err != nil {
			var as *CloseError
			if errors.As(err, &as) {
				s.close(as.Code, as.Reason)
			} else {
				s.close(closeForbidden, reasonForbidden)
			}
			return
		}
	}
	if viewer == nil {
		viewer = s.ctx
	}
	end, ok := s.t.Quota.connect(viewer)
	if !ok {
		s.close(closeTryAgainLater, reasonTooMany) // at 4429 clients would give up for good
		return
	}
	context.AfterFunc(s.ctx, end)
	// In one step: no operation's message can come before the ack, and no client that has seen it is refused.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.viewer = viewer
	s.out.force(textFrame(nil, ackMessage()))
	if s.t.Recheck != nil {
		s.afterLocked(jitter(s.limits.recheck), func() bool {
			revoked := s.revoked()
			if revoked {
				s.close(closeForbidden, reasonForbidden)
			}
			return !revoked
		})
	}
}

// after calls f after d, and again for as long as it is true and the socket is open.
func (s *socket) after(d time.Duration, f func() (again bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.afterLocked(d, f)
}

// afterLocked is after, with mu held.
func (s *socket) afterLocked(d time.Duration, f func() (again bool)) {
	if s.over {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		s.mu.Lock()
		over := s.over
		if !over {
			s.work.Add(1)
		}
		s.mu.Unlock()
		if over {
			return
		}
		defer s.work.Done()
		if !f() {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.over {
			timer.Reset(d)
		}
	})
	s.timers = append(s.timers, timer)
}

// ping sends both kinds of ping. The frame finds a dead peer, for every WebSocket implementation answers it by itself; the
// message shows the client that a subscription with nothing to say is alive, for a page cannot see frames.
func (s *socket) ping() bool {
	s.out.force(frame{opcode: websocket.PingMessage, urgent: true})
	ping := textFrame(nil, pingMessage(s.cursors()))
	ping.urgent = true
	s.out.force(ping)
	return true
}

// cursors are those of the operations, as far as they have been sent, by id.
func (s *socket) cursors() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	cursors := map[string]string{}
	for id, op := range s.operations {
		if op.cursor != "" {
			cursors[id] = op.cursor
		}
	}
	return cursors
}

// revoked asks whether the credential still holds. Whatever goes wrong in asking is no answer, and closes nothing.
func (s *socket) revoked() (revoked bool) {
	defer func() {
		if v := recover(); v != nil {
			s.panicked("a panic in Recheck", v)
			revoked = false
		}
	}()
	s.mu.Lock()
	viewer := s.viewer
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(viewer, s.limits.recheck)
	defer cancel()
	return s.t.Recheck(ctx)
}

func (s *socket) panicked(message string, value any) {
	s.t.log().ErrorContext(s.ctx, message, "panic", fmt.Sprint(value), "stack", string(debug.Stack()))
}

// jitter is d give or take a tenth: a thousand sockets that connected at once are not looked after at once.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
