package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// LogAllowed is how many bytes SQLite's log may have before lists wait for it.
const LogAllowed = logAllowed

// Reads has each query of the reading connections told to see.
func (s *Store) Reads(see func(query string)) { s.read = s.read.WithQueryHook(hook(see)) }

type hook func(query string)

func (hook) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (h hook) AfterQuery(_ context.Context, e *bun.QueryEvent) { h(e.Query) }

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
		for _, statement := range []string{"ANALYZE", "SET LOCAL enable_sort = off"} {
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

// MigrationLock is the key of the advisory lock of those that migrate.
const MigrationLock = migrationLock

// OpenPool opens a pool of one connection to PostgreSQL.
func OpenPool(url string) *sql.DB {
	of, err := openPool(url, 1, nil)
	if err != nil {
		panic(err)
	}
	return of.DB.DB
}

// LongAgo gives a business's feed so many more events, of failed runs, as if they had happened evenly over the time until now.
func (s *Store) LongAgo(ctx context.Context, business string, n int, over time.Duration) error {
	extent, err := s.Extent(ctx, business)
	if err != nil {
		return err
	}
	each := over.Microseconds() / int64(n)
	_, err = s.db.NewRaw(`INSERT INTO events (id, business_id, seq, type, channel, direction, timestamp, body)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		SELECT 'evt_' || ? || i, ?, ? + i, ?, ?, ?, ? + i * CAST(? AS BIGINT), '{}' FROM n`,
		n, business, business, extent.Last, RunFailed, SMS, Outbound, s.Now().Add(-over), each).Exec(ctx)
	if err == nil {
		_, err = s.db.NewRaw("UPDATE businesses SET seq = seq + ? WHERE id = ?", n, business).Exec(ctx)
	}
	return err
}

// HaveAnswersWithin has PostgreSQL answer within d, on connections that are opened from now on, until undo is called. No other test may
// run beside it.
func HaveAnswersWithin(d time.Duration) (undo func()) {
	before := answerWithin
	answerWithin = d
	return func() { answerWithin = before }
}

// ReadForEver reads until ctx ends.
func (s *Store) ReadForEver(ctx context.Context) error {
	query := "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
	if s.remote() {
		query = "SELECT count(*) FROM (SELECT pg_sleep(3600)) AS sleep"
	}
	var n int
	return s.read.NewRaw(query).Scan(ctx, &n)
}

// Reading says whether so many reads of a business run or wait, and as many run as may.
func (s *Store) Reading(business string, n int) bool {
	s.fair.mu.Lock()
	defer s.fair.mu.Unlock()
	t := s.fair.of[business]
	return t != nil && t.users == n && len(t.places) == s.fair.each
}

// UsageMark is up to where runs are in the sums of hours.
func (s *Store) UsageMark(ctx context.Context) (id string, err error) {
	err = s.read.NewRaw("SELECT id FROM usage_marks WHERE kind = 'run'").Scan(ctx, &id)
	return id, err
}

// BatchPlans are the plans of the statements that stay prepared on the connections of the batchers, by their text.
func (s *Store) BatchPlans(ctx context.Context) (map[string]string, error) {
	plans := map[string]string{}
	for _, b := range []*batcher{s.batcher, s.aside} {
		conn, err := b.pool.Conn(ctx)
		if err != nil {
			return nil, err
		}
		var statements []struct {
			Name      string `bun:"name"`
			Statement string `bun:"statement"`
			Arguments int    `bun:"arguments"`
		}
		err = conn.NewRaw("SELECT name, statement, cardinality(parameter_types) AS arguments FROM pg_prepared_statements").Scan(ctx, &statements)
		for _, p := range statements {
			var plan []string
			if err == nil {
				execute := "EXPLAIN (COSTS OFF) EXECUTE " + p.Name
				if p.Arguments > 0 {
					execute += "(" + strings.TrimSuffix(strings.Repeat("NULL, ", p.Arguments), ", ") + ")"
				}
				err = conn.NewRaw(execute).Scan(ctx, &plan)
			}
			plans[p.Statement] = strings.Join(plan, "\n")
		}
		if err := errors.Join(err, conn.Close()); err != nil {
			return nil, err
		}
	}
	return plans, nil
}

// Hold keeps the batcher from taking any more writes until release is called.
func (s *Store) Hold() (release func()) {
	began, end := make(chan struct{}), make(chan struct{})
	_ = s.batcher.enqueue(&Write{Apply: func(context.Context, *Tx) error {
		select {
		case <-began:
		default:
			close(began)
		}
		<-end
		return nil
	}})
	<-began
	return func() { close(end) }
}

// Waiting is how many writes wait for the batcher.
func (s *Store) Waiting() int {
	s.batcher.queue.mu.Lock()
	defer s.batcher.queue.mu.Unlock()
	return s.batcher.queue.waiting
}

// The queue's bounds.
const (
	BatchWrites  = batchWrites
	QueuedWrites = queuedWrites
	BatchRows    = batchRows
)
