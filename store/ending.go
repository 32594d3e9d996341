package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"
)

// What waits for an endpoint ends when the endpoint is disabled or deleted, in that commit and for everybody: nothing of it is
// sent any more, and it is shown as ended. A million rows take minutes to write, though, and a commit that took so long would
// hold up all other ones. So that commit writes a bounded part; the rows that are left are over all the same, by this rule:
//
//	a delivery that waits for an endpoint that is disabled or deleted is over: skipped without an attempt, else failed
//
// Readers apply it (shown), the worker sends nothing to such an endpoint, and EndWaiting writes into the rows, in
// pieces, what the rule says of them. It needs no mark and remembers nothing, so a crash leaves nothing undone. An endpoint is
// enabled again only when all of it is written (onceEnded): the rule must not bring anything back to life.

const (
	endedAtOnce  = 500              // rows a commit
	endEvery     = 10 * time.Second // how often there is a look for what another server left
	endingPause  = 50 * time.Millisecond
	enableWithin = 10 * time.Second // how long enabling an endpoint waits for what waited there to be ended
)

// overSQL is the rule. Tests are sent to a disabled endpoint too.
const overSQL = `delivery.next_attempt_at IS NOT NULL AND (SELECT e.deleted_at IS NOT NULL OR e.status = 'disabled' AND delivery.trigger_name <> 'test'
	FROM endpoints AS e WHERE e.id = delivery.endpoint_id)`

// endedSQL is the status with which a delivery that waits ends. What was delivered once stays so.
const endedSQL = `CASE WHEN status = 'delivered' THEN status WHEN attempts = 0 THEN 'skipped' ELSE 'failed' END`

const shownStatusSQL = `CASE WHEN ` + overSQL + ` THEN ` + endedSQL + ` ELSE status END`

// shown reads the deliveries that narrow selects, as readers are to see them: those with rows, and those that have none yet.
func (s *Store) shown(ctx context.Context, narrow func(q *bun.SelectQuery) *bun.SelectQuery) ([]*Delivery, error) {
	var rows []*Delivery
	err := s.atOnce(narrow(s.shownRows()), narrow(s.shownBorn(""))).Scan(ctx, &rows)
	return rows, err
}

// shownRows selects deliveries that have rows.
func (s *Store) shownRows() *bun.SelectQuery {
	return s.read.NewSelect().Model((*Delivery)(nil)).ExcludeColumn("status", "leased", "next_attempt_at", "first_attempt").
		ColumnExpr(shownStatusSQL+" AS status").
		ColumnExpr("CASE WHEN "+overSQL+" THEN ? ELSE leased END AS leased", false).
		ColumnExpr("CASE WHEN " + overSQL + " THEN NULL ELSE next_attempt_at END AS next_attempt_at")
}

// shownBorn selects deliveries that have none yet: those of some seconds, and of what the worker holds in memory.
// Where is a condition on their fan-outs: see bornTable.
func (s *Store) shownBorn(where string, args ...any) *bun.SelectQuery {
	return s.shownRows().ModelTableExpr(s.bornTable(where)+" AS delivery", args...)
}

// Why deliveries end: a disabled endpoint still gets its tests.
const (
	endpointDisabled = false
	endpointDeleted  = true
)

// endDeliveries ends the deliveries that wait for an endpoint, up to endedAtOnce of them, and first of all its replay, which
// would make more of them due. EndWaiting ends the rest.
func endDeliveries(ctx context.Context, t *tx, endpoint string, tests bool) error {
	_, err := t.NewRaw("UPDATE replays SET status = ?, finished_at = ? WHERE endpoint_id = ? AND status = ?",
		ReplayStopped, t.now, endpoint, ReplayRunning).Exec(ctx)
	if err != nil {
		return fmt.Errorf("stop the replay to %s: %w", endpoint, err)
	}
	_, err = endSome(ctx, t, endpoint, tests)
	return err
}

// endSome ends up to endedAtOnce of the deliveries that wait for an endpoint, and returns how many. It waits for nobody: a row
// that another transaction is about to change is left for the next time. Tests, if they end too, come first: they would be sent.
func endSome(ctx context.Context, t *tx, endpoint string, tests bool) (int, error) {
	which := []string{"next_attempt_at IS NOT NULL AND trigger_name <> 'test'"}
	if tests {
		which = []string{"next_attempt_at > 0 AND trigger_name = 'test'", which[0]} // a test is never due at 0: the backlog is passed over
	}
	lock := ""
	if t.remote {
		lock = " FOR UPDATE SKIP LOCKED"
	}
	ended := 0
	for _, waiting := range which {
		var rows []*Delivery
		err := t.NewRaw(`UPDATE deliveries SET status = `+endedSQL+`, next_attempt_at = NULL, leased = ?, updated_at = ?
			WHERE id IN (SELECT id FROM deliveries WHERE endpoint_id = ? AND `+waiting+` ORDER BY next_attempt_at, seq LIMIT ?`+lock+`)
			RETURNING id, business_id`, false, t.now, endpoint, endedAtOnce).Scan(ctx, &rows)
		if err != nil {
			return 0, fmt.Errorf("end the deliveries to %s: %w", endpoint, err)
		}
		for _, d := range rows {
			t.change(d.BusinessID, d.ID)
		}
		t.over = append(t.over, rows...)
		ended += len(rows)
	}
	return ended, nil
}

