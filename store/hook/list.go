package hook

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/uptrace/bun"

	"parley/store"
)

// DeliveryFilter selects deliveries of a business.
type DeliveryFilter struct {
	EndpointID *string
	Status     *store.DeliveryStatus
}

// shown selects deliveries as readers are to see them: what waits and is over by the rule has ended.
func (h *Hooks) shown() *bun.SelectQuery {
	return h.store.Reader().NewSelect().Model((*Delivery)(nil)).ExcludeColumn("status", "due").
		ColumnExpr("CASE WHEN d.due IS NOT NULL AND " + overSQL + " THEN " + endedSQL + " ELSE d.status END AS status").
		ColumnExpr("CASE WHEN d.due IS NOT NULL AND " + overSQL + " THEN NULL ELSE d.due END AS due")
}

// Delivery reads a delivery of a business.
func (h *Hooks) Delivery(ctx context.Context, business, id string) (*Delivery, error) {
	d := new(Delivery)
	q := h.shown().Where("d.business_id = ?", business)
	if event, endpoint, ok := readID(id); ok {
		q = q.Where("d.endpoint_id = ? AND d.event_id = ? AND d.seq = COALESCE((SELECT seq FROM events WHERE id = ?), (SELECT seq FROM test_events WHERE id = ?))",
			endpoint, event, event, event)
	} else {
		q = q.Where("d.old_id = ?", id)
	}
	err := q.Scan(ctx, d)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errDeliveryNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read delivery %s: %w", id, err)
	}
	return d, nil
}

// place is where a delivery stands in the lists: newest first, by number, event and endpoint.
type place struct {
	seq             int64
	event, endpoint string
}

// Key is the delivery's key as a text: the cursors of the lists hold it, and AttemptsOf takes it.
func (d *Delivery) Key() string { return fmt.Sprintf("%d,%s,%s", d.Seq, d.EventID, d.EndpointID) }

func readKey(key string) (*place, bool) {
	parts := strings.Split(key, ",")
	if len(parts) != 3 {
		return nil, false
	}
	seq, err := strconv.ParseInt(parts[0], 10, 64)
	return &place{seq, parts[1], parts[2]}, err == nil
}

// readPlace is the place that a page begins after; nil for the first one.
func readPlace(page store.PageInput) (*place, error) {
	text, faults := page.Place()
	if text == "" || faults != nil {
		return nil, faults.Err()
	}
	if at, ok := readKey(text); ok {
		return at, nil
	}
	return nil, store.Faults{store.ValueError("this is not a cursor of this list")}.Under("after").Err()
}

// newest adds a page's order and limits: the rows after a place.
func newest(q *bun.SelectQuery, after *place, n int) *bun.SelectQuery {
	if after != nil {
		q = q.Where("d.seq <= ? AND (d.seq, d.event_id, d.endpoint_id) < (?, ?, ?)", after.seq, after.seq, after.event, after.endpoint)
	}
	return q.OrderExpr("d.seq DESC, d.event_id DESC, d.endpoint_id DESC").Limit(int64(n))
}

func newestFirst(a, b *Delivery) int {
	return -cmp.Or(cmp.Compare(a.Seq, b.Seq), strings.Compare(a.EventID, b.EventID), strings.Compare(a.EndpointID, b.EndpointID))
}

// Deliveries reads a page of a business's deliveries, newest first.
func (h *Hooks) Deliveries(ctx context.Context, business string, filter DeliveryFilter, page store.PageInput) (*DeliveryConnection, error) {
	after, err := readPlace(page)
	if err != nil {
		return nil, err
	}
	var endpoints []string
	if filter.EndpointID != nil {
		endpoints = []string{*filter.EndpointID}
	} else if endpoints, err = h.waitingEndpoints(ctx, business, filter.Status); err != nil {
		return nil, err
	}
	rows, err := h.read(ctx, business, endpoints, filter, after, page.First+1)
	if err != nil {
		return nil, fmt.Errorf("read deliveries: %w", err)
	}
	return connection(rows, page), nil
}

func connection(rows []*Delivery, page store.PageInput) *DeliveryConnection {
	slices.SortFunc(rows, newestFirst)
	rows = rows[:min(len(rows), page.First+1)]
	edges, info := store.PageOf(rows, page, (*Delivery).Key)
	return &DeliveryConnection{Edges: edges, PageInfo: info}
}

