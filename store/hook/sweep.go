package hook

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"parley/store"
)

const (
	sweptAtOnce = 500              // rows a commit
	sweepEvery  = 10 * time.Second // how often there is a look for what another server left
	ringMost    = 100              // deliveries that a live list takes at once: of one more it says "query again"

	// lateBirth is how long after the disabling of an endpoint a commit may still be under way that has read it as enabled.
	lateBirth = 40 * time.Second
)

// unswept is an endpoint for which rows may wait that are over.
type unswept struct {
	ID         string     `bun:"id"`
	BusinessID string     `bun:"business_id"`
	Shard      int        `bun:"shard"`
	Epoch      int64      `bun:"epoch"`
	OverAt     store.Time `bun:"over_at"`
}

// RunSweeper writes into the rows what the rule says of them, as soon as there is something, until ctx ends. On start it goes
// on with what an earlier server left.
func (h *Hooks) RunSweeper(ctx context.Context) error {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		if err := h.Sweep(ctx); err != nil && ctx.Err() == nil {
			h.cfg.Log.Log(ctx, h.store.Level(err), "end what waits for endpoints that are off", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-h.sweep:
		}
	}
}

// Sweep ends what waits and is over, in small commits.
func (h *Hooks) Sweep(ctx context.Context) error {
	var left []unswept
	err := h.store.Reader().NewRaw("SELECT id, business_id, shard, epoch, over_at FROM endpoints WHERE unswept ORDER BY business_id, id").Scan(ctx, &left)
	if err != nil {
		return fmt.Errorf("read which endpoints have deliveries that are over: %w", err)
	}
	for _, p := range left {
		if err := h.sweepOne(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// sweepOne ends what waits for one endpoint. Each piece is a transaction of its own: a row that another one is about to change
// is left for the next time, and nobody waits.
func (h *Hooks) sweepOne(ctx context.Context, p unswept) error {
	for told := 0; ; {
		var rows []*Delivery
		err := h.store.InTx(ctx, func(ctx context.Context, t *store.Tx) error {
			rows = nil
			skip := ""
			if t.Remote() {
				skip = " FOR UPDATE SKIP LOCKED"
			}
			return t.NewRaw(`UPDATE deliveries SET status = `+endedSQL+`, due = NULL, updated_at = ? WHERE (endpoint_id, seq, event_id) IN (
				SELECT d.endpoint_id, d.seq, d.event_id FROM deliveries AS d WHERE d.shard = ? AND d.endpoint_id = ? AND d.due IS NOT NULL AND `+overSQL+`
				ORDER BY d.seq LIMIT ?`+skip+`) RETURNING endpoint_id, event_id, old_id`, t.Now, p.Shard, p.ID, sweptAtOnce).Scan(ctx, &rows)
		})
		if err != nil {
			return fmt.Errorf("end what waits for endpoint %s: %w", p.ID, err)
		}
		if len(rows) == 0 {
			break
		}
		if told <= ringMost { // who has to query again finds all of them ended
			var ended []string
			for _, d := range rows[:min(len(rows), ringMost+1)] {
				ended = append(ended, d.ID())
			}
			told += len(ended)
			h.cfg.DeliveriesChanged(p.BusinessID, ended...)
		}
	}
	if h.store.Now().Sub(p.OverAt) < lateBirth {
		return nil
	}
	return h.store.InTx(ctx, func(ctx context.Context, t *store.Tx) error {
		_, err := t.NewRaw(`UPDATE endpoints SET unswept = FALSE WHERE id = ? AND epoch = ? AND NOT EXISTS (
			SELECT 1 FROM deliveries AS d WHERE d.shard = ? AND d.endpoint_id = ? AND d.due IS NOT NULL AND `+overSQL+`)`,
			p.ID, p.Epoch, p.Shard, p.ID).Exec(ctx)
		return err
	})
}

// endedSQL is the status with which a delivery that waits ends. What was delivered once stays so.
const endedSQL = `CASE WHEN status = 'delivered' THEN status WHEN attempts = 0 THEN 'skipped' ELSE 'failed' END`

// Prune implements store.Outbox.
func (h *Hooks) Prune(ctx context.Context, t *store.Tx, business string, upTo int64, force bool) (int64, error) {
	var rows []*Delivery
	oldest := func() *bun.SelectQuery {
		return t.NewSelect().Model((*Delivery)(nil)).Column("endpoint_id", "seq", "event_id", "due", "trigger_name").
			Where("business_id = ? AND seq <= ?", business, upTo).Order("seq")
	}
	err := oldest().Limit(prunedAtOnce+1).Scan(ctx, &rows)
	if err != nil {
		return 0, fmt.Errorf("read the oldest deliveries of %s: %w", business, err)
	}
	if n := len(rows); n > prunedAtOnce { // the last event's may not all be here; it comes next, unless it is the only one
		if last := rows[n-1].Seq; rows[0].Seq < last {
			upTo = last - 1
		} else {
			upTo = last
		}
	}
	if t.Remote() { // what somebody is at just now can go the next time: nobody is waited for
		var free []*Delivery
		if err := oldest().For("UPDATE SKIP LOCKED").Scan(ctx, &free); err != nil {
			return 0, fmt.Errorf("lock the oldest deliveries of %s: %w", business, err)
		}
		locked := make(map[string]*Delivery, len(free))
		for _, d := range free {
			locked[d.Key()] = d
		}
		if i := slices.IndexFunc(rows, func(d *Delivery) bool { return locked[d.Key()] == nil }); i >= 0 {
			upTo = min(upTo, rows[i].Seq-1)
		}
		rows = free
	}
	if i := slices.IndexFunc(rows, func(d *Delivery) bool { return d.Due != nil }); i >= 0 && !force {
		upTo = min(upTo, rows[i].Seq-1)
	}
	var endpoints, tests []string
	for _, d := range rows {
		if d.Seq > upTo {
			break
		}
		endpoints = append(endpoints, d.EndpointID)
		if d.Trigger == store.TriggerTest {
			tests = append(tests, d.EventID)
		}
	}
	if len(endpoints) == 0 {
		return upTo, nil
	}
	for _, q := range []struct {
		query string
		args  []any
	}{
		{"DELETE FROM attempts WHERE endpoint_id IN (?) AND seq <= ?", []any{bun.List(store.Distinct(endpoints)), upTo}},
		{"DELETE FROM deliveries WHERE business_id = ? AND seq <= ? AND (due IS NULL OR ?)", []any{business, upTo, force}}, // of a test just made there
		{"DELETE FROM test_events WHERE id IN (?)", []any{bun.List(append(tests, ""))}},
	} {
		if _, err := t.NewRaw(q.query, q.args...).Exec(ctx); err != nil {
			return 0, fmt.Errorf("remove the deliveries of %s up to %d: %w", business, upTo, err)
		}
	}
	return upTo, nil
}

// PruneOld implements store.Outbox: it removes a bounded part of what is older than before and belongs to no event.
func (h *Hooks) PruneOld(ctx context.Context, t *store.Tx, before store.Time) (more bool, err error) {
	skip := ""
	if t.Remote() { // what somebody is at just now can go the next time: nobody is waited for
		skip = " FOR UPDATE SKIP LOCKED"
	}
	res, err := t.NewRaw("DELETE FROM replays WHERE id IN (SELECT id FROM replays WHERE id < ? AND status <> 'running' ORDER BY id LIMIT ?"+skip+")",
		store.FirstID("rpl", before), prunedAtOnce).Exec(ctx)
	if err != nil {
		return false, fmt.Errorf("remove old replays: %w", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return false, err
	}
	var tests []*Delivery
	err = t.NewRaw(`SELECT d.endpoint_id, d.seq, d.event_id, d.due FROM test_events AS v JOIN deliveries AS d ON d.business_id = v.business_id AND d.seq = v.seq AND d.event_id = v.id
		WHERE v.id < ? AND d.due IS NULL ORDER BY v.id LIMIT ?`+strings.Replace(skip, "UPDATE", "UPDATE OF d", 1), store.FirstID("evt", before), prunedAtOnce).Scan(ctx, &tests)
	if err != nil {
		return false, fmt.Errorf("read old tests: %w", err)
	}
	for _, d := range tests {
		for _, query := range []string{"DELETE FROM attempts WHERE endpoint_id = ? AND seq = ? AND event_id = ?", "DELETE FROM deliveries WHERE endpoint_id = ? AND seq = ? AND event_id = ?"} {
			if _, err := t.NewRaw(query, d.EndpointID, d.Seq, d.EventID).Exec(ctx); err != nil {
				return false, fmt.Errorf("remove a test: %w", err)
			}
		}
		if _, err := t.NewRaw("DELETE FROM test_events WHERE id = ?", d.EventID).Exec(ctx); err != nil {
			return false, fmt.Errorf("remove a test: %w", err)
		}
	}
	return n == prunedAtOnce || len(tests) == prunedAtOnce, nil
}

const prunedAtOnce = 1000
