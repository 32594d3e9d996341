package stream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"parley/store"
)

const (
	changedAtOnce = 100             // deliveries of a commit: who watches is told to query again if there are more
	waitingRows   = 1000            // that are named, and not read yet, or are read, and not taken yet by a subscriber
	watchers      = 200             // different subscriptions of a business: equal ones are one by now
	lossEvery     = time.Second     // how often losses are looked for
	shownRows     = 4 * waitingRows // of which it is known what was shown
)

var errChangesLost = store.Refuse(store.CodeCursorExpired, "changes_lost",
	"changes of deliveries were lost: read the query deliveries, and subscribe again")

// DeliverySubscription is one reader's view of the deliveries of a business: each change, as the row stands when it is read. Two
// changes in quick succession may be seen as one.
//
// What this server changes is told at once, whatever Redis does, and what others change comes by the stream. One goroutine a business
// reads each changed row once, for all subscriptions. What it cannot give to one, as a stroke of the bell was or may have been
// lost, or a subscriber has taken nothing for long, ends the subscription with an error: never in silence.
type DeliverySubscription struct {
	of       *watch
	endpoint *string
	wake     chan struct{} // one stroke waits at most

	// Guarded by watch.mu.
	rows []*store.Delivery
	err  error // what the subscription is to end with
}

// watch is what the subscribers to the deliveries of one business have in common.
type watch struct {
	hub      *Hub
	business string
	rang     chan struct{} // one stroke waits at most
	end      context.CancelFunc
	ended    chan struct{}

	mu          sync.Mutex // guards what follows; taken after Hub.mu
	subs        map[*DeliverySubscription]struct{}
	ids, events []string // deliveries that have changed, and events whose deliveries are new
	losses      int64    // that there had been when the last one was dealt with
	ringing     bool     // as it was then
}

// SubscribeDeliveries begins with what changes from now on. Close it after use.
func (h *Hub) SubscribeDeliveries(_ context.Context, business string, endpoint *string) (*DeliverySubscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.watches[business]
	if w == nil {
		ctx, end := context.WithCancel(context.Background())
		w = &watch{hub: h, business: business, rang: make(chan struct{}, 1), end: end, ended: make(chan struct{}), subs: map[*DeliverySubscription]struct{}{}}
		w.ringing, w.losses = w.bell()
		h.watches[business] = w
		go w.run(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.subs) >= watchers {
		return nil, store.Refuse(store.CodeInvalid, "limit_reached",
			fmt.Sprintf("a business may watch its deliveries by %d different subscriptions at a time", watchers))
	}
	s := &DeliverySubscription{of: w, endpoint: endpoint, wake: make(chan struct{}, 1)}
	w.subs[s] = struct{}{}
	return s, nil
}

// Changed takes what this server itself has committed. It does not block.
func (h *Hub) Changed(entries []Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range entries {
		if w := h.watches[e.BusinessID]; w != nil {
			w.ring(e)
		}
	}
}

// ring notes what an entry tells of.
func (w *watch) ring(e Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Seq > 0 {
		w.events = append(w.events, e.EventID)
	}
	w.ids = append(w.ids, e.Deliveries...)
	if len(e.Deliveries) > changedAtOnce || len(w.ids)+len(w.events) > waitingRows {
		w.lose()
	}
	stroke(w.rang)
}

func stroke(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// lose ends all subscriptions; mu is held.
func (w *watch) lose() {
	w.ids, w.events = nil, nil
	for s := range w.subs {
		s.fail(errChangesLost)
	}
}

// fail ends a subscription; watch.mu is held.
func (s *DeliverySubscription) fail(err error) {
	if s.err == nil {
		s.err, s.rows = err, nil
		stroke(s.wake)
	}
}

// bell says whether the stream rings, and how often it has lost something.
func (w *watch) bell() (ringing bool, losses int64) {
	cfg := w.hub.cfg
	if cfg.Alone {
		return true, 0
	}
	if cfg.Losses != nil {
		losses = cfg.Losses()
	}
	return cfg.Ringing != nil && cfg.Ringing(), losses
}

// check ends the subscriptions after a loss. While the stream is away all that others change is lost: who was there before is told so
// when it goes, and who has come meanwhile when it is back.
func (w *watch) check() {
	ringing, losses := w.bell()
	w.mu.Lock()
	defer w.mu.Unlock()
	if ringing != w.ringing || ringing && losses != w.losses {
		w.lose()
	}
	w.ringing, w.losses = ringing, losses
}

// run reads what has changed, until the last subscription ends.
func (w *watch) run(ctx context.Context) {
	defer close(w.ended)
	look := time.NewTicker(lossEvery)
	defer look.Stop()
	shown := map[string]store.Time{} // rows as they were shown last
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			w.check()
		case <-w.rang:
			w.check()
			rows, err := w.read(ctx)
			if ctx.Err() != nil {
				return
			}
			w.give(rows, err, shown)
		}
	}
}

// read reads the rows that were named.
func (w *watch) read(ctx context.Context) (rows []*store.Delivery, err error) {
	w.mu.Lock()
	ids, events := w.ids, w.events
	w.ids, w.events = nil, nil
	w.mu.Unlock()
	if len(ids)+len(events) == 0 {
		return nil, nil
	}
	err = w.hub.insist(ctx, func() error {
		rows, err = w.hub.cfg.Store.DeliveriesRung(ctx, w.business, ids, events)
		return err
	})
	return rows, err
}

// give hands rows to the subscriptions, or the error that they end with.
func (w *watch) give(rows []*store.Delivery, err error, shown map[string]store.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		for s := range w.subs {
			s.fail(err)
		}
	}
	for _, d := range rows {
		// Another instant is another change, an earlier one too: of two transactions the one that began first may write last.
		if shown[d.ID] == d.UpdatedAt {
			continue
		}
		if len(shown) >= shownRows {
			clear(shown)
		}
		shown[d.ID] = d.UpdatedAt
		for s := range w.subs {
			switch {
			case s.err != nil || s.endpoint != nil && *s.endpoint != d.EndpointID:
			case len(s.rows) >= waitingRows:
				s.fail(errChangesLost)
			default:
				s.rows = append(s.rows, d)
				stroke(s.wake)
			}
		}
	}
}

// Next waits for changes and returns the changed deliveries, oldest change first. It ends with ctx's error, with
// store.ErrShuttingDown when the hub ends, or with a store.CodeCursorExpired after a loss.
func (s *DeliverySubscription) Next(ctx context.Context) ([]*store.Delivery, error) {
	for {
		s.of.mu.Lock()
		rows, err := s.rows, s.err
		s.rows = nil
		s.of.mu.Unlock()
		if err != nil || len(rows) > 0 {
			return rows, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.of.hub.closed:
			return nil, store.ErrShuttingDown
		}
	}
}

// Close ends the subscription.
func (s *DeliverySubscription) Close() {
	if w := s.of; w.leave(s) {
		w.end()
		<-w.ended
	}
}

// leave takes a subscription away, and says whether it was the last one.
func (w *watch) leave(s *DeliverySubscription) bool {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.subs, s)
	last := len(w.subs) == 0 && w.hub.watches[w.business] == w
	if last {
		delete(w.hub.watches, w.business)
	}
	return last
}
