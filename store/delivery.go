package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/uptrace/bun"
)

// Delivery is one event on its way to one endpoint. While it waits it has a NextAttemptAt: the time when it is due or,
// while it is Leased, when whoever holds it for sending must have written the outcome. One that nobody has tried or holds is
// due at 0: its turn is by its sequence. One that has ended has none. One that is sent again has an instant, tried or not.
type Delivery struct {
	bun.BaseModel `bun:"table:deliveries,alias:delivery"`

	ID            string         `bun:"id,pk"`
	BusinessID    string         `bun:"business_id"`
	EndpointID    string         `bun:"endpoint_id"`
	EventID       string         `bun:"event_id"`
	Seq           int64          `bun:"seq"`  // of the event
	Lane          string         `bun:"lane"` // of the event: what is kept in order at the endpoint
	Status        DeliveryStatus `bun:"status"`
	Attempts      int            `bun:"attempts"`
	Leased        bool           `bun:"leased"`
	NextAttemptAt *Time          `bun:"next_attempt_at"`
	Trigger       AttemptTrigger `bun:"trigger_name"` // why the next attempt is made, or the last one was
	Base          int            `bun:"base"`         // attempts made before it was last sent again: retries count from there
	ReplayID      *string        `bun:"replay_id"`    // the replay that sends it
	CreatedAt     Time           `bun:"created_at"`
	UpdatedAt     Time           `bun:"updated_at"` // when its status or attempts last changed

	// FirstAttempt is the first one as a document, where it was made before the delivery had a row. All others are rows.
	FirstAttempt *string `bun:"first_attempt"`
}

// DueAt is when the next attempt is due; nil while one is being made, and after the last.
func (d *Delivery) DueAt() *Time {
	switch {
	case d.Leased:
		return nil
	case d.NextAttemptAt != nil && *d.NextAttemptAt == 0:
		return &d.CreatedAt
	}
	return d.NextAttemptAt
}

// Attempt is one try to deliver. As JSON it is what a delivery's row has of its first one.
type Attempt struct {
	bun.BaseModel `bun:"table:attempts,alias:attempt" json:"-"`

	DeliveryID   string         `bun:"delivery_id,pk" json:"-"`
	Number       int            `bun:"number,pk" json:"-"` // from 1
	Trigger      AttemptTrigger `bun:"trigger_name" json:"-"`
	StartedAt    Time           `bun:"started_at" json:"started_at"`
	DurationMs   int            `bun:"duration_ms" json:"duration_ms"`
	StatusCode   *int           `bun:"status_code" json:"status_code,omitempty"`
	Error        *string        `bun:"error" json:"error,omitempty"`                 // why it failed; nil for a success
	ResponseBody *string        `bun:"response_body" json:"response_body,omitempty"` // the first 16 KiB of the answer
	Timings
	NextAttemptAt *Time `bun:"next_attempt_at" json:"next_attempt_at,omitempty"` // when the next one was due, as this one left it
}

// Timings are what an attempt's time went into, each in milliseconds for itself: nil where it did not happen, as with a
// connection that is used again. FirstByteMs counts from the attempt's start.
type Timings struct {
	DNSMs         *int    `bun:"dns_ms" json:"dns_ms,omitempty"`
	ConnectMs     *int    `bun:"connect_ms" json:"connect_ms,omitempty"`
	TLSMs         *int    `bun:"tls_ms" json:"tls_ms,omitempty"`
	FirstByteMs   *int    `bun:"first_byte_ms" json:"first_byte_ms,omitempty"`
	RemoteAddress *string `bun:"remote_address" json:"remote_address,omitempty"` // who was connected to, host and port
}

// attemptIn reads the first attempt in a delivery's row.
func attemptIn(d *Delivery) (*Attempt, error) {
	a := &Attempt{DeliveryID: d.ID, Number: 1, Trigger: TriggerAutomatic}
	if err := json.Unmarshal([]byte(*d.FirstAttempt), a); err != nil {
		return nil, fmt.Errorf("the first attempt of %s: %w", d.ID, err)
	}
	return a, nil
}

