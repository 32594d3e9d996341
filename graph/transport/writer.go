package transport

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/semaphore"
)

// closeReplyWait is how long the peer has to answer a close frame with its own before the connection is closed: closing at
// once could make its TCP stack throw the close frame away together with what it had not yet read.
const closeReplyWait = time.Second

var errSocketClosed = errors.New("the socket is closing")

// writer writes to a connection, from the queue before it, which is bounded in bytes. The flusher does it for all connections, as long as
// they take what there is; else, and to close it, a writer has one goroutine. An idle connection keeps no stack for either.
type writer struct {
	conn    net.Conn
	raw     syscall.RawConn // conn for the flusher; nil if it cannot write to it
	flusher *flusher
	stall   time.Duration // for so long the peer may take nothing
	slow    func()        // called when it took nothing for longer; ends the writer
	limit   int64
	space   *semaphore.Weighted // what is queued or being written holds its bytes of it; first come, first served
	buffers *sync.Pool          // of *[]byte, shared by all connections
	done    chan struct{}       // closed when nothing is written any more

	mu     sync.Mutex // guards what follows, and every deadline of conn; never held while writing
	urgent queue[frame]
	queue  queue[frame]
	writes bool     // the flusher is to write, or run runs
	ended  bool     // done is closed
	end    *closing // set once: the writer takes no more frames, and the one left to send is the close frame
}

// closing is how a connection ends.
type closing struct {
	code   int // 0: without a close frame, the peer is gone or has one
	reason string
	until  time.Time // the close frame must be out by then, or the connection is cut
}

func newWriter(conn net.Conn, stall time.Duration, limit int64, buffers *sync.Pool, f *flusher) *writer {
	w := &writer{
		conn: conn, stall: stall, limit: limit, buffers: buffers, flusher: f,
		space: semaphore.NewWeighted(limit), done: make(chan struct{}),
	}
	if system, ok := conn.(syscall.Conn); ok {
		w.raw, _ = system.SyscallConn() // without it a goroutine writes
	}
	return w
}

// send queues a frame. While the queue is full it waits, and no longer than a peer may stall: then that peer is too slow.
// A frame larger than the whole queue is taken when the queue is empty.
func (w *writer) send(ctx context.Context, f frame) error {
	f.held = min(int64(f.size())+frameOverhead, w.limit)
	if !w.space.TryAcquire(f.held) {
		wait, cancel := context.WithTimeout(ctx, w.stall)
		err := w.space.Acquire(wait, f.held)
		cancel()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			w.slow()
			return errSocketClosed
		}
	}
	if !w.put(f) {
		w.space.Release(f.held)
		return errSocketClosed
	}
	return nil
}

// offer queues a frame if there is room for it now. A socket that closes takes everything, and sends nothing.
func (w *writer) offer(f frame) bool {
	f.held = min(int64(f.size())+frameOverhead, w.limit)
	if !w.space.TryAcquire(f.held) {
		return false
	}
	if !w.put(f) {
		w.space.Release(f.held)
	}
	return true
}

// begin notes where a client would resume that has had nothing of the operation yet.
func (w *writer) begin(op *operation, cursor string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if op.cursor == "" {
		op.cursor = cursor
	}
}

// pass notes where a client would resume once it has all that is queued of the operation.
func (w *writer) pass(op *operation, cursor string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if op.queued == 0 {
		op.cursor = cursor
	} else {
		op.then = cursor
	}
}

// force queues a small frame of the server's own making whether or not there is room. The callers make few.
func (w *writer) force(f frame) { _ = w.put(f) }

func (w *writer) put(f frame) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end != nil || f.completed() {
		return false
	}
	if f.op != nil {
		f.op.queued++
		f.op.then = "" // what comes with this is after it
	}
	if f.urgent {
		w.urgent.push(f)
	} else {
		w.queue.push(f)
	}
	w.signal()
	return true
}

// signal says that there is something to do; mu is held.
func (w *writer) signal() {
	if !w.writes && !w.ended {
		w.writes = true
		if w.raw != nil {
			w.flusher.add(w)
		} else {
			go w.run(nil, 0)
		}
	}
}

// flush writes one batch: it is another connection's turn then. If the connection takes no more at once, or ends, run goes on.
func (w *writer) flush(a *attempt) {
	buf, held, end := w.take()
	switch {
	case end != nil:
		go w.run(nil, 0)
		return
	case buf == nil:
		return
	}
	if rest := a.on(w.raw, *buf); len(rest) > 0 {
		*buf = append((*buf)[:0], rest...)
		go w.run(buf, held)
		return
	}
	w.written(buf, held)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writes = w.end != nil || !w.urgent.empty() || !w.queue.empty(); w.writes {
		w.flusher.add(w)
	}
}

