package stream

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"parley/lru"
	"parley/store"
)

// Pages reads events for viewers that resume. What several want at a time is read once, and kept
// for a moment, in a cache that is bounded in bytes and shared by business: one that catches up on
// much pushes out what is its own.
type Pages struct {
	store  *store.Store
	flight singleflight.Group
	events *lru.Cache[place, kept[*store.Event]]

	mu    sync.Mutex     // guards times
	times map[string]int // how often what was read of a business was forgotten
}

// PageNumbers is how many numbers are read at once, without a filter from a multiple of it; with
// one so many events.
const PageNumbers = 256

const (
	eventsBytes = 8 << 20
	// pagesLife is for how long what was read is given out. Events do not change, but a failover may lose them, and give their
	// numbers to others.
	pagesLife = 5 * time.Second
	eventSize = 512 // what an event takes beside its document
)

type place struct {
	business string
	time     int   // of the business: what was read in an earlier one is not found
	n        int64 // an event's number
}

type kept[T any] struct {
	value T
	until time.Time
}

// NewPages makes the reader of a store's feeds, one for all who catch up.
func NewPages(s *store.Store) *Pages {
	return &Pages{
		store: s, events: lru.New[place, kept[*store.Event]](eventsBytes, eventsBytes/4),
		times: map[string]int{},
	}
}

// Forget forgets what was read of a business: the database has lost some of it.
func (p *Pages) Forget(business string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times[business]++
}

func (p *Pages) timeOf(business string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.times[business]
}

// pageOf is the page in which a number stands.
func pageOf(seq int64) int64 { return (seq - 1) / PageNumbers }

// Events are the events of these numbers, which stand in order: all that are still kept, in order.
func (p *Pages) Events(ctx context.Context, business string, seqs []int64) ([]*store.Event, error) {
	var events []*store.Event
	var missing []int64
	at, now := p.timeOf(business), time.Now()
	for _, seq := range seqs {
		if k, ok := p.events.Get(place{business, at, seq}); ok && now.Before(k.until) {
			events = append(events, k.value)
		} else {
			missing = append(missing, seq)
		}
	}
	if len(missing) == 0 {
		return events, nil
	}
	v, err := p.once(ctx, fmt.Sprint("events ", missing, at, business), func(ctx context.Context) (any, error) {
		read, err := p.store.EventsAt(ctx, business, missing)
		for _, e := range read {
			p.events.Put(business, place{business, at, e.Seq}, kept[*store.Event]{e, time.Now().Add(pagesLife)}, len(e.Body)+eventSize)
		}
		return read, err
	})
	if err != nil {
		return nil, err
	}
	read := v.([]*store.Event)
	if len(events) == 0 {
		return read, nil
	}
	events = append(events, read...)
	slices.SortFunc(events, func(a, b *store.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return events, nil
}

// after reads the next events of a feed that a filter selects, after a number and up to another, and says how far that goes. It
// refuses with store.ErrCursorExpired where retention has removed what comes after the number.
func (p *Pages) after(ctx context.Context, business string, at, upTo int64, filter *store.EventFilter) (events []*store.Event, through int64, err error) {
	var seqs []int64
	if filter.All() {
		for through = at; through < upTo && pageOf(through+1) == pageOf(at+1); {
			through++
			seqs = append(seqs, through)
		}
	} else {
		if seqs, err = p.store.Matching(ctx, business, at, upTo, filter, PageNumbers); err != nil {
			return nil, 0, err
		}
		if through = upTo; len(seqs) == PageNumbers {
			through = seqs[len(seqs)-1]
		}
	}
	if events, err = p.Events(ctx, business, seqs); err != nil {
		return nil, 0, err
	}
	if filter.All() && len(events) == len(seqs) {
		return events, through, nil
	}
	// Asked after the read: what retention removed before it, it removed before this.
	extent, err := p.store.Extent(ctx, business)
	if err == nil && at < extent.Pruned {
		err = store.ErrCursorExpired
	}
	if filter.All() { // what is missing else was lost, or is not to be seen yet
		for through = at; len(events) > int(through-at) && events[through-at].Seq == through+1; {
			through++
		}
		events = events[:through-at]
	}
	return events, through, err
}

// once runs read once for all who ask for the same at a time. It goes on for the others when one of them leaves.
func (p *Pages) once(ctx context.Context, key string, read func(context.Context) (any, error)) (any, error) {
	done := p.flight.DoChan(key, func() (any, error) { return read(context.WithoutCancel(ctx)) })
	select {
	case r := <-done:
		return r.Val, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