// deliveriesFor makes the deliveries of the transaction's events: one for each of their businesses' endpoints that wants the event,
// skipped where the endpoint is disabled. With the stream ringing, the worker gets the event at once and needs no claim: then they
// are born together, with a lease. If the bell is lost, the lease ends and they are due.
func (s *Store) deliveriesFor(t *tx, endpoints []*Endpoint) (born []*FanOut, deliveries []*Delivery) {
	ringing := s.cfg.Ringing != nil && s.cfg.Ringing()
	var due Time
	for _, e := range t.events {
		f := &FanOut{
			EventID: e.ID, BusinessID: e.BusinessID, Shard: ShardOf(e.BusinessID), Seq: e.Seq, Lane: e.Lane(),
			LeaseUntil: t.now.Add(s.cfg.FirstLease), CreatedAt: t.now,
		}
		for _, p := range endpoints {
			if p.BusinessID != e.BusinessID || !p.wants(e) {
				continue
			}
			id := newID("dlv")
			t.change(e.BusinessID, id)
			if ringing && p.Status == Enabled {
				f.Deliveries = append(f.Deliveries, [2]string{id, p.ID})
				continue
			}
			d := &Delivery{
				ID: id, BusinessID: e.BusinessID, EndpointID: p.ID, EventID: e.ID, Seq: e.Seq, Lane: f.Lane,
				Status: Pending, NextAttemptAt: &due, Trigger: TriggerAutomatic, CreatedAt: t.now, UpdatedAt: t.now,
			}
			if p.Status == Disabled {
				d.Status, d.NextAttemptAt = Skipped, nil
			}
			deliveries = append(deliveries, d)
		}
		if len(f.Deliveries) > 0 {
			born = append(born, f)
		}
	}
	return born, deliveries
}

var errDeliveryNotFound = refuse(CodeNotFound, "delivery_not_found", "there is no such delivery")

// Delivery reads a delivery of a business.
func (s *Store) Delivery(ctx context.Context, business, id string) (*Delivery, error) {
	var rows []*Delivery
	born := s.shownBorn(" AND f.deliveries LIKE ?", listing(id))
	this := func(q *bun.SelectQuery) *bun.SelectQuery { return q.Where("id = ? AND business_id = ?", id, business) }
	if err := s.atOnce(this(s.shownRows()), this(born)).Scan(ctx, &rows); err != nil {
		return nil, fmt.Errorf("read delivery %s: %w", id, err)
	}
	if len(rows) == 0 {
		return nil, errDeliveryNotFound
	}
	return rows[0], nil
}

// DeliveryFilter selects deliveries of a business.
type DeliveryFilter struct {
	EndpointID *string
	Status     *DeliveryStatus
}

// Deliveries reads a page of a business's deliveries, newest first.
func (s *Store) Deliveries(ctx context.Context, business string, filter DeliveryFilter, page PageInput) (*DeliveryConnection, error) {
	written, err := filter.page(s.shownRows(), business, page)
	if err != nil {
		return nil, err
	}
	born, err := page.after(filter.narrow(s.shownBorn(""), business), "id", newestFirst)
	if err != nil {
		return nil, err
	}
	rows, err := s.newest(ctx, page.First+1, written, born)
	if err != nil {
		return nil, fmt.Errorf("read deliveries: %w", err)
	}
	return deliveryConnection(rows, page), nil
}

// newest reads the newest n deliveries of several queries, and keeps no more than a few at a time: those without rows have no order in
// SQL, and can be as many as were made in the last seconds.
func (s *Store) newest(ctx context.Context, n int, of ...*bun.SelectQuery) ([]*Delivery, error) {
	query, args := together(of)
	found, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close() }()
	var rows []*Delivery
	for found.Next() {
		d := new(Delivery)
		if err := s.read.ScanRow(ctx, found, d); err != nil {
			return nil, err
		}
		if rows = append(rows, d); len(rows) >= 2*n+keptAtLeast {
			slices.SortFunc(rows, newestFirstByID)
			clear(rows[n:])
			rows = rows[:n]
		}
	}
	return rows, found.Err()
}

const keptAtLeast = 100

func newestFirstByID(a, b *Delivery) int { return strings.Compare(b.ID, a.ID) }

// page narrows q down to a page of what the filter selects.
func (f DeliveryFilter) page(q *bun.SelectQuery, business string, page PageInput) (*bun.SelectQuery, error) {
	return page.keyset(f.narrow(q, business), "id", newestFirst)
}

