package store

import (
	"context"
	"sync"

	"github.com/uptrace/bun"
)

// fairReads shares the readers out by business: the callers of one hold half of them at most, so that its lists, however long and many,
// leave the others theirs. It is a hook of the readers' pool: whatever is read for a viewer passes it, and waits for as long as the
// context allows. What turns and deliveries read by key has connections of its own.
type fairReads struct {
	each  int   // reads of a business at a time
	pause pause // of all of them, for SQLite's log

	mu sync.Mutex // guards of
	of map[string]*turns
}

// turns are the places of one business.
type turns struct {
	places chan struct{} // as many as are taken
	users  int           // who hold one, or wait; guarded by fairReads.mu
}

var _ bun.QueryHook = (*fairReads)(nil)

func newFairReads(readers int) *fairReads {
	return &fairReads{each: max(1, readers/2), of: map[string]*turns{}}
}

type placeTaken struct{} // the key, in a query's stash, of the turns that it holds a place of

// BeforeQuery takes a place for the viewer's business. Where ctx ends first there is none, and the query fails by itself.
func (f *fairReads) BeforeQuery(ctx context.Context, e *bun.QueryEvent) context.Context {
	v, err := ViewerOf(ctx)
	if err != nil {
		return ctx
	}
	t := f.enter(v.BusinessID)
	select {
	case t.places <- struct{}{}:
		if f.pause.enter(ctx) {
			e.Stash = map[any]any{placeTaken{}: t}
			return ctx
		}
		<-t.places
	case <-ctx.Done():
	}
	f.leave(v.BusinessID, t)
	return ctx
}

// AfterQuery gives the place back.
func (f *fairReads) AfterQuery(ctx context.Context, e *bun.QueryEvent) {
	t, ok := e.Stash[placeTaken{}].(*turns)
	if !ok {
		return
	}
	f.pause.leave()
	<-t.places
	if v, err := ViewerOf(ctx); err == nil {
		f.leave(v.BusinessID, t)
	}
}

func (f *fairReads) enter(business string) *turns {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.of[business]
	if t == nil {
		t = &turns{places: make(chan struct{}, f.each)}
		f.of[business] = t
	}
	t.users++
	return t
}

func (f *fairReads) leave(business string, t *turns) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(f.of, business)
	}
}
