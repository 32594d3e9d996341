package stream

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"parley/store"
	"parley/store/hook"
)

const (
	gapPatience = 5 * time.Millisecond // how long an entry waits for those before it, before SQL is asked for them
	pollEvery   = time.Second          // how often sequences are compared with SQL: the whole fallback without Redis
	ringEvents  = 1024                 // events a feed remembers for its subscribers
	ringBytes   = 4 << 20              // and their documents' bytes
	catchUpPage = 500                  // events a read from SQL
	readAgain   = 250 * time.Millisecond
	askAgain    = 500 * time.Millisecond // how soon SQL is asked again whose numbers seem to have gone back
)

// HubConfig is what a Hub is made with.
type HubConfig struct {
	Store   *store.Store
	Hooks   *hook.Hooks
	Ringing func() bool  // whether the stream can be relied on; nil: it cannot
	Losses  func() int64 // how often entries were, or may have been, lost; nil: nobody counts
	Alone   bool         // no other server changes anything: nothing is lost with the stream but what this one commits itself
	Pages   *Pages       // what subscriptions catch up by; nil: pages of the hub's own
	// TellEvery is after how long a subscription whose filter selects nothing says how far it has looked; 5 s if 0, less than the
	// time between keep-alives, which carry it.
	TellEvery time.Duration

	NoPoll bool // never compare with SQL: a seam for tests
	Log    *slog.Logger
}

// Hub serves the feeds of the businesses that have subscribers here. Feed it with Offer, and Run it.
type Hub struct {
	cfg     HubConfig
	gaps    chan *feed // feeds that miss something
	back    Regress    // Run's own
	mu      sync.Mutex // guards feeds and watches; never held while reading SQL
	feeds   map[string]*feed
	watches map[string]*watch
	closed  chan struct{}
}

// NewHub makes a hub.
func NewHub(cfg HubConfig) *Hub {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.TellEvery = cmp.Or(cfg.TellEvery, 5*time.Second)
	if cfg.Pages == nil {
		cfg.Pages = NewPages(cfg.Store)
	}
	return &Hub{
		cfg: cfg, gaps: make(chan *feed, 1024), feeds: map[string]*feed{},
		watches: map[string]*watch{}, closed: make(chan struct{}),
	}
}

// Offer takes what the reader has read. It does not block.
func (h *Hub) Offer(entries []Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range entries {
		if w := h.watches[e.BusinessID]; w != nil && !e.Own {
			w.ring(e)
		}
		if f := h.feeds[e.BusinessID]; f != nil && e.Seq > 0 {
			switch missing, other := f.offer(e); {
			case other:
				h.regressed(f)
			case missing:
				h.missing(f)
			}
		}
	}
}

// regressed ends the subscriptions of a feed that has given out events which the database has lost, and forgets it: whoever
// subscribes now begins anew. mu is held.
func (h *Hub) regressed(f *feed) {
	if h.feeds[f.business] == f {
		delete(h.feeds, f.business)
	}
	f.lose()
	h.cfg.Pages.Forget(f.business)
	h.cfg.Log.Error("the database has lost events that subscribers were given: their subscriptions end", "business", f.business)
}

// missing asks Run to look after a feed that misses something. If there is no room to ask, the next poll notices.
func (h *Hub) missing(f *feed) {
	select {
	case h.gaps <- f:
	default:
	}
}

// Run fills gaps and compares the feeds with SQL, until ctx ends. Then every subscription ends.
func (h *Hub) Run(ctx context.Context) error {
	defer close(h.closed)
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	if h.cfg.NoPoll {
		poll.Stop()
	}
	patience := time.NewTimer(0)
	defer patience.Stop()
	waiting := map[*feed]struct{}{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-h.gaps:
			if len(waiting) == 0 {
				patience.Reset(gapPatience)
			}
			waiting[f] = struct{}{}
		case <-patience.C:
			for f := range waiting {
				h.fill(ctx, f)
			}
			clear(waiting)
		case <-poll.C:
			if h.poll(ctx) {
				poll.Reset(askAgain)
			} else {
				poll.Reset(pollEvery)
			}
		}
	}
}