// written gives back what a batch held.
func (w *writer) written(buf *[]byte, held int64) {
	w.space.Release(held)
	if cap(*buf) <= 2*batchBytes {
		w.buffers.Put(buf)
	}
}

// finish makes the writer end: what is queued is dropped, unless it is to be flushed; that, a write that is under way, and
// then the close frame have until patience is over. Only the first code and reason count, so it says whether these are; a later call can shorten the
// patience.
func (w *writer) finish(code int, reason string, patience time.Duration, flush bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	until := time.Now().Add(patience)
	first := w.end == nil
	switch {
	case first:
		w.end = &closing{code: code, reason: reason, until: until}
		if !flush {
			w.queue, w.urgent = queue[frame]{}, queue[frame]{}
		}
	case until.Before(w.end.until):
		w.end.until = until
	}
	_ = w.conn.SetWriteDeadline(w.end.until)
	w.signal()
	return first
}

// abort cuts the connection. What the kernel still holds for a peer that does not read is dropped.
func (w *writer) abort() {
	if tcp, ok := w.conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	_ = w.conn.Close()
}

// extend gives the peer patience until its next sign of life. Once the connection is closing that is the writer's to say.
func (w *writer) extend(patience time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end == nil {
		_ = w.conn.SetReadDeadline(time.Now().Add(patience))
	}
}

// run writes buf, if there is one, and then until nothing is left to write, or the connection ends: because finish was called, or it
// broke. Then it leaves the connection open for the peer's close frame, or cuts it.
func (w *writer) run(buf *[]byte, held int64) {
	for {
		var end *closing
		if buf == nil {
			buf, held, end = w.take()
		}
		if end != nil {
			w.sendClose(end)
			w.over()
			return
		}
		if buf == nil {
			return
		}
		err := w.write(*buf)
		w.written(buf, held)
		buf = nil
		if err != nil {
			w.abort()
			w.over()
			return
		}
	}
}

func (w *writer) over() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	close(w.done)
}

// take encodes the next batch, and leaves out what belongs to an operation that its client has completed.
func (w *writer) take() (buf *[]byte, held int64, end *closing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := 0; n < batchFrames; {
		f, ok := w.urgent.pop()
		if !ok {
			if f, ok = w.queue.pop(); !ok {
				break
			}
		}
		if f.completed() {
			w.space.Release(f.held)
			continue
		}
		if buf == nil {
			if buf, ok = w.buffers.Get().(*[]byte); !ok {
				buf = new([]byte)
			}
			*buf = (*buf)[:0]
		}
		*buf, held, n = f.append(*buf), held+f.held, n+1
		if f.op != nil {
			if f.op.queued--; f.op.queued == 0 && f.op.then != "" {
				f.cursor, f.op.then = f.op.then, ""
			}
			f.op.cursor = cmp.Or(f.cursor, f.op.cursor)
		}
		if len(*buf) >= batchBytes {
			break
		}
	}
	if buf == nil {
		end = w.end
		w.writes = end != nil
	}
	return buf, held, end
}

// write writes all of b. A peer that takes some of it within the time it has to take any gets that time again.
func (w *writer) write(b []byte) error {
	for len(b) > 0 {
		w.mu.Lock()
		deadline := time.Now().Add(w.stall)
		if w.end != nil {
			deadline = w.end.until
		}
		_ = w.conn.SetWriteDeadline(deadline)
		w.mu.Unlock()

		n, err := w.conn.Write(b)
		b = b[n:]
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded) || w.expired():
			return err
		case n == 0:
			w.slow()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end == nil {
		_ = w.conn.SetWriteDeadline(time.Time{}) // once it is over the flusher could write no more
	}
	return nil
}

// expired says whether the time to close in is over.
func (w *writer) expired() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.end != nil && !time.Now().Before(w.end.until)
}

func (w *writer) sendClose(end *closing) {
	if end.code == 0 {
		return
	}
	body := websocket.FormatCloseMessage(end.code, shorten(end.reason))
	f := frame{opcode: websocket.CloseMessage, body: body}
	if w.write(f.append(nil)) != nil {
		w.abort()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.conn.SetReadDeadline(time.Now().Add(closeReplyWait))
}
