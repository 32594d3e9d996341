package stream

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"parley/store"
)

const (
	gapPatience = 5 * time.Millisecond // how long an entry waits for those before it, before SQL is asked for them
	pollEvery   = time.Second          // how often sequences are compared with SQL: the whole fallback without Redis
	ringEvents  = 1024                 // events a feed remembers for its subscribers
	ringBytes   = 4 << 20              // and their documents' bytes
	catchUpPage = 500                  // events a read from SQL
	readAgain   = 250 * time.Millisecond
)

// HubConfig is what a Hub is made with.
type HubConfig struct {
	Store   *store.Store
	Ringing func() bool  // whether the stream can be relied on; nil: it cannot
	Losses  func() int64 // how often entries were, or may have been, lost; nil: nobody counts
	Alone   bool         // no other server changes anything: nothing is lost with the stream but what this one commits itself
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
		if f := h.feeds[e.BusinessID]; f != nil && e.Seq > 0 && f.offer(e) {
			h.missing(f)
		}
	}
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
			h.poll(ctx)
		}
	}
}

// insist repeats a reader's reading for as long as the database is away, until ctx or the hub ends: readers wait, as everything does.
func (h *Hub) insist(ctx context.Context, read func() error) error {
	for {
		err := read()
		if refusal, ok := store.AsError(err); !ok || refusal.Code != store.CodeUnavailable {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.closed:
			return store.ErrShuttingDown
		case <-time.After(readAgain):
		}
	}
}

// fill reads from SQL what lies between a feed's last event and the highest number that it knows of.
func (h *Hub) fill(ctx context.Context, f *feed) {
	for {
		after, upTo := f.gap()
		if after >= upTo || ctx.Err() != nil {
			return
		}
		events, err := h.cfg.Store.EventsAfter(ctx, f.business, after, upTo, nil, catchUpPage)
		if err != nil || len(events) == 0 {
			if err != nil && ctx.Err() == nil {
				h.cfg.Log.Warn("fill a gap of a feed", "business", f.business, "after", after, "error", err)
			}
			return // the next poll tries again
		}
		if events[0].Seq > after+1 {
			f.jump(events[0].Seq - 1) // retention has removed what lay between: who has not seen it is told so when it catches up
		}
		f.take(events)
	}
}

// poll compares all feeds with SQL, in one statement.
func (h *Hub) poll(ctx context.Context) {
	h.mu.Lock()
	feeds := make(map[string]*feed, len(h.feeds))
	businesses := make([]string, 0, len(h.feeds))
	for b, f := range h.feeds {
		feeds[b] = f
		businesses = append(businesses, b)
	}
	h.mu.Unlock()
	for len(businesses) > 0 {
		n := min(len(businesses), catchUpPage)
		extents, err := h.cfg.Store.Extents(ctx, businesses[:n]...)
		if err != nil {
			if ctx.Err() == nil {
				h.cfg.Log.Warn("compare the feeds with SQL", "error", err)
			}
			return
		}
		for _, e := range extents {
			if feeds[e.BusinessID].behind(e.Last) {
				h.fill(ctx, feeds[e.BusinessID])
			}
		}
		businesses = businesses[n:]
	}
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
	changed chan struct{}          // closed when last moves on
}

func newFeed(business string) *feed {
	return &feed{business: business, pending: map[int64]*store.Event{}, changed: make(chan struct{})}
}

// offer takes an entry, and says whether something before it, or its own document, is missing.
func (f *feed) offer(e Entry) (missing bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = max(f.known, e.Seq)
	if f.loaded && e.Seq <= f.last {
		return false
	}
	if e.Body != nil && len(f.pending) < ringEvents {
		if event, err := store.ParseEvent(e.Body, e.Seq); err == nil {
			f.pending[e.Seq] = event
		}
	}
	f.advance()
	return f.loaded && f.known > f.last
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
// got; or what to wait for.
func (f *feed) after(seq int64) (events []*store.Event, last int64, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.last - seq
	if n > 0 && n <= int64(len(f.ring)) {
		events = f.ring[int64(len(f.ring))-n:]
	}
	return events, f.last, f.changed
}