// pause is how long a reader waits before it reads again, until ctx or the hub ends.
func (h *Hub) pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h.closed:
		return store.ErrShuttingDown
	case <-time.After(readAgain):
		return nil
	}
}

// insist repeats a reader's reading for as long as the database is away, until ctx or the hub ends: readers wait, as everything does.
func (h *Hub) insist(ctx context.Context, read func() error) error {
	for {
		err := read()
		if refusal, ok := store.AsError(err); !ok || refusal.Code != store.CodeUnavailable {
			return err
		}
		if err := h.pause(ctx); err != nil {
			return err
		}
	}
}

// fill reads from SQL what lies between a feed's last event and the highest number that it knows of. It reads the last one, too: if
// that is another one by now, a failover has lost it, and gave its number away.
func (h *Hub) fill(ctx context.Context, f *feed) {
	for {
		after, upTo := f.gap()
		if after >= upTo || ctx.Err() != nil {
			return
		}
		events, err := h.cfg.Store.EventsAfter(ctx, f.business, after-1, upTo, nil, catchUpPage)
		if err != nil && ctx.Err() == nil {
			h.cfg.Log.Log(ctx, h.cfg.Store.Level(err), "fill a gap of a feed", "business", f.business, "after", after, "error", err)
		}
		if len(events) > 0 && events[0].Seq == after {
			if f.gaveAnother(after, events[0].ID) {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.regressed(f)
				return
			}
			events = events[1:]
		}
		if len(events) == 0 {
			return // the next poll tries again
		}
		if events[0].Seq > after+1 {
			f.jump(events[0].Seq - 1) // retention has removed what lay between: who has not seen it is told so when it catches up
		}
		f.take(events)
	}
}

// poll compares all feeds with SQL. It says whether it is to be repeated soon: SQL seems to have gone back.
func (h *Hub) poll(ctx context.Context) (again bool) {
	h.mu.Lock()
	feeds := maps.Clone(h.feeds)
	h.mu.Unlock()
	seen := make(map[string]int64, len(feeds))
	for b, f := range feeds { // before SQL is asked, which by then has that much
		seen[b], _ = f.gap()
	}
	extents, err := h.cfg.Store.Extents(ctx, slices.Collect(maps.Keys(seen))...)
	if err != nil {
		if ctx.Err() == nil {
			h.cfg.Log.Log(ctx, h.cfg.Store.Level(err), "compare the feeds with SQL", "error", err)
		}
		return false
	}
	lost, doubt := h.back.Compare(seen, extents)
	h.mu.Lock()
	for _, b := range lost {
		h.regressed(feeds[b])
		delete(feeds, b)
	}
	h.mu.Unlock()
	for _, e := range extents {
		if f := feeds[e.BusinessID]; f != nil && f.behind(e.Last) {
			h.fill(ctx, f)
		}
	}
	return doubt
}

// Regress finds businesses whose numbers have gone back: a failover has lost the last commits. What SQL says once may have been read
// where it is not known yet; said twice in a row, it is so.
type Regress struct {
	doubted map[string]bool
}

// Compare takes what was seen of businesses, and what SQL said of them after that. It returns those that SQL is behind of for the
// second time, and whether there are any for the first: ask again soon.
func (r *Regress) Compare(seen map[string]int64, extents []store.Extent) (lost []string, doubt bool) {
	last := make(map[string]int64, len(extents))
	for _, e := range extents {
		last[e.BusinessID] = e.Last
	}
	doubted := map[string]bool{}
	for b, n := range seen {
		switch {
		case n <= last[b]:
		case r.doubted[b]:
			lost = append(lost, b)
		default:
			doubted[b] = true
		}
	}
	r.doubted = doubted
	return lost, len(doubted) > 0
}

