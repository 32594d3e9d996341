package transport

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"golang.org/x/sync/semaphore"
)

var errStreamEnded = errors.New("the event stream has ended")

// eventStream is a response of server-sent events, and the queue before it, bounded in bytes. Its operation fills the queue,
// and the request's own goroutine writes.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	limits  limits
	cancel  context.CancelFunc // ends the operation
	space   *semaphore.Weighted
	wake    chan struct{} // holds one: there is something to write
	buf     []byte        // the writer's own
	failed  bool          // the writer's own: the client took nothing for too long, or is gone

	mu     sync.Mutex // guards what follows
	queue  queue
	cursor string // where the client would resume, after what was written
}

// newEventStream opens the response.
func newEventStream(w http.ResponseWriter, cancel context.CancelFunc, l limits) *eventStream {
	header := w.Header()
	header.Set("Content-Type", mediaEvents+"; charset=utf-8")
	header.Set("Cache-Control", "no-cache, no-store, no-transform")
	header.Set("X-Accel-Buffering", "no") // nginx would hold events back
	s := &eventStream{
		w: w, control: http.NewResponseController(w), limits: l, cancel: cancel,
		space: semaphore.NewWeighted(l.queue), wake: make(chan struct{}, 1),
	}
	w.WriteHeader(http.StatusOK)
	s.write(nil)
	return s
}

// release leaves the connection as it was, for the client's next request.
func (s *eventStream) release() {
	s.cancel()
	if !s.failed {
		_ = s.control.SetWriteDeadline(time.Time{})
	}
}

// cut makes the response end as a broken one, not as if it were whole.
func (s *eventStream) cut() {
	s.failed = true
	_ = s.control.SetWriteDeadline(time.Unix(1, 0))
}

func (s *eventStream) next(ctx context.Context, body []byte, at Place) error {
	f := frame{body: body, cursor: at.Cursor}
	f.held = min(int64(f.size())+frameOverhead, s.limits.queue)
	if !s.space.TryAcquire(f.held) {
		wait, cancel := context.WithTimeout(ctx, s.limits.write)
		defer cancel()
		if s.space.Acquire(wait, f.held) != nil {
			s.cancel()
			return errStreamEnded
		}
	}
	s.put(f)
	return nil
}

func (s *eventStream) offer(body []byte, at Place) bool {
	f := frame{body: body, cursor: at.Cursor}
	f.held = min(int64(f.size())+frameOverhead, s.limits.queue)
	if !s.space.TryAcquire(f.held) {
		return false
	}
	s.put(f)
	return true
}

func (s *eventStream) began(at Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cursor == "" {
		s.cursor = at.Cursor
	}
}

func (s *eventStream) slow() { s.cancel() }

func (s *eventStream) put(f frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.push(f)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// flush writes what is queued.
func (s *eventStream) flush() error {
	for {
		s.buf = s.buf[:0]
		var held int64
		s.mu.Lock()
		for n := 0; n < batchFrames && len(s.buf) < batchBytes; n++ {
			f, ok := s.queue.pop()
			if !ok {
				break
			}
			s.buf = appendNext(s.buf, f.body, f.cursor)
			held += f.held
			if f.cursor != "" {
				s.cursor = f.cursor
			}
		}
		s.mu.Unlock()
		if held == 0 {
			if cap(s.buf) > 2*batchBytes {
				s.buf = nil // a burst is over
			}
			return nil
		}
		s.write(s.buf)
		s.space.Release(held)
		if s.failed {
			return errStreamEnded
		}
	}
}

// comment shows that a stream with nothing to say is alive, and where its client would resume.
func (s *eventStream) comment() error {
	if err := s.flush(); err != nil {
		return err
	}
	s.mu.Lock()
	s.buf = append(s.buf[:0], ':')
	if s.cursor != "" {
		s.buf = append(append(s.buf, ' '), s.cursor...)
	}
	s.buf = append(s.buf, "\n\n"...)
	s.mu.Unlock()
	s.write(s.buf)
	if s.failed {
		return errStreamEnded
	}
	return nil
}

// finish writes what is queued, the errors that the operation ended with, and `complete`.
func (s *eventStream) finish(errs gqlerror.List) {
	if s.flush() != nil {
		return
	}
	s.buf = s.buf[:0]
	if len(errs) > 0 {
		body, err := encodeResponse(&graphql.Response{Errors: errs})
		if err != nil {
			body = []byte(`{"errors":[` + internalError + `]}`)
		}
		s.buf = appendNext(s.buf, body, "")
	}
	// An EventSource shows no event without data.
	s.write(append(s.buf, "event: complete\ndata:\n\n"...))
}

// write writes b, in parts that a client has the time of WriteTimeout each for.
func (s *eventStream) write(b []byte) {
	for first := true; (first || len(b) > 0) && !s.failed; first = false {
		part := b[:min(len(b), batchBytes)]
		b = b[len(part):]
		_ = s.control.SetWriteDeadline(time.Now().Add(s.limits.write))
		_, err := s.w.Write(part)
		if err == nil {
			err = s.control.Flush()
		}
		if err != nil {
			s.cut()
		}
	}
}

// appendNext encodes a result as an event.
func appendNext(dst, body []byte, cursor string) []byte {
	dst = append(dst, "event: next\n"...)
	if cursor != "" {
		dst = append(append(append(dst, "id: "...), cursor...), '\n')
	}
	dst = append(dst, "data: "...)
	start := len(dst)
	dst = append(dst, body...)
	if bytes.ContainsAny(body, "\n\r") { // between the JSON's tokens: inside of a string they are escaped
		for i, c := range dst[start:] {
			if c == '\n' || c == '\r' {
				dst[start+i] = ' '
			}
		}
	}
	return append(dst, '\n', '\n')
}
