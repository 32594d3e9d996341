package transport

import (
	"context"
	"sync"
)

// ending holds the error with which a running operation is to end. Its resolver reaches it through the context.
type ending struct {
	mu  sync.Mutex
	err error // guarded by mu
}

type endingKey struct{}

func withEnding(ctx context.Context) (context.Context, *ending) {
	e := &ending{}
	return context.WithValue(ctx, endingKey{}, e), e
}

func (e *ending) set(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

func (e *ending) get() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// EndWithError makes the subscription that ctx belongs to end with err instead of as completed: a channel can say that a
// stream is over, and not why. Call it before closing the channel; what the channel still holds is sent first. The
// error is shown as the schema's error presenter words it. The first error stays; outside of a subscription it is a no-op.
func EndWithError(ctx context.Context, err error) {
	if e, ok := ctx.Value(endingKey{}).(*ending); ok && err != nil {
		e.set(err)
	}
}