// waitingEndpoints reads which endpoints of a business may have deliveries that are shown with a status and are not found by
// the status of their rows: those that wait, or have waited when the endpoint was disabled.
func (h *Hooks) waitingEndpoints(ctx context.Context, business string, status *store.DeliveryStatus) ([]string, error) {
	if status == nil || *status == store.Delivered {
		return nil, nil
	}
	const unswept = "SELECT e.id FROM endpoints e WHERE e.business_id = ? AND e.unswept"
	query, args := unswept, []any{business}
	if *status == store.Pending || *status == store.Retrying {
		query = `SELECT e.id FROM endpoints e WHERE e.business_id = ? AND e.deleted_at IS NULL
			AND EXISTS (SELECT 1 FROM deliveries d WHERE d.shard = ? AND d.endpoint_id = e.id AND d.due IS NOT NULL)`
		args = append(args, ShardOf(business))
	}
	var ids []string
	if err := h.store.Reader().NewRaw(query, args...).Scan(ctx, &ids); err != nil {
		return nil, fmt.Errorf("read which endpoints of %s have deliveries that wait: %w", business, err)
	}
	return ids, nil
}

// read reads the first n deliveries after a place, from the indexes that hold those of a status: of the whole business, or of
// one endpoint where the filter names it.
func (h *Hooks) read(ctx context.Context, business string, waiting []string, filter DeliveryFilter, after *place, n int) ([]*Delivery, error) {
	of := func() *bun.SelectQuery {
		q := h.shown().Where("d.business_id = ?", business)
		if filter.EndpointID != nil {
			q = q.Where("d.endpoint_id = ?", *filter.EndpointID)
		}
		return q
	}
	var pages []*bun.SelectQuery
	switch {
	case filter.Status == nil:
		pages = append(pages, of())
	case *filter.Status == store.Delivered:
		pages = append(pages, of().Where("d.status = ?", store.Delivered))
	case *filter.Status == store.Failed || *filter.Status == store.Skipped:
		pages = append(pages, of().Where("d.status = ? AND d.status IN ('failed', 'skipped')", *filter.Status).OrderExpr(byStatus))
		for _, id := range waiting {
			pages = append(pages, h.waitingAt(business, id).Where("d.status <> 'delivered' AND "+overSQL+" AND "+endedSQL+" = ?", *filter.Status))
		}
	default:
		for _, id := range waiting {
			pages = append(pages, h.waitingAt(business, id).Where("d.status = ? AND NOT "+overSQL, *filter.Status))
		}
	}
	var rows []*Delivery
	for some := range slices.Chunk(pages, 100) {
		for i := range some {
			some[i] = newest(some[i], after, n)
		}
		var read []*Delivery
		if err := h.store.AtOnce(some...).Scan(ctx, &read); err != nil {
			return nil, err
		}
		rows = append(rows, read...)
	}
	return rows, nil
}

// byStatus begins an order that is no key's: else SQLite would rather walk all of an endpoint's
// deliveries, in whose key they have it, than sort those of one event.
const byStatus = "d.seq DESC, d.event_id || '' DESC"

// waitingAt selects what waits for an endpoint, by its index.
func (h *Hooks) waitingAt(business, endpoint string) *bun.SelectQuery {
	return h.shown().Where("d.shard = ? AND d.endpoint_id = ? AND d.due IS NOT NULL AND d.business_id = ?", ShardOf(business), endpoint, business).
		OrderExpr(byStatus)
}

// DeliveriesOf reads the same page of each endpoint's deliveries, newest first, by endpoint.
func (h *Hooks) DeliveriesOf(ctx context.Context, business string, endpoints []string, status *store.DeliveryStatus, page store.PageInput) (map[string]*DeliveryConnection, error) {
	after, err := readPlace(page)
	if err != nil {
		return nil, err
	}
	rows := make(map[string][]*Delivery, len(endpoints))
	for some := range slices.Chunk(store.Distinct(endpoints), 50) {
		var pages []*bun.SelectQuery
		for _, id := range some {
			q := h.shown().Where("d.business_id = ? AND d.endpoint_id = ?", business, id)
			switch {
			case status == nil:
			case *status == store.Delivered:
				q = q.Where("d.status = ?", *status)
			case *status == store.Failed || *status == store.Skipped:
				q = q.Where("d.status = ? AND d.status IN ('failed', 'skipped')", *status).OrderExpr(byStatus)
				over := h.waitingAt(business, id).Where("d.status <> 'delivered' AND "+overSQL+" AND "+endedSQL+" = ?", *status)
				pages = append(pages, newest(over, after, page.First+1))
			default:
				q = h.waitingAt(business, id).Where("d.status = ? AND NOT "+overSQL, *status)
			}
			pages = append(pages, newest(q, after, page.First+1))
		}
		var read []*Delivery
		if err := h.store.AtOnce(pages...).Scan(ctx, &read); err != nil {
			return nil, fmt.Errorf("read the deliveries of %d endpoints: %w", len(endpoints), err)
		}
		for _, d := range read {
			rows[d.EndpointID] = append(rows[d.EndpointID], d)
		}
	}
	of := make(map[string]*DeliveryConnection, len(endpoints))
	for _, id := range endpoints {
		of[id] = connection(rows[id], page)
	}
	return of, nil
}