// feed is what the hub knows of one business: its last events, without a gap.
type feed struct {
	business string
	subs     int // guarded by Hub.mu

	mu      sync.Mutex // guards what follows; never held across a call into another package
	loaded  bool       // last is known
	last    int64      // the number of the last event of ring, or where the feed began
	known   int64      // the highest number heard of
	ring    []*store.Event
	bytes   int
	pending map[int64]*store.Event // heard, but not in turn yet
	changed chan struct{}          // closed when last moves on, or the feed is lost
	lost    bool                   // the database has lost some of what it gave
}

func newFeed(business string) *feed {
	return &feed{business: business, pending: map[int64]*store.Event{}, changed: make(chan struct{})}
}

// offer takes an entry, and says whether something before it, or its own document, is missing; or whether it is another one than
// the feed has given with that number.
func (f *feed) offer(e Entry) (missing, other bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = max(f.known, e.Seq)
	if f.loaded && e.Seq <= f.last {
		return false, f.gaveAnotherLocked(e.Seq, e.EventID)
	}
	if e.Body != nil && len(f.pending) < ringEvents {
		if event, err := store.ParseEvent(e.Body, e.Seq); err == nil {
			f.pending[e.Seq] = event
		}
	}
	f.advance()
	return f.loaded && f.known > f.last, false
}

// gaveAnother says whether the feed has given another event with that number than the one with this id, as far as it remembers.
func (f *feed) gaveAnother(seq int64, id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gaveAnotherLocked(seq, id)
}

// gaveAnotherLocked is gaveAnother, with mu held.
func (f *feed) gaveAnotherLocked(seq int64, id string) bool {
	i := int64(len(f.ring)) - 1 - (f.last - seq)
	return i >= 0 && i < int64(len(f.ring)) && f.ring[i].ID != id
}

// lose ends the feed.
func (f *feed) lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.lost {
		f.lost = true
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// begin sets where the feed starts; what was heard meanwhile follows.
func (f *feed) begin(last int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.loaded {
		return
	}
	f.loaded, f.last = true, last
	for seq := range f.pending {
		if seq <= last {
			delete(f.pending, seq)
		}
	}
	f.advance()
}

// jump moves the feed on over events that are no more.
func (f *feed) jump(to int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if to > f.last {
		f.last, f.ring, f.bytes = to, nil, 0
		for seq := range f.pending {
			if seq <= to {
				delete(f.pending, seq)
			}
		}
	}
}

// take adds events read from SQL, which follow one another.
func (f *feed) take(events []*store.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		if e.Seq > f.last {
			f.pending[e.Seq] = e
		}
	}
	f.advance()
}

// advance moves what is next in turn from pending to the ring, and wakes the subscribers.
func (f *feed) advance() {
	if !f.loaded {
		return
	}
	moved := false
	for e := f.pending[f.last+1]; e != nil; e = f.pending[f.last+1] {
		delete(f.pending, e.Seq)
		f.last = e.Seq
		f.known = max(f.known, e.Seq)
		f.ring = append(f.ring, e)
		f.bytes += len(e.Body)
		moved = true
	}
	drop := 0
	for len(f.ring)-drop > ringEvents || f.bytes > ringBytes && len(f.ring)-drop > 1 {
		f.bytes -= len(f.ring[drop].Body)
		drop++
	}
	if drop > 0 {
		f.ring = append(f.ring[:0:0], f.ring[drop:]...)
	}
	if moved {
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

func (f *feed) gap() (after, upTo int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last, f.known
}

// behind notes the number of the business's last event, and says whether the feed has not got there.
func (f *feed) behind(last int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = max(f.known, last)
	return f.loaded && f.last < f.known
}

// after returns the remembered events after a number; or, where the ring does not reach back that far, how far the feed has
// got; or what to wait for; or that the feed is lost.
func (f *feed) after(seq int64) (events []*store.Event, last int64, changed <-chan struct{}, lost bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.last - seq
	if n > 0 && n <= int64(len(f.ring)) {
		events = f.ring[int64(len(f.ring))-n:]
	}
	return events, f.last, f.changed, f.lost
}
