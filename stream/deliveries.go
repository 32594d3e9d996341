package stream

import (
	"context"
	"sync"
	"time"

	"parley/store"
)

const (
	lookEvery   = 2 * time.Second // how often a reader of deliveries looks for itself while the stream is away
	lookBack    = time.Hour       // and how old the deliveries may be among which it looks
	rungAtOnce  = 1000            // ids kept for a reader; beyond, it looks for itself
	lookedAtMax = 1000            // rows a look
)

// DeliverySubscription is one reader's view of the deliveries of a business: each change, as the row stands when it is
// read. Two changes in quick succession may be seen as one.
type DeliverySubscription struct {
	hub      *Hub
	business string
	endpoint *string
	rang     chan struct{}         // one stroke waits at most
	seen     map[string]store.Time // when the rows last shown had changed, so that none is shown twice
	since    store.Time

	mu     sync.Mutex // guards what follows
	ids    []string   // deliveries
	events []string   // and events whose deliveries are new
	look   bool       // anything may have changed
}

// SubscribeDeliveries begins with what changes from now on. Close it after use.
func (h *Hub) SubscribeDeliveries(business string, endpoint *string) *DeliverySubscription {
	s := &DeliverySubscription{
		hub: h, business: business, endpoint: endpoint, rang: make(chan struct{}, 1), seen: map[string]store.Time{}, since: h.cfg.Store.Now(),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bells[business] == nil {
		h.bells[business] = map[*DeliverySubscription]struct{}{}
	}
	h.bells[business][s] = struct{}{}
	return s
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
	select {
	case s.rang <- struct{}{}:
	default:
	}
}

// Next waits for changes and returns the changed deliveries, oldest change first.
func (s *DeliverySubscription) Next(ctx context.Context) ([]*store.Delivery, error) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.rang:
		case <-ticker.C:
			if s.hub.cfg.NoPoll || s.hub.cfg.Ringing != nil && s.hub.cfg.Ringing() {
				continue
			}
			s.mu.Lock()
			s.look = true
			s.mu.Unlock()
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

func (s *DeliverySubscription) read(ctx context.Context) ([]*store.Delivery, error) {
	s.mu.Lock()
	ids, events, look := s.ids, s.events, s.look
	s.ids, s.events, s.look = nil, nil, false
	s.mu.Unlock()
	var rows []*store.Delivery
	err := s.hub.insist(ctx, func() (err error) {
		switch {
		case look:
			rows, err = s.hub.cfg.Store.DeliveriesChanged(ctx, s.business, s.hub.cfg.Store.Now().Add(-lookBack), s.since, lookedAtMax)
		case len(ids)+len(events) > 0:
			rows, err = s.hub.cfg.Store.DeliveriesRung(ctx, s.business, ids, events)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if look && len(rows) == lookedAtMax {
		s.ring(Entry{}) // there is more
	}
	var changed []*store.Delivery
	for _, d := range rows {
		s.since = max(s.since, d.UpdatedAt)
		if s.seen[d.ID] >= d.UpdatedAt || s.endpoint != nil && *s.endpoint != d.EndpointID {
			continue
		}
		if len(s.seen) > 10*rungAtOnce {
			clear(s.seen)
		}
		s.seen[d.ID] = d.UpdatedAt
		changed = append(changed, d)
	}
	return changed, nil
}

// Close ends the subscription.
func (s *DeliverySubscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.bells[s.business], s)
	if len(s.hub.bells[s.business]) == 0 {
		delete(s.hub.bells, s.business)
	}
}
