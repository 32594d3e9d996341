package transport

import (
	"context"
	"sync"

	"github.com/99designs/gqlgen/graphql"
)

// Place is where a feed has got to: after the item with this number. Its cursor is what a client resumes with.
type Place struct {
	Cursor string
	Seq    int64
}

// course is what the transport and the resolver of one running subscription tell each other, through the context.
type course struct {
	// What the transport asks for.
	instead bool    // after stands in the place of the resolver's own argument
	after   *string // nil: from now on
	bounded bool    // the stream ends at the number until, and is to say which place it has reached
	until   int64
	began   func(Place) // told where the stream begins, in the resolver's goroutine; may be nil
	passed  func(Place) // told how far the resolver has looked, after the items before; it must not block; may be nil

	mu      sync.Mutex // guards what follows
	err     error      // what the stream is to end with
	places  []Place    // of the items that were sent, and whose responses were not taken yet
	sending bool       // a response was taken, and is not sent
	looked  *Place     // to be told to passed after the items that are not sent
	reached *Place     // where a bounded stream has ended
}

type courseKey struct{}

func withCourse(ctx context.Context, c *course) context.Context {
	return context.WithValue(ctx, courseKey{}, c)
}

func courseOf(ctx context.Context) *course {
	c, _ := ctx.Value(courseKey{}).(*course)
	return c
}

func (c *course) end() (err error, reached *Place) { //nolint:revive,staticcheck // both, or neither
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err, c.reached
}

// take is the place of the response that was just made: each item makes one, in order. Call sent once it is.
func (c *course) take() (at Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sending = true
	if len(c.places) > 0 {
		at = c.places[0]
		c.places = c.places[1:]
	}
	return at
}

func (c *course) sent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sending = false
	c.tell()
}

// tell says how far the resolver has looked, if every item up to there is sent; mu is held.
func (c *course) tell() {
	if c.looked != nil && !c.sending && (len(c.places) == 0 || c.places[0].Seq > c.looked.Seq) {
		c.passed(*c.looked)
		c.looked = nil
	}
}

// EndWithError makes the subscription that ctx belongs to end with err instead of as completed: a channel can say that a
// stream is over, and not why. Call it before closing the channel; what the channel still holds is sent first. The
// error is shown as the schema's error presenter words it. The first error stays; outside of a subscription it is a no-op.
func EndWithError(ctx context.Context, err error) {
	if c := courseOf(ctx); c != nil && err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.err == nil {
			c.err = err
		}
	}
}

// After is the cursor after which a resolver is to begin: its own argument, unless the client resumes by the protocol's
// means (Last-Event-ID), which then takes its place, or the transport has it begin elsewhere. Nil is from now on.
func After(ctx context.Context, argument *string) *string {
	if c := courseOf(ctx); c != nil && c.instead {
		return c.after
	}
	return argument
}

// Until is the number at which the stream is to end, if it is: as soon as the resolver has sent every item up to it, it calls
// Reached and closes its channel.
func Until(ctx context.Context) (seq int64, bounded bool) {
	if c := courseOf(ctx); c != nil {
		return c.until, c.bounded
	}
	return 0, false
}

// Began says where the stream begins. The transport gives the cursor to the client, which can resume there before it has
// had any item. A resolver whose stream has places calls it before it returns.
func Began(ctx context.Context, at Place) {
	if c := courseOf(ctx); c != nil && c.began != nil {
		c.began(at)
	}
}

// Mark says which place the item has that is sent next. A resolver marks each of its items, or none.
func Mark(ctx context.Context, at Place) {
	if c := courseOf(ctx); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.places = append(c.places, at)
	}
}

// Passed says how far a resolver has looked when there was no item for its client: what it sends from now on comes after that. The
// client can resume there once it has the items that were sent before. A resolver calls it now and then.
func Passed(ctx context.Context, at Place) {
	if c := courseOf(ctx); c != nil && c.passed != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.looked = &at
		c.tell()
	}
}

// Reached says where a stream that was bounded by Until has ended.
func Reached(ctx context.Context, at Place) {
	if c := courseOf(ctx); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reached = &at
	}
}

// isStream says whether an operation is a subscription.
func isStream(op *graphql.OperationContext) bool { return op.Operation.Operation == "subscription" }
