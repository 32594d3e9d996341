package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/uptrace/bun"
)

const (
	prunedAtOnce     = 500         // rows of a kind a transaction: retention must not hold up what is new
	oldAtOnce        = 5000        // events that are too old, by their ids, a look
	prunedDeliveries = 1000        // but deliveries, of which an event can have a hundred
	pruneEvery       = time.Minute // how often there is a look for what is too old
	keptBatches      = time.Hour   // the ids of batches are needed for seconds
)

// RunRetention removes what is older than Config.Retention, and sums up what was used, in small batches, until ctx ends.
func (s *Store) RunRetention(ctx context.Context) error {
	ticker := time.NewTicker(pruneEvery)
	defer ticker.Stop()
	for {
		for _, step := range []func() (more bool, err error){
			func() (bool, error) { return s.SumUsage(ctx) },
			func() (bool, error) { return s.Prune(ctx, s.Now().Add(-s.cfg.Retention)) },
		} {
			for ctx.Err() == nil {
				more, err := step()
				if err != nil && ctx.Err() == nil {
					s.log.Warn("retention", "error", err)
				}
				if err != nil || !more {
					break
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Prune removes one batch of what is older than before, in one transaction for each business and one for the rest, and says
// whether there may be more. Events go oldest first, with their deliveries and attempts, and never past one that still has a
// delivery to be made; the same commit moves the business's mark, below which a cursor has expired.
func (s *Store) Prune(ctx context.Context, before Time) (more bool, err error) {
	if more, err = s.pruneFeeds(ctx, before); err != nil {
		return false, err
	}
	err = s.inTx(ctx, func(ctx context.Context, t *tx) error {
		for _, prune := range []func(context.Context, *tx, Time) (int, error){pruneMessages, pruneRuns} {
			n, err := prune(ctx, t, before)
			if err != nil {
				return err
			}
			more = more || n == prunedAtOnce
		}
		for _, q := range []struct {
			query string // without its limit
			args  []any
			lock  string // the table whose rows go, by the name it has in the query
		}{
			{
				`DELETE FROM usage_hours WHERE hour IN (SELECT hour FROM usage_hours WHERE hour < ? ORDER BY hour`,
				[]any{t.now.Add(-keptUsage)},
				"usage_hours",
			},
			{
				`DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE id < ? AND expires_at < ? AND run_id IS NULL ORDER BY id`,
				[]any{firstID("ses", before), before},
				"sessions",
			},
			{
				`DELETE FROM session_line WHERE (session_id, ticket) IN (SELECT session_id, ticket FROM session_line WHERE alive_until < ? ORDER BY session_id, ticket`,
				[]any{t.now},
				"session_line",
			},
			{
				`DELETE FROM idempotency_keys WHERE run_id IN (SELECT run_id FROM idempotency_keys WHERE expires_at < ? ORDER BY expires_at`,
				[]any{t.now},
				"idempotency_keys",
			},
			{
				`DELETE FROM credentials WHERE id IN (SELECT id FROM credentials WHERE revoked_at < ? ORDER BY revoked_at`,
				[]any{before},
				"credentials",
			},
			{
				`DELETE FROM attempts WHERE delivery_id IN (SELECT d.id FROM deliveries d JOIN test_events e ON e.id = d.event_id WHERE e.id < ? ORDER BY e.id`,
				[]any{firstID("evt", before)},
				"d",
			},
			{
				`DELETE FROM deliveries WHERE id IN (SELECT d.id FROM deliveries d JOIN test_events e ON e.id = d.event_id WHERE e.id < ? ORDER BY e.id`,
				[]any{firstID("evt", before)},
				"d",
			},
			{`DELETE FROM test_events WHERE id IN (SELECT id FROM test_events WHERE id < ? ORDER BY id`, []any{firstID("evt", before)}, "test_events"},
			{
				`DELETE FROM replays WHERE id IN (SELECT id FROM replays WHERE id < ? AND status <> 'running' ORDER BY id`,
				[]any{firstID("rpl", before)},
				"replays",
			},
			{
				`DELETE FROM delivery_changes WHERE (business_id, changed_at, delivery_id) IN (SELECT business_id, changed_at, delivery_id FROM delivery_changes
				WHERE changed_at < ? ORDER BY changed_at`,
				[]any{t.now.Add(-keptChanges)},
				"delivery_changes",
			},
			{ // by the database's clock: an id has the replica's, and one that is behind may still ask for its batch. A tombstone is below 0
				`DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE id < ? AND ABS(created_at) < ? ORDER BY id`,
				[]any{firstID("bat", t.now.Add(-keptBatches)), t.now.Add(-keptBatches)},
				"batches",
			},
		} {
			query := q.query + " LIMIT ?)"
			if t.remote { // what somebody is at just now can go the next time: nobody is waited for
				query = q.query + " LIMIT ? FOR UPDATE OF " + q.lock + " SKIP LOCKED)"
			}
			res, err := t.NewRaw(query, append(q.args, prunedAtOnce)...).Exec(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", q.query, err)
			}
			n, err := res.RowsAffected()
			if err != nil {
				return err
			}
			more = more || n == prunedAtOnce
		}
		return nil
	})
	return more, err
}

// pruneFeeds removes old events of those whose they are: it goes along the oldest ids, past those that must stay.
func (s *Store) pruneFeeds(ctx context.Context, before Time) (more bool, err error) {
	for after := ""; ; {
		var old []*Event
		err := s.read.NewSelect().Model(&old).Column("id", "business_id").Where("event.id > ? AND event.id < ?", after, firstID("evt", before)).
			Order("event.id").Limit(oldAtOnce).Scan(ctx)
		if err != nil {
			return false, fmt.Errorf("read whose events are too old: %w", err)
		}
		if len(old) == 0 {
			return more, nil
		}
		seen := map[string]bool{}
		removed := 0
		for _, e := range old {
			if seen[e.BusinessID] {
				continue
			}
			seen[e.BusinessID] = true
			n, rest, err := s.pruneEvents(ctx, e.BusinessID, before)
			if err != nil {
				return false, err
			}
			removed, more = removed+n, more || rest
		}
		if len(old) < oldAtOnce {
			return more, nil
		}
		if removed > 0 {
			return true, nil
		}
		after = old[len(old)-1].ID
	}
}

// pruneEvents removes a business's oldest events, and says how many, and whether there may be more.
func (s *Store) pruneEvents(ctx context.Context, business string, before Time) (removed int, more bool, err error) {
	extent, err := s.Extent(ctx, business)
	if err != nil {
		return 0, false, err
	}
	events, err := s.EventsAfter(ctx, business, extent.Pruned, extent.Last, nil, prunedAtOnce)
	if err != nil {
		return 0, false, err
	}
	ids := make([]string, 0, len(events))
	for _, e := range events {
		if e.Timestamp >= before {
			break
		}
		ids = append(ids, e.ID)
	}
	if len(ids) == 0 {
		return 0, false, nil
	}
	err = s.inTx(ctx, func(ctx context.Context, t *tx) error {
		var old, gone []string
		old, gone, more, err = prunable(ctx, t, ids)
		n := len(old)
		if removed = n; err != nil || n == 0 {
			return err
		}
		for _, q := range []struct {
			query string
			ids   []string
		}{
			{"DELETE FROM attempts WHERE delivery_id IN (?)", gone},
			{"DELETE FROM deliveries WHERE id IN (?)", gone},
			{"DELETE FROM events WHERE id IN (?)", old},
		} {
			if len(q.ids) == 0 {
				continue
			}
			if _, err := t.NewRaw(q.query, bun.List(q.ids)).Exec(ctx); err != nil {
				return fmt.Errorf("remove %d events of %s: %w", n, business, err)
			}
		}
		_, err = t.NewRaw("UPDATE businesses SET pruned_seq = ? WHERE id = ? AND pruned_seq < ?",
			events[n-1].Seq, business, events[n-1].Seq).Exec(ctx)
		return err
	})
	return removed, more, err
}

// prunable is what of a business's oldest events may go in one commit, with their deliveries: up to the first that still has a
// delivery to be made, or that somebody is at, and no more than prunedDeliveries of those, however many endpoints there are. More
// says whether more may go in the next. They are locked first, and nobody is waited for: a replay makes no delivery of such an
// event, and a delivery that was found ended is not sent again meanwhile.
func prunable(ctx context.Context, t *tx, ids []string) (events, deliveries []string, more bool, err error) {
	free := func(model any) *bun.SelectQuery {
		if t.remote {
			return t.NewSelect().Model(model).For("UPDATE SKIP LOCKED")
		}
		return t.NewSelect().Model(model)
	}
	var mine, ended []string
	if err := free((*Event)(nil)).Column("id").Where("id IN (?)", bun.List(ids)).Order("id").Scan(ctx, &mine); err != nil {
		return nil, nil, false, fmt.Errorf("lock %d old events: %w", len(ids), err)
	}
	err = free((*Delivery)(nil)).Column("id").Where("event_id IN (?) AND next_attempt_at IS NULL", bun.List(ids)).Order("id").Scan(ctx, &ended)
	if err != nil {
		return nil, nil, false, fmt.Errorf("lock the deliveries of %d old events: %w", len(ids), err)
	}
	var folded []string // of which there are deliveries without rows: read before the rows are
	if err := t.NewSelect().Model((*FanOut)(nil)).Column("event_id").Where("event_id IN (?)", bun.List(ids)).Scan(ctx, &folded); err != nil {
		return nil, nil, false, fmt.Errorf("read the fan-outs of %d old events: %w", len(ids), err)
	}
	var rows []*Delivery
	if err := t.NewSelect().Model(&rows).Column("id", "event_id").Where("event_id IN (?)", bun.List(ids)).Scan(ctx); err != nil {
		return nil, nil, false, fmt.Errorf("read the deliveries of %d old events: %w", len(ids), err)
	}
	locked := make(map[string]bool, len(mine)+len(ended))
	for _, id := range append(mine, ended...) {
		locked[id] = true
	}
	for _, id := range folded {
		delete(locked, id)
	}
	of := make(map[string][]string, len(ids))
	for _, d := range rows {
		of[d.EventID] = append(of[d.EventID], d.ID)
	}
	for _, id := range ids {
		if !locked[id] || slices.ContainsFunc(of[id], func(d string) bool { return !locked[d] }) {
			return events, deliveries, false, nil
		}
		if len(events) > 0 && len(deliveries)+len(of[id]) > prunedDeliveries {
			return events, deliveries, true, nil
		}
		events, deliveries = append(events, id), append(deliveries, of[id]...)
	}
	return events, deliveries, len(ids) == prunedAtOnce, nil
}
