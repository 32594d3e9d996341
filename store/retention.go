package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"
)

const (
	prunedAtOnce = 500         // rows of a kind a transaction: retention must not hold up what is new
	pruneEvery   = time.Minute // how often there is a look for what is too old
	keptBatches  = time.Hour   // the ids of batches are needed for seconds
)

// RunRetention removes what is older than Config.Retention, in small batches, until ctx ends.
func (s *Store) RunRetention(ctx context.Context) error {
	ticker := time.NewTicker(pruneEvery)
	defer ticker.Stop()
	for {
		for ctx.Err() == nil {
			more, err := s.Prune(ctx, s.Now().Add(-s.cfg.Retention))
			if err != nil && ctx.Err() == nil {
				s.log.Warn("retention", "error", err)
			}
			if err != nil || !more {
				break
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
	var businesses []string
	err = s.read.NewRaw(`SELECT b.id FROM businesses b WHERE EXISTS (SELECT 1 FROM events e WHERE e.business_id = b.id
		AND e.seq = b.pruned_seq + 1 AND e.timestamp < ?)`, before).Scan(ctx, &businesses)
	if err != nil {
		return false, fmt.Errorf("read whose events are too old: %w", err)
	}
	for _, business := range businesses {
		n, err := s.pruneEvents(ctx, business, before)
		if err != nil {
			return false, err
		}
		more = more || n == prunedAtOnce
	}
	err = s.batcher.do(1024, func(ctx context.Context, t *tx) error {
		for _, q := range []struct {
			query string
			args  []any
		}{
			{`DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE id < ? ORDER BY id LIMIT ?)`, []any{firstID("msg", before)}},
			{`DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE id < ? AND status <> 'running' ORDER BY id LIMIT ?)`, []any{firstID("run", before)}},
			{
				`DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE id < ? AND expires_at < ? AND run_id IS NULL ORDER BY id LIMIT ?)`,
				[]any{firstID("ses", before), before},
			},
			{
				`DELETE FROM session_line WHERE ticket IN (SELECT ticket FROM session_line WHERE alive_until < ? ORDER BY ticket LIMIT ?)`,
				[]any{t.now},
			},
			{
				`DELETE FROM idempotency_keys WHERE run_id IN (SELECT run_id FROM idempotency_keys WHERE expires_at < ? ORDER BY expires_at LIMIT ?)`,
				[]any{t.now},
			},
			{
				`DELETE FROM credentials WHERE id IN (SELECT id FROM credentials WHERE revoked_at < ? ORDER BY revoked_at LIMIT ?)`,
				[]any{before},
			},
			{
				`DELETE FROM attempts WHERE delivery_id IN (SELECT d.id FROM deliveries d JOIN test_events e ON e.id = d.event_id WHERE e.id < ? ORDER BY e.id LIMIT ?)`,
				[]any{firstID("evt", before)},
			},
			{
				`DELETE FROM deliveries WHERE id IN (SELECT d.id FROM deliveries d JOIN test_events e ON e.id = d.event_id WHERE e.id < ? ORDER BY e.id LIMIT ?)`,
				[]any{firstID("evt", before)},
			},
			{`DELETE FROM test_events WHERE id IN (SELECT id FROM test_events WHERE id < ? ORDER BY id LIMIT ?)`, []any{firstID("evt", before)}},
			{`DELETE FROM replays WHERE id IN (SELECT id FROM replays WHERE id < ? AND status <> 'running' ORDER BY id LIMIT ?)`, []any{firstID("rpl", before)}},
			{`DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE id < ? ORDER BY id LIMIT ?)`, []any{firstID("bat", t.now.Add(-keptBatches))}},
		} {
			res, err := t.NewRaw(q.query, append(q.args, prunedAtOnce)...).Exec(ctx)
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

// pruneEvents removes a business's oldest events, and returns how many.
func (s *Store) pruneEvents(ctx context.Context, business string, before Time) (n int, err error) {
	extent, err := s.Extent(ctx, business)
	if err != nil {
		return 0, err
	}
	events, err := s.EventsAfter(ctx, business, extent.Pruned, extent.Last, nil, prunedAtOnce)
	if err != nil {
		return 0, err
	}
	ids := make([]string, 0, len(events))
	for _, e := range events {
		if e.Timestamp >= before {
			break
		}
		ids = append(ids, e.ID)
	}
	if len(ids) == 0 {
		return 0, nil
	}
	err = s.batcher.do(1024, func(ctx context.Context, t *tx) error {
		n = 0
		var due []string
		err := t.NewRaw("SELECT event_id FROM deliveries WHERE event_id IN (?) AND next_attempt_at IS NOT NULL", bun.List(ids)).Scan(ctx, &due)
		if err != nil {
			return fmt.Errorf("read what is still due: %w", err)
		}
		old := untilOneOf(ids, due)
		if n = len(old); n == 0 {
			return nil
		}
		for _, query := range []string{
			"DELETE FROM events WHERE id IN (?)", // first: a replay that makes a delivery of one keeps it until that is committed
			"DELETE FROM attempts WHERE delivery_id IN (SELECT id FROM deliveries WHERE event_id IN (?))",
			"DELETE FROM deliveries WHERE event_id IN (?)",
		} {
			if _, err := t.NewRaw(query, bun.List(old)).Exec(ctx); err != nil {
				return fmt.Errorf("remove %d events of %s: %w", n, business, err)
			}
		}
		_, err = t.NewRaw("UPDATE businesses SET pruned_seq = ? WHERE id = ? AND pruned_seq < ?",
			events[n-1].Seq, business, events[n-1].Seq).Exec(ctx)
		return err
	})
	return n, err
}

// untilOneOf is the beginning of list, up to the first that is one of stops.
func untilOneOf(list, stops []string) []string {
	stop := make(map[string]bool, len(stops))
	for _, s := range stops {
		stop[s] = true
	}
	for i, x := range list {
		if stop[x] {
			return list[:i]
		}
	}
	return list
}
