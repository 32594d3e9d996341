package store

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// Reads has each query of the reading connections told to see.
func (s *Store) Reads(see func(query string)) { s.read = s.read.WithQueryHook(hook(see)) }

type hook func(query string)

func (hook) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (h hook) AfterQuery(_ context.Context, e *bun.QueryEvent) { h(e.Query) }

// FailedSince has each endpoint that fails have begun to fail d earlier.
func (s *Store) FailedSince(ctx context.Context, d time.Duration) error {
	_, err := s.db.NewRaw("UPDATE endpoints SET failing_since = failing_since - ?", d.Microseconds()).Exec(ctx)
	return err
}

// Plan is how the database would run a query over a large table, of which statistics say that it is small. Tables of tests are, and
// PostgreSQL would rather sort what it has read of them: it is told to do so only where there is no other way.
func (s *Store) Plan(ctx context.Context, query string) (string, error) {
	explain := "EXPLAIN QUERY PLAN "
	var db bun.IDB = s.read
	if s.read.Dialect().Name() == dialect.PG {
		tx, err := s.read.BeginTx(ctx, nil)
		if err != nil {
			return "", err
		}
		defer func() { _ = tx.Rollback() }()
		db = tx
		explain = "EXPLAIN "
		for _, statement := range []string{"ANALYZE", "SET LOCAL enable_sort = off", "SET LOCAL enable_incremental_sort = off"} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return "", err
			}
		}
	}
	rows, err := db.QueryContext(ctx, explain+query)
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	var plan []string
	for rows.Next() {
		var line, ignored string
		to := []any{&line}
		for range columns[1:] {
			to = append([]any{&ignored}, to...) // the text stands last
		}
		if err := rows.Scan(to...); err != nil {
			return "", err
		}
		plan = append(plan, line)
	}
	return strings.Join(plan, "\n"), rows.Err()
}

// QuickestReading is how far the quickest of several readings of a clock says that it is ahead of ours, and how long that took.
func QuickestReading(read func() (Time, error)) (ahead, took time.Duration, err error) {
	best, took, err := quickest(read)
	if err != nil {
		return 0, 0, err
	}
	return best.theirs.Sub(At(best.ours)), took, nil
}

// EndedAtOnce is how many deliveries one commit ends.
const EndedAtOnce = endedAtOnce

// Multiply gives an endpoint so many more deliveries that were never tried, of events that there are none of.
func (s *Store) Multiply(ctx context.Context, endpoint string, n int) error {
	_, err := s.db.NewRaw(`INSERT INTO deliveries (id, business_id, endpoint_id, event_id, seq, lane, status, attempts, leased, next_attempt_at, created_at, updated_at)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		SELECT 'dlv_' || (1000000 + i), business_id, id, 'evt_' || i, 1000 + i, 'ses_1', ?, 0, ?, 0, 0, 0 FROM n CROSS JOIN endpoints WHERE id = ?`,
		n, Pending, false, endpoint).Exec(ctx)
	return err
}

// Waiting counts the deliveries of an endpoint that wait, by their rows.
func (s *Store) Waiting(ctx context.Context, endpoint string) (n int, err error) {
	err = s.read.NewRaw("SELECT COUNT(*) FROM deliveries WHERE endpoint_id = ? AND next_attempt_at IS NOT NULL", endpoint).Scan(ctx, &n)
	return n, err
}

// Copy gives an event so many more deliveries, to endpoints that there are none of. They have ended.
func (s *Store) Copy(ctx context.Context, event string, n int) error {
	_, err := s.db.NewRaw(`INSERT INTO deliveries (id, business_id, endpoint_id, event_id, seq, lane, status, attempts, leased, created_at, updated_at)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		SELECT 'dlv_' || id || i, business_id, 'whe_' || i, id, seq, 'ses_1', ?, 1, ?, 0, 0 FROM n CROSS JOIN events WHERE id = ?`,
		n, Delivered, false, event).Exec(ctx)
	return err
}

// Readers is how many connections to PostgreSQL reads have, and what changes many rows.
const Readers = readers

// MigrationLock is the key of the advisory lock of those that migrate.
const MigrationLock = migrationLock

// OpenPool opens a pool of one connection to PostgreSQL.
func OpenPool(url string) *sql.DB {
	db, err := openPool(url, 1)
	if err != nil {
		panic(err)
	}
	return db.DB
}

// OpenKeyed opens one on which plans stay.
func OpenKeyed(url string) *sql.DB {
	db, err := openPool(url, 1, byKey)
	if err != nil {
		panic(err)
	}
	return db.DB
}

// AgePlans lets their time pass for the plans of a connection.
func AgePlans(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return conn.Raw(func(c any) error {
		pg := c.(*pgConn)
		pg.planAt = pg.planAt.Add(-plansStayFor)
		return nil
	})
}

