package transport

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

// mediaEvents is the media type of a response that streams.
const mediaEvents = "text/event-stream"

// SSE serves operations of every kind as GraphQL over SSE, in distinct connections mode: a response for each, by POST or GET. It
// is a part of [HTTP], which reads the requests. Its zero value works; it must not be copied, and its fields must not change
// once it serves.
//
// A result that has a place in a feed carries its cursor as the event's `id`. A client that connects again with it as
// `Last-Event-ID`, as an EventSource does by itself, gets what comes after: the header stands in the place of the
// subscription's argument `after`, whatever that says.
type SSE struct {
	// Recheck is called every RecheckEvery (3 s, give or take a tenth) while a subscription streams, with the request's
	// context; true ends it with the error Revoked, which takes the place of what is queued; a client that does not take that
	// within a second is cut off. A lookup that failed is no revocation: return false.
	Recheck      func(ctx context.Context) (revoked bool)
	RecheckEvery time.Duration
	Revoked      error

	// Groups lets equal subscriptions share one execution; nil: each runs by itself.
	Groups *Groups

	// Quota bounds the streams of a business, and what they keep. Nil: no bound.
	Quota *Quota

	// Log gets the panics of Recheck, those of resolvers being the executor's; slog.Default() if nil.
	Log *slog.Logger

	KeepAlive    time.Duration // between comments, which carry the cursor; 15 s, below what proxies allow
	WriteTimeout time.Duration // for a client to take 64 KiB, and for its queue to have room, else the response is cut; 10 s
	QueueBytes   int64         // the most that waits for one client; 1 MiB

	mu       sync.Mutex // guards what follows
	streams  int        // subscriptions that stream
	stopping chan struct{}
	drained  chan struct{} // closed when stopping, and no stream is left
	stopped  bool
}

func (t *SSE) limits() limits {
	return limits{
		keepAlive: cmp.Or(t.KeepAlive, 15*time.Second),
		write:     cmp.Or(t.WriteTimeout, 10*time.Second),
		recheck:   cmp.Or(t.RecheckEvery, 3*time.Second),
		queue:     cmp.Or(t.QueueBytes, 1<<20),
	}
}

// Shutdown ends every subscription's response after what is queued for it, for a second at most, without `complete`: its client
// connects again elsewhere. Queries and mutations end by themselves. It returns when the subscriptions have ended, or ctx has.
func (t *SSE) Shutdown(ctx context.Context) error {
	t.mu.Lock()
	t.init()
	if !t.stopped {
		t.stopped = true
		close(t.stopping)
		if t.streams == 0 {
			close(t.drained)
		}
	}
	t.mu.Unlock()
	select {
	case <-t.drained:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("shut down event streams: %w", ctx.Err())
	}
}

// Open is how many subscriptions stream.
func (t *SSE) Open() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams
}

func (t *SSE) init() {
	if t.stopping == nil {
		t.stopping, t.drained = make(chan struct{}), make(chan struct{})
	}
}

// enter counts a stream in, unless Shutdown was called.
func (t *SSE) enter() (stopping <-chan struct{}, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.init()
	if t.stopped {
		return nil, false
	}
	t.streams++
	return t.stopping, true
}

func (t *SSE) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams--
	if t.stopped && t.streams == 0 {
		close(t.drained)
	}
}

// serve streams an operation that the executor has taken, or its refusal, as an accepted response: one that is no 200 tells
// an EventSource nothing. It is false, and nothing is written, when the server is shutting down.
func (t *SSE) serve(w http.ResponseWriter, r *http.Request, exec graphql.GraphExecutor, op *graphql.OperationContext, refused gqlerror.List) bool {
	var stopping <-chan struct{}
	limits := t.limits()
	if len(refused) == 0 && isStream(op) {
		var ok bool
		if stopping, ok = t.enter(); !ok {
			return false
		}
		defer t.leave()
		if end, no := t.keep(r.Context(), op); no == nil {
			defer end()
		} else {
			refused = gqlerror.List{no}
		}
	}
	ctx, cancel := context.WithCancel(graphql.WithOperationContext(r.Context(), op))
	var work sync.WaitGroup
	defer func() {
		cancel()
		work.Wait()
	}()
	s := newEventStream(w, cancel, limits)
	if len(refused) > 0 {
		cancel()
		s.finish(refused)
		return true
	}
	var revoked chan struct{}
	if stopping != nil {
		revoked = make(chan struct{})
		work.Go(func() { t.watch(ctx, s, revoked, stopping) })
	}

	var errs gqlerror.List // set when ended is closed
	ended := make(chan struct{})
	work.Go(func() {
		defer close(ended)
		c := &course{}
		if id := r.Header.Get("Last-Event-ID"); id != "" {
			c.instead, c.after = true, &id
		}
		errs = runner{exec, t.Groups}.run(ctx, op, c, s)
	})
	keepAlive := time.NewTicker(limits.keepAlive)
	defer keepAlive.Stop()
	for !s.failed {
		wake := s.wake
		if isClosed(revoked) || isClosed(stopping) {
			wake = nil // there may always be more to write
		}
		select {
		case <-wake:
			if s.flush() {
				s.rouse()
			}
		case <-keepAlive.C:
			s.comment()
		case <-ended:
			if ctx.Err() == nil {
				s.drain()
				s.finish(errs)
			} else { // it ended for the reason below, and both were there to be seen
				s.cut()
			}
			return true
		case <-revoked:
			shown := present(ctx, exec, t.Revoked)
			cancel()
			s.drop()
			s.finish(shown)
			return true
		case <-stopping:
			cancel()
			<-ended
			s.drain()
			return true
		case <-ctx.Done(): // the client is gone, or too slow
			s.cut()
			return true
		}
	}
	return true
}

// keep charges a subscription for its connection and for what it keeps, until leave is called.
func (t *SSE) keep(ctx context.Context, op *graphql.OperationContext) (leave func(), refused *gqlerror.Error) {
	end, ok := t.Quota.connect(ctx)
	if !ok {
		return nil, limitReached(reasonTooMany)
	}
	op.RawQuery = op.Operation.Position.Src.Input
	let, refused := t.Quota.subscribe(ctx, new(account), op)
	if refused != nil {
		end()
		return nil, refused
	}
	return func() { let(); end() }, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// watch closes revoked when the credential is, and ends with ctx. A client that is slow to take what is being written does
// not put off the end of its stream.
func (t *SSE) watch(ctx context.Context, s *eventStream, revoked chan<- struct{}, stopping <-chan struct{}) {
	ticker := time.NewTicker(jitter(t.limits().recheck))
	defer ticker.Stop()
	if t.Recheck == nil {
		ticker.Stop()
	}
	for {
		select {
		case <-ticker.C:
			if t.revoked(ctx) {
				s.bound(time.Now().Add(endPatience))
				close(revoked)
				return
			}
		case <-stopping:
			s.bound(time.Now().Add(endPatience))
			return
		case <-ctx.Done():
			return
		}
	}
}

// revoked asks whether the credential still holds. Whatever goes wrong in asking is no answer, and ends nothing.
func (t *SSE) revoked(ctx context.Context) (revoked bool) {
	defer func() {
		if v := recover(); v != nil {
			cmp.Or(t.Log, slog.Default()).ErrorContext(ctx, "a panic in Recheck", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			revoked = false
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, t.limits().recheck)
	defer cancel()
	return t.Recheck(ctx)
}