func (f DeliveryFilter) narrow(q *bun.SelectQuery, business string) *bun.SelectQuery {
	q = q.Where("business_id = ?", business)
	if f.EndpointID != nil {
		q = q.Where("endpoint_id = ?", *f.EndpointID)
	}
	if f.Status != nil {
		q = q.Where("("+shownStatusSQL+") = ?", *f.Status)
	}
	return q
}

// deliveryConnection makes a page of rows, of which there may be more than it takes, in any order.
func deliveryConnection(rows []*Delivery, page PageInput) *DeliveryConnection {
	slices.SortFunc(rows, newestFirstByID)
	edges, info := pageOf(rows, page, func(d *Delivery) string { return d.ID })
	return &DeliveryConnection{Edges: edges, PageInfo: info}
}

// DeliveriesOf reads the same page of each endpoint's deliveries, newest first, by endpoint.
func (s *Store) DeliveriesOf(ctx context.Context, business string, endpoints []string, status *DeliveryStatus, page PageInput) (map[string]*DeliveryConnection, error) {
	born, err := page.after(DeliveryFilter{Status: status}.narrow(s.shownBorn(""), business), "id", newestFirst)
	if err != nil {
		return nil, err
	}
	rows := make(map[string][]*Delivery, len(endpoints))
	err = s.eachAtOnce(endpoints, func(endpoint string) (*bun.SelectQuery, error) {
		filter := DeliveryFilter{EndpointID: &endpoint, Status: status}
		return filter.page(s.shownRows(), business, page)
	}, func(pages []*bun.SelectQuery, endpoints []string) error {
		var all []*Delivery
		if err := s.atOnce(append(pages, born.Clone().Where("endpoint_id IN (?)", bun.List(endpoints)))...).Scan(ctx, &all); err != nil {
			return fmt.Errorf("read the deliveries of %d endpoints: %w", len(endpoints), err)
		}
		for _, d := range all {
			rows[d.EndpointID] = append(rows[d.EndpointID], d)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	of := make(map[string]*DeliveryConnection, len(endpoints))
	for _, endpoint := range endpoints {
		of[endpoint] = deliveryConnection(rows[endpoint], page)
	}
	return of, nil
}

// AttemptsOf reads the attempts of some deliveries, in their order.
func (s *Store) AttemptsOf(ctx context.Context, deliveries []string) (map[string][]*Attempt, error) {
	var attempts []*Attempt
	err := s.read.NewSelect().Model(&attempts).Where("delivery_id IN (?)", bun.List(deliveries)).Order("delivery_id", "number").Scan(ctx)
	var first []*Delivery // read last: where there is a later attempt, there is this one
	if err == nil {
		err = s.read.NewSelect().Model(&first).Column("id", "first_attempt").Where("id IN (?) AND first_attempt IS NOT NULL", bun.List(deliveries)).Scan(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("read the attempts of %d deliveries: %w", len(deliveries), err)
	}
	of := make(map[string][]*Attempt, len(deliveries))
	for _, d := range first {
		a, err := attemptIn(d)
		if err != nil {
			return nil, err
		}
		of[d.ID] = append(of[d.ID], a)
	}
	for _, a := range attempts {
		of[a.DeliveryID] = append(of[a.DeliveryID], a)
	}
	return of, nil
}

// DeliveriesRung reads the current rows of deliveries that the bell named, by their own ids or their events', oldest change
// first.
func (s *Store) DeliveriesRung(ctx context.Context, business string, ids, events []string) ([]*Delivery, error) {
	rows, err := s.shown(ctx, func(q *bun.SelectQuery) *bun.SelectQuery {
		return q.Where("business_id = ?", business).WhereGroup(" AND ", func(q *bun.SelectQuery) *bun.SelectQuery {
			return q.Where("id IN (?)", bun.List(append([]string{""}, ids...))).WhereOr("event_id IN (?)", bun.List(append([]string{""}, events...)))
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read %d deliveries: %w", len(ids)+len(events), err)
	}
	slices.SortFunc(rows, func(a, b *Delivery) int {
		return cmp.Or(cmp.Compare(a.UpdatedAt, b.UpdatedAt), strings.Compare(a.ID, b.ID))
	})
	return rows, nil
}
