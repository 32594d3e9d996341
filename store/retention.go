package store

import (
	"context"
	"fmt"
	"time"
)

const (
	prunedAtOnce = 500         // rows of a kind a transaction: retention must not hold up what is new
	oldAtOnce    = 5000        // events that are too old, by their ids, a look
	pruneEvery   = time.Minute // how often there is a look for what is too old
	keptBatches  = time.Hour   // the ids of batches are needed for seconds
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
					s.log.Log(ctx, s.Level(err), "retention", "error", err)
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
	err = s.InTx(ctx, func(ctx context.Context, t *Tx) error {
		for _, prune := range []func(context.Context, *Tx, Time) (int, error){pruneMessages, pruneRuns} {
			n, err := prune(ctx, t, before)
			if err != nil {
				return err
			}
			more = more || n == prunedAtOnce
		}
		if s.outbox != nil {
			rest, err := s.outbox.PruneOld(ctx, t, before)
			if err != nil {
				return err
			}
			more = more || rest
		}
		for _, q := range []struct {
			query string // without its limit
			args  []any
			lock  string // the table whose rows go, by the name it has in the query
		}{
			{
				`DELETE FROM usage_hours WHERE hour IN (SELECT hour FROM usage_hours WHERE hour < ? ORDER BY hour`,
				[]any{t.Now.Add(-keptUsage)},
				"usage_hours",
			},
			{
				`DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE id < ? AND expires_at < ? AND run_id IS NULL ORDER BY id`,
				[]any{FirstID("ses", before), before},
				"sessions",
			},
			{
				`DELETE FROM session_line WHERE (session_id, ticket) IN (SELECT session_id, ticket FROM session_line WHERE alive_until < ? ORDER BY session_id, ticket`,
				[]any{t.Now},
				"session_line",
			},
			{
				`DELETE FROM idempotency_keys WHERE run_id IN (SELECT run_id FROM idempotency_keys WHERE expires_at < ? ORDER BY expires_at`,
				[]any{t.Now},
				"idempotency_keys",
			},
			{
				`DELETE FROM credentials WHERE id IN (SELECT id FROM credentials WHERE revoked_at < ? ORDER BY revoked_at`,
				[]any{before},
				"credentials",
			},
			{ // by the database's clock: an id has the replica's, and one that is behind may still ask for its batch. A tombstone is below 0
				`DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE id < ? AND ABS(created_at) < ? ORDER BY id`,
				[]any{FirstID("bat", t.Now.Add(-keptBatches)), t.Now.Add(-keptBatches)},
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
		err := s.read.NewSelect().Model(&old).Column("id", "business_id").Where("event.id > ? AND event.id < ?", after, FirstID("evt", before)).
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
	old, force := extent.Pruned, extent.Pruned
	var times []struct {
		Seq       int64 `bun:"seq"`
		Timestamp Time  `bun:"timestamp"`
	}
	err = s.read.NewRaw("SELECT seq, timestamp FROM events WHERE business_id = ? AND seq > ? ORDER BY seq LIMIT ?",
		business, extent.Pruned, prunedAtOnce).Scan(ctx, &times)
	if err != nil {
		return 0, false, fmt.Errorf("read the oldest events of %s: %w", business, err)
	}
	for _, e := range times {
		if e.Timestamp >= before {
			break
		}
		old = e.Seq
		if e.Timestamp < before.Add(-s.cfg.Retention) { // what has waited for so long is given up
			force = e.Seq
		}
	}
	if old == extent.Pruned {
		return 0, false, nil
	}
	upTo := old
	err = s.InTx(ctx, func(ctx context.Context, t *Tx) error {
		// What somebody is at just now can go the next time: nobody is waited for.
		var free []int64
		upTo = extent.Pruned
		err := t.NewRaw("SELECT seq FROM events WHERE business_id = ? AND seq > ? AND seq <= ? ORDER BY seq"+s.Locking("UPDATE SKIP LOCKED"),
			business, extent.Pruned, old).Scan(ctx, &free)
		if err != nil {
			return fmt.Errorf("lock the oldest events of %s: %w", business, err)
		}
		for _, seq := range free {
			if seq > upTo+1 {
				break
			}
			upTo = seq
		}
		if s.outbox != nil && upTo > extent.Pruned {
			if force > extent.Pruned {
				upTo, err = s.outbox.Prune(ctx, t, business, min(upTo, force), true)
			} else {
				upTo, err = s.outbox.Prune(ctx, t, business, upTo, false)
			}
		}
		if err != nil || upTo <= extent.Pruned {
			return err
		}
		if _, err := t.NewRaw("DELETE FROM events WHERE business_id = ? AND seq <= ?", business, upTo).Exec(ctx); err != nil {
			return fmt.Errorf("remove the events of %s up to %d: %w", business, upTo, err)
		}
		_, err = t.NewRaw("UPDATE businesses SET pruned_seq = ? WHERE id = ? AND pruned_seq < ?", upTo, business, upTo).Exec(ctx)
		return err
	})
	removed = int(max(0, upTo-extent.Pruned))
	return removed, err == nil && removed > 0 && (upTo < old || len(times) == prunedAtOnce), err
}
