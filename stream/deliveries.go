package stream

import (
	"context"
	"maps"
	"sync"
	"time"

	"parley/store"
	"parley/store/hook"
)

const (
	lookEvery    = 2 * time.Second // how often a reader of deliveries looks for itself while the stream is away, or after a loss
	lookAnyway   = 4 * time.Second // and otherwise: another replica may have lost a stroke, or died between a commit and its bell
	rungAtOnce   = 1000            // ids kept for a reader; beyond, it looks for itself
	lookedAtOnce = 5000            // changes a reading
)

// DeliverySubscription is one reader's view of the deliveries of a business: each change, as the row stands when it is
// read. Two changes in quick succession may be seen as one. The bell brings them at once; whatever it loses, a look finds.
type DeliverySubscription struct {
	hub      *Hub
	business string
	endpoint *string
	rang     chan struct{} // one stroke waits at most
	ticker   *time.Ticker
	seen     map[string]store.Time // when the rows seen lately had changed, so that none is shown twice
	looked   look                  // the last one that came to its end
	looking  *look                 // the one under way

	mu     sync.Mutex // guards what follows
	ids    []string   // deliveries
	events []string   // and events whose deliveries are new
	look   bool       // anything may have changed
}

// look is a walk along what has changed, oldest change first: everything that was committed until it began, since the last one did.
type look struct {
	began  store.Time
	losses int64                // that there had been by then
	at     store.DeliveryChange // how far it has got
}

// SubscribeDeliveries begins with what changes from now on. Close it after use.
func (h *Hub) SubscribeDeliveries(ctx context.Context, business string, endpoint *string) (*DeliverySubscription, error) {
	s := &DeliverySubscription{
		hub: h, business: business, endpoint: endpoint, rang: make(chan struct{}, 1), ticker: time.NewTicker(lookEvery), seen: map[string]store.Time{},
	}
	h.mu.Lock()
	if h.bells[business] == nil {
		h.bells[business] = map[*DeliverySubscription]struct{}{}
	}
	h.bells[business][s] = struct{}{}
	h.mu.Unlock()
	// Looks reach back behind this moment. What they will come upon there is known, and not shown, unless it changes.
	now := h.cfg.Store.Now()
	s.looked.began = now
	for more := true; more; more = s.looking != nil {
		changes, err := s.step(ctx)
		if err != nil {
			s.Close()
			return nil, err
		}
		for _, c := range changes {
			if c.ChangedAt < now {
				s.seen[c.DeliveryID] = c.ChangedAt
			}
		}
	}
	return s, nil
}

// ring notes what an entry tells of. It does not block.
func (s *DeliverySubscription) ring(e Entry) {
	s.mu.Lock()
	switch {
	case len(s.ids)+len(s.events) >= rungAtOnce || e.Seq == 0 && len(e.Deliveries) == 0:
		s.ids, s.events, s.look = nil, nil, true
	case e.Seq > 0:
		s.events = append(s.events, e.EventID)
	default:
		s.ids = append(s.ids, e.Deliveries...)
	}
	s.mu.Unlock()
	s.stroke()
}

// lookSoon has the next reading look.
func (s *DeliverySubscription) lookSoon() {
	s.mu.Lock()
	s.look = true
	s.mu.Unlock()
	s.stroke()
}

func (s *DeliverySubscription) stroke() {
	select {
	case s.rang <- struct{}{}:
	default:
	}
}

// overdue says whether it is time to look, though nobody rang.
func (s *DeliverySubscription) overdue() bool {
	cfg := s.hub.cfg
	switch {
	case cfg.NoPoll:
		return false
	case cfg.Ringing == nil || !cfg.Ringing() || s.losses() != s.looked.losses:
		return true
	}
	return cfg.Store.Now().Sub(s.looked.began) >= lookAnyway
}

func (s *DeliverySubscription) losses() int64 {
	if s.hub.cfg.Losses == nil {
		return 0
	}
	return s.hub.cfg.Losses()
}

// Next waits for changes and returns the changed deliveries, oldest change first. It ends with ctx's error, with
// store.ErrShuttingDown when the hub ends, or with a store.CodeCursorExpired if it could not look for so long that changes may be
// forgotten.
func (s *DeliverySubscription) Next(ctx context.Context) ([]*hook.Delivery, error) {
	for {
		select {
		case <-s.rang:
		case <-s.ticker.C:
			if s.overdue() {
				s.lookSoon()
			}
			continue
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.hub.closed:
			return nil, store.ErrShuttingDown
		}
		rows, err := s.read(ctx)
		if err != nil || len(rows) > 0 {
			return rows, err
		}
	}
}

// read reads the rows that the bell named, and that the next step of a look found.
func (s *DeliverySubscription) read(ctx context.Context) ([]*hook.Delivery, error) {
	s.mu.Lock()
	ids, events, look := s.ids, s.events, s.look
	s.ids, s.events, s.look = nil, nil, false
	s.mu.Unlock()
	var rows []*hook.Delivery
	err := s.hub.insist(ctx, func() error {
		if look {
			changes, err := s.step(ctx)
			if err != nil {
				return err
			}
			for _, c := range changes {
				if s.seen[c.DeliveryID] != c.ChangedAt {
					ids = append(ids, c.DeliveryID)
				}
			}
			look = false
		}
		if len(ids)+len(events) == 0 {
			return nil
		}
		var err error
		rows, err = s.hub.cfg.Store.DeliveriesRung(ctx, s.business, ids, events)
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.looking != nil {
		s.lookSoon()
	}
	var changed []*hook.Delivery
	for _, d := range rows {
		// Another instant is another change, an earlier one too: of two transactions the one that began first may write last.
		if s.seen[d.ID] == d.UpdatedAt {
			continue
		}
		s.seen[d.ID] = d.UpdatedAt
		if s.endpoint == nil || *s.endpoint == d.EndpointID {
			changed = append(changed, d)
		}
	}
	return changed, nil
}

// step goes a step on with the look under way, or begins one.
func (s *DeliverySubscription) step(ctx context.Context) ([]store.DeliveryChange, error) {
	if s.looking == nil {
		s.looking = &look{began: s.hub.cfg.Store.Now(), losses: s.losses()}
	}
	from := s.looked.began.Add(-store.LateCommit)
	changes, err := s.hub.cfg.Store.DeliveriesChanged(ctx, s.business, from, s.looking.at, lookedAtOnce)
	if err != nil {
		return nil, err
	}
	if len(changes) == lookedAtOnce {
		s.looking.at = changes[lookedAtOnce-1]
		return changes, nil
	}
	s.looked, s.looking = *s.looking, nil
	from = s.looked.began.Add(-store.LateCommit) // no look comes upon an earlier change any more
	maps.DeleteFunc(s.seen, func(_ string, at store.Time) bool { return at < from })
	return changes, nil
}

// Close ends the subscription.
func (s *DeliverySubscription) Close() {
	s.ticker.Stop()
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.bells[s.business], s)
	if len(s.hub.bells[s.business]) == 0 {
		delete(s.hub.bells, s.business)
	}
}
