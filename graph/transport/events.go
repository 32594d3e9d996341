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

	mu     sync.Mutex // guards what follows, and the deadline of writing
	queue  queue[frame]
	cursor string    // where the client would resume, after what was written
	then   string    // what cursor is to be once the queue is empty
	until  time.Time // all must be written by then; zero: the stream goes on
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

// cut makes the response end as a broken one, not as if it were whole.
func (s *eventStream) cut() {
	s.failed = true
	s.bound(time.Unix(1, 0))
}

// bound sets when all must be written, what is being written too; the earliest one counts. It may be called from anywhere.
func (s *eventStream) bound(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until.IsZero() || until.Before(s.until) {
		s.until = until
		_ = s.control.SetWriteDeadline(until)
	}
}

// extend gives the client WriteTimeout for the next part, within the bound. The server takes the last deadline from the
// connection once the response is out.
func (s *eventStream) extend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until.IsZero() {
		_ = s.control.SetWriteDeadline(time.Now().Add(s.limits.write))
	}
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

func (s *eventStream) passed(at Place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue.empty() {
		s.cursor = at.Cursor
	} else {
		s.then = at.Cursor
	}
}

func (s *eventStream) slow() { s.cancel() }

func (s *eventStream) put(f frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.push(f)
	s.then = "" // what comes with this is after it
	s.rouse()
}

// rouse says that there is something to write.
func (s *eventStream) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// flush writes one batch of what is queued, and says whether more is. The queue may fill as fast as it is emptied, so whoever
// writes on looks first at whether the stream is to end.
func (s *eventStream) flush() (more bool) {
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
	if more = !s.queue.empty(); !more && s.then != "" {
		s.cursor, s.then = s.then, ""
	}
	s.mu.Unlock()
	if held > 0 {
		s.write(s.buf)
		s.space.Release(held)
	}
	if !more && cap(s.buf) > 2*batchBytes {
		s.buf = nil // a burst is over
	}
	return more && !s.failed
}

// drain writes all that is queued. It is for when the operation has ended: it adds nothing.
func (s *eventStream) drain() {
	for s.flush() {
	}
}

// drop forgets what is queued.
func (s *eventStream) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = queue[frame]{}
}

// comment shows that a stream with nothing to say is alive, and where its client would resume.
func (s *eventStream) comment() {
	s.mu.Lock()
	s.buf = append(s.buf[:0], ':')
	if s.cursor != "" {
		s.buf = append(append(s.buf, ' '), s.cursor...)
	}
	s.buf = append(s.buf, "\n\n"...)
	s.mu.Unlock()
	s.write(s.buf)
}

// finish writes the errors that the operation ended with, and `complete`.
func (s *eventStream) finish(errs gqlerror.List) {
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
		s.extend()
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