// HotPlans are the plans that stay of the statements that are prepared on PostgreSQL, by their text, as they are made now.
func (s *Store) HotPlans(ctx context.Context) (map[string]string, error) {
	pool, err := openPool(s.cfg.URL, 1, byKey)
	if err != nil {
		return nil, err
	}
	defer func() { _ = pool.Close() }()
	plans := map[string]string{}
	for _, text := range append(slices.Collect(maps.Keys(s.hotReads)), s.hotWrites...) {
		text = numbered(text)
		nulls := strings.TrimSuffix(strings.Repeat("NULL, ", strings.Count(text, "$")), ", ")
		if _, err := pool.ExecContext(ctx, "PREPARE hot AS "+text); err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		var lines []string
		if err := pool.NewRaw("EXPLAIN (COSTS OFF) EXECUTE hot("+nulls+")").Scan(ctx, &lines); err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		plans[text] = strings.Join(lines, "\n")
		if _, err := pool.ExecContext(ctx, "DEALLOCATE hot"); err != nil {
			return nil, err
		}
	}
	return plans, nil
}

// Age gives all deliveries the ids that they had if they had been made long ago.
func (s *Store) Age(ctx context.Context) error {
	return s.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.NewRaw("UPDATE attempts SET delivery_id = 'dlv_00' || substr(delivery_id, 7)").Exec(ctx)
		if err == nil {
			_, err = tx.NewRaw("UPDATE deliveries SET id = 'dlv_00' || substr(id, 7)").Exec(ctx)
		}
		return err
	})
}

// AgeFanOuts has all fan-outs made d earlier.
func (s *Store) AgeFanOuts(ctx context.Context, d time.Duration) error {
	_, err := s.db.NewRaw("UPDATE fan_outs SET created_at = created_at - ?", d.Microseconds()).Exec(ctx)
	return err
}

// UnfoldAll unfolds all of them, however young.
func (s *Store) UnfoldAll(ctx context.Context) error { return s.unfoldSince(ctx, s.Now()+1) }

// CopyFanOut makes so many more of an event's, of events that there are none of.
func (s *Store) CopyFanOut(ctx context.Context, event string, n int) error {
	_, err := s.db.NewRaw(`INSERT INTO fan_outs (event_id, business_id, shard, seq, lane, lease_until, created_at, deliveries)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		SELECT event_id || i, business_id, shard, seq + i, lane, lease_until, created_at, replace(deliveries, '["dlv_', '["dlv_' || i || '_')
		FROM n CROSS JOIN fan_outs WHERE event_id = ?`, n, event).Exec(ctx)
	return err
}

// FanOuts counts those that there are.
func (s *Store) FanOuts(ctx context.Context) (n int, err error) {
	err = s.read.NewRaw("SELECT COUNT(*) FROM fan_outs").Scan(ctx, &n)
	return n, err
}

// Rows counts the deliveries that have rows.
func (s *Store) Rows(ctx context.Context) (n int, err error) {
	err = s.read.NewRaw("SELECT COUNT(*) FROM deliveries").Scan(ctx, &n)
	return n, err
}

// FoldedFor is how long a delivery is without a row at most.
const FoldedFor = foldedFor

// Noted counts the changes of deliveries that are noted.
func (s *Store) Noted(ctx context.Context) (n int, err error) {
	err = s.read.NewRaw("SELECT COUNT(*) FROM delivery_changes").Scan(ctx, &n)
	return n, err
}

// NotedBefore has all changes that are noted have come d earlier.
func (s *Store) NotedBefore(ctx context.Context, d time.Duration) error {
	_, err := s.db.NewRaw("UPDATE delivery_changes SET changed_at = changed_at - ?", d.Microseconds()).Exec(ctx)
	return err
}

// LongAgo gives a business's feed so many more events, of failed runs, as if they had happened evenly over the time until now.
func (s *Store) LongAgo(ctx context.Context, business string, n int, over time.Duration) error {
	extent, err := s.Extent(ctx, business)
	if err != nil {
		return err
	}
	each := over.Microseconds() / int64(n)
	_, err = s.db.NewRaw(`INSERT INTO events (id, business_id, seq, type, channel, timestamp, body)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		SELECT 'evt_' || ? || i, ?, ? + i, ?, ?, ? + i * CAST(? AS BIGINT), '{}' FROM n`,
		n, business, business, extent.Last, RunFailed, SMS, s.Now().Add(-over), each).Exec(ctx)
	if err == nil {
		_, err = s.db.NewRaw("UPDATE businesses SET seq = seq + ? WHERE id = ?", n, business).Exec(ctx)
	}
	return err
}

// FirstID is the least id of an instant.
var FirstID = firstID

// UsageMark is up to where runs are in the sums of hours.
func (s *Store) UsageMark(ctx context.Context) (id string, err error) {
	err = s.read.NewRaw("SELECT id FROM usage_marks WHERE kind = 'run'").Scan(ctx, &id)
	return id, err
}