// tellEnded tells of deliveries that were ended, by business.
func (s *Store) tellEnded(over []*Delivery) {
	of := map[string][]string{}
	for _, d := range over {
		of[d.BusinessID] = append(of[d.BusinessID], d.ID)
	}
	for business, ids := range of {
		s.cfg.DeliveriesEnded(business, ids...)
	}
}

// unended is an endpoint for which deliveries wait that are over.
type unended struct {
	ID         string `bun:"id"`
	BusinessID string `bun:"business_id"`
	Deleted    bool   `bun:"deleted"`
}

// EndWaiting ends what still waits for endpoints that are disabled or deleted, in small commits. What another transaction is
// about to change may be left for the next time.
func (s *Store) EndWaiting(ctx context.Context) error {
	if err := s.unfoldOver(ctx); err != nil { // which holds up nothing else
		s.log.Warn("make rows of what is over", "error", err)
	}
	for {
		var left []unended
		err := s.read.NewRaw(`SELECT e.id, e.business_id, e.deleted_at IS NOT NULL AS deleted FROM endpoints e
			WHERE (e.status = ? OR e.deleted_at IS NOT NULL) AND EXISTS (SELECT 1 FROM deliveries d
				WHERE d.endpoint_id = e.id AND d.next_attempt_at IS NOT NULL AND (e.deleted_at IS NOT NULL OR d.trigger_name <> 'test'))
			ORDER BY e.id`, Disabled).Scan(ctx, &left)
		if err != nil {
			return fmt.Errorf("read which endpoints have deliveries that are over: %w", err)
		}
		ended := 0
		for _, p := range left {
			n, err := s.endPieces(ctx, p.ID, p.Deleted)
			if err != nil {
				return err
			}
			if ended += n; n > 0 {
				s.cfg.EndpointsChanged(p.BusinessID)
			}
		}
		if ended == 0 {
			return nil
		}
	}
}

// endPieces ends what waits for one endpoint. Each piece is a transaction of its own, beside the batcher's: it waits for nobody,
// so nobody can wait for it and it for him.
func (s *Store) endPieces(ctx context.Context, endpoint string, tests bool) (ended int, err error) {
	for {
		n := 0
		err := s.inTx(ctx, func(ctx context.Context, t *tx) error {
			over, err := stillOver(ctx, t, endpoint)
			if err == nil && over {
				n, err = endSome(ctx, t, endpoint, tests)
			}
			return err
		})
		if ended += n; err != nil || n == 0 {
			return ended, err
		}
	}
}

// stillOver says whether an endpoint is disabled or deleted. On PostgreSQL it stays so until the transaction ends.
func stillOver(ctx context.Context, t *tx, endpoint string) (bool, error) {
	q := t.NewSelect().ModelTableExpr("endpoints AS e").Column("e.id").Where("e.id = ? AND (e.status = ? OR e.deleted_at IS NOT NULL)", endpoint, Disabled)
	if t.remote {
		q = q.For("SHARE")
	}
	var over []string
	if err := q.Scan(ctx, &over); err != nil {
		return false, fmt.Errorf("read whether endpoint %s is off: %w", endpoint, err)
	}
	return len(over) > 0, nil
}

// RunEndings writes down the end of what waits for endpoints that are disabled or deleted, as soon as there is something, until
// ctx ends. On start it goes on with what an earlier server left.
func (s *Store) RunEndings(ctx context.Context) error {
	ticker := time.NewTicker(endEvery)
	defer ticker.Stop()
	for {
		if err := s.EndWaiting(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("end what waits for endpoints that are off", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-s.endings:
		}
	}
}

// endSoon has RunEndings look at once.
func (s *Store) endSoon() {
	select {
	case s.endings <- struct{}{}:
	default:
	}
}

var errStillEnding = refuse(CodeConflict, "endpoint_ending", "what waited for this webhook endpoint is still being ended: try again in a minute")

// refuseWhileEnding refuses, with errStillEnding, where deliveries wait for an endpoint that are over: it must not be enabled yet.
func (s *Store) refuseWhileEnding(ctx context.Context, t *tx, endpoint *Endpoint) error {
	var waits bool
	err := t.NewRaw("SELECT EXISTS (SELECT 1 FROM deliveries WHERE endpoint_id = ? AND next_attempt_at IS NOT NULL AND trigger_name <> ?) OR EXISTS (SELECT 1 FROM "+
		s.bornTable(" AND f.business_id = ? AND f.deliveries LIKE ?")+" AS born WHERE endpoint_id = ?)",
		endpoint.ID, TriggerTest, endpoint.BusinessID, listing(endpoint.ID), endpoint.ID).Scan(ctx, &waits)
	if err != nil {
		return fmt.Errorf("read whether deliveries wait for %s: %w", endpoint.ID, err)
	}
	if waits {
		return errStillEnding
	}
	return nil
}

// onceEnded repeats a write that enables an endpoint until what waited there is ended, for a while.
func (s *Store) onceEnded(ctx context.Context, write func() error) error {
	limit := time.Now().Add(enableWithin)
	for {
		err := write()
		if !errors.Is(err, errStillEnding) || time.Now().After(limit) {
			return err
		}
		s.endSoon()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(endingPause):
		}
	}
}