const attemptColumns = "started_at, duration_ms, status_code, error, dns_ms, connect_ms, tls_ms, first_byte_ms, remote_address, next_attempt_at, response_body"

// keysAtOnce is of how many deliveries one statement reads the attempts: SQLite takes a text of a million bytes.
const keysAtOnce = 2000

// AttemptsOf reads the attempts of some deliveries, in their order, by the deliveries' keys.
func (h *Hooks) AttemptsOf(ctx context.Context, keys []string) (map[string][]*Attempt, error) {
	of := make(map[string][]*Attempt, len(keys))
	for some := range slices.Chunk(store.Distinct(keys), keysAtOnce) {
		var args []any
		for _, key := range some {
			at, ok := readKey(key)
			if !ok {
				return nil, fmt.Errorf("read the attempts of a delivery with the key %q", key)
			}
			args = append(args, at.endpoint, at.seq, at.event)
		}
		var read []*Attempt
		err := h.store.Reader().NewRaw(`WITH k(endpoint_id, seq, event_id) AS (VALUES `+strings.Repeat("(?, ?, ?), ", len(some)-1)+`(?, ?, ?))
			SELECT endpoint_id, seq, event_id, CAST(1 AS BIGINT) AS number,
				CASE WHEN trigger_name = 'test' THEN 'test' ELSE 'automatic' END AS trigger_name, `+attemptColumns+`
			FROM deliveries WHERE (endpoint_id, seq, event_id) IN (SELECT endpoint_id, seq, event_id FROM k) AND started_at IS NOT NULL
			UNION ALL SELECT endpoint_id, seq, event_id, number, trigger_name, `+attemptColumns+`
			FROM attempts WHERE (endpoint_id, seq, event_id) IN (SELECT endpoint_id, seq, event_id FROM k)`, args...).Scan(ctx, &read)
		if err != nil {
			return nil, fmt.Errorf("read the attempts of %d deliveries: %w", len(keys), err)
		}
		for _, a := range read {
			key := (&Delivery{Seq: a.Seq, EventID: a.EventID, EndpointID: a.EndpointID}).Key()
			of[key] = append(of[key], a)
		}
	}
	for _, attempts := range of {
		slices.SortFunc(attempts, func(a, b *Attempt) int { return cmp.Compare(a.Number, b.Number) })
	}
	return of, nil
}

// DeliveriesRung reads the current rows of deliveries that the bell named, by their own ids or their events' numbers, oldest
// change first.
func (h *Hooks) DeliveriesRung(ctx context.Context, business string, ids []string, seqs []int64) ([]*Delivery, error) {
	var pages []*bun.SelectQuery
	for _, id := range store.Distinct(ids) {
		if event, endpoint, ok := readID(id); ok {
			pages = append(pages, h.shown().Where("d.business_id = ? AND d.endpoint_id = ? AND d.event_id = ?", business, endpoint, event).
				Where("d.seq = COALESCE((SELECT seq FROM events WHERE id = ?), (SELECT seq FROM test_events WHERE id = ?))", event, event))
		} else {
			pages = append(pages, h.shown().Where("d.old_id = ? AND d.business_id = ?", id, business))
		}
	}
	if len(seqs) > 0 {
		pages = append(pages, h.shown().Where("d.business_id = ? AND d.seq IN (?)", business, bun.List(seqs)))
	}
	var rows []*Delivery
	for some := range slices.Chunk(pages, 100) {
		var read []*Delivery
		if err := h.store.AtOnce(some...).Scan(ctx, &read); err != nil {
			return nil, fmt.Errorf("read %d deliveries: %w", len(ids)+len(seqs), err)
		}
		rows = append(rows, read...)
	}
	slices.SortFunc(rows, func(a, b *Delivery) int {
		return cmp.Or(cmp.Compare(a.UpdatedAt, b.UpdatedAt), newestFirst(b, a))
	})
	return slices.CompactFunc(rows, func(a, b *Delivery) bool { return a.Key() == b.Key() }), nil
}
