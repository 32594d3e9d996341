package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
)

// Tx is a transaction. What must be known before anything is decided runs at once, with bun; the statements that every chat
// and every delivery runs are queued, and Send runs all that are queued, on PostgreSQL in one round trip. Queued statements
// have `$1` for their arguments and one text for both databases.
type Tx struct {
	bun.IDB
	Now Time

	s         *Store
	remote    bool
	conn      *sql.Conn // on PostgreSQL, of a batch
	local     *bun.Tx   // on SQLite, and for what InTx runs
	begun     bool      // the BEGIN was sent
	divisible bool      // the batch has several writes
	began     time.Time
	queue     []*query
	rows      map[*table][]any // to be inserted, by table
	tables    []*table         // the order in which they are first needed
	kinds     map[EventKind]bool
	events    []*Event
	after     []func()
	sequences map[string]int64 // the businesses' last numbers, as they were locked
	made      map[string]int   // rows of deliveries, by business
	ended     map[string]bool  // the runs that one of its writes ends
}

// query is a queued statement.
type query struct {
	rank rank
	key  string // locks of one rank are taken in the order of their keys
	text string
	args []any
	row  func(scan func(...any) error) error // nil: it returns nothing
	done func(changed int64)                 // nil: how many rows it changed is not asked
	bulk *Bulk                               // not nil: it is one of its rows
	of   []*query                            // the rows that it tells apart
}

// rank is the order in which locks are taken, in every transaction alike: so no two wait for each other.
type rank int

// Locks are taken in this order; what only reads comes after them.
const (
	lockCredential rank = iota
	LockShards
	lockKeys
	LockSessions
	LockLeads
	LockEndpoints
	LockDeliveries
	lockBusinesses
	ReadOnly
)

// ForUpdate is a query of rows that the transaction is about to change: it locks them, where there are other writers.
func (t *Tx) ForUpdate() *bun.SelectQuery {
	if t.remote {
		return t.NewSelect().For("UPDATE")
	}
	return t.NewSelect()
}

// Remote says whether other processes write to this database too.
func (t *Tx) Remote() bool { return t.remote }

// Divisible says whether the batch has several writes, and may so be halved.
func (t *Tx) Divisible() bool { return t.divisible }

// Made counts rows of deliveries that a business's events make.
func (t *Tx) Made(business string, rows int) { t.made[business] += rows }

// end says whether nobody else ends the run in this batch.
func (t *Tx) end(run string) bool {
	first := !t.ended[run]
	t.ended[run] = true
	return first
}

// After has do run once the transaction is committed.
func (t *Tx) After(do func()) { t.after = append(t.after, do) }

// Lock queues a statement that locks rows, or changes them under their lock, and tells row each that it returns. Statements
// of one rank run in the order of their keys.
func (t *Tx) Lock(r rank, key, text string, args []any, row func(scan func(...any) error) error) {
	t.queue = append(t.queue, &query{rank: r, key: key, text: text, args: args, row: row})
}

// Read queues a query, and tells row each of its rows.
func (t *Tx) Read(text string, args []any, row func(scan func(...any) error) error) {
	t.Lock(ReadOnly, "", text, args, row)
}

// Exec queues a statement.
func (t *Tx) Exec(text string, args ...any) {
	t.queue = append(t.queue, &query{rank: ReadOnly, text: text, args: args})
}

// ExecCount is Exec, and tells done how many rows it changed: known when the transaction is committed.
func (t *Tx) ExecCount(text string, args []any, done func(changed int64)) {
	t.queue = append(t.queue, &query{rank: ReadOnly, text: text, args: args, done: done})
}

// begin begins a batch's transaction. On PostgreSQL nothing is sent yet.
func (p *pool) begin(ctx context.Context, s *Store) (*Tx, error) {
	t := &Tx{s: s, remote: s.remote(), began: time.Now(), rows: map[*table][]any{}, kinds: map[EventKind]bool{}, made: map[string]int{}, ended: map[string]bool{}}
	if !t.remote {
		if err := s.prepared.prepare(ctx, p.DB.DB); err != nil {
			return nil, err
		}
		tx, err := p.BeginTx(ctx, nil)
		if err != nil {
			return nil, err
		}
		t.IDB, t.local, t.begun, t.Now = tx, &tx, true, s.Now()
		return t, nil
	}
	conn, err := p.Conn(ctx)
	if err != nil {
		return nil, err
	}
	t.IDB, t.conn, t.Now = conn, conn.Conn, s.Now()
	t.queue = append(t.queue, &query{rank: -1, text: "begin"})
	return t, nil
}

// Send runs what is queued, locks in their order first.
func (t *Tx) Send(ctx context.Context) error {
	queue := t.queue
	t.queue = nil
	queue = merged(queue)
	t.begun = true
	if len(queue) == 0 {
		return nil
	}
	if t.remote {
		return t.conn.Raw(func(c any) error {
			conn := c.(*stdlib.Conn).Conn()
			return endAtStandby(ctx, conn, sendBatch(ctx, conn, queue))
		})
	}
	for _, q := range queue {
		if err := t.runLocal(ctx, q); err != nil {
			return fmt.Errorf("%.60s: %w", q.text, err)
		}
	}
	return nil
}

// sendBatch runs statements in one round trip. Each text is prepared on the connection the first time.
func sendBatch(ctx context.Context, conn *pgx.Conn, queue []*query) error {
	var batch pgx.Batch
	for _, q := range queue {
		if len(q.args) > 0 || q.row != nil {
			if _, err := conn.Prepare(ctx, q.text, q.text); err != nil {
				return fmt.Errorf("prepare %.60s: %w", q.text, err)
			}
		}
		queued := batch.Queue(q.text, q.args...)
		switch {
		case q.of != nil:
			queued.Query(func(rows pgx.Rows) error { return tell(rows, q.of) })
		case q.row != nil:
			queued.Query(func(rows pgx.Rows) error {
				defer rows.Close()
				for rows.Next() {
					if err := q.row(rows.Scan); err != nil {
						return err
					}
				}
				return rows.Err()
			})
		case q.done != nil:
			queued.Exec(func(tag pgconn.CommandTag) error { q.done(tag.RowsAffected()); return nil })
		}
	}
	return conn.SendBatch(ctx, &batch).Close()
}

func (t *Tx) runLocal(ctx context.Context, q *query) error {
	stmt, err := t.s.prepared.in(ctx, t, q.text)
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	if q.row == nil {
		res, err := stmt.ExecContext(ctx, q.args...)
		if err != nil || q.done == nil {
			return err
		}
		n, err := res.RowsAffected()
		q.done(n)
		return err
	}
	rows, err := stmt.QueryContext(ctx, q.args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := q.row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// statements are those prepared on the writing connection of SQLite. It is the only one, and taken while a transaction runs:
// so a statement that is new then is prepared for good before the next one.
type statements struct {
	mu    sync.Mutex // guards what follows
	of    map[string]*sql.Stmt
	wants []string
}

// in is the statement in a transaction.
func (p *statements) in(ctx context.Context, t *Tx, text string) (*sql.Stmt, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if stmt := p.of[text]; stmt != nil {
		return t.local.StmtContext(ctx, stmt), nil
	}
	if !slices.Contains(p.wants, text) {
		p.wants = append(p.wants, text)
	}
	return t.local.PrepareContext(ctx, text) //nolint:sqlclosecheck // whoever runs it closes it
}

// prepare prepares what the last transactions wanted.
func (p *statements) prepare(ctx context.Context, db *sql.DB) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range p.wants {
		stmt, err := db.PrepareContext(ctx, text) //nolint:sqlclosecheck // it lives as long as its DB
		if err != nil {
			return err
		}
		p.of[text] = stmt
	}
	p.wants = nil
	return nil
}

// commit inserts the rows that were added, runs what else is queued, and commits: on PostgreSQL in one round trip.
func (t *Tx) commit(ctx context.Context) error {
	t.queueInserts()
	if t.remote {
		t.Exec("commit")
		if err := t.Send(ctx); err != nil {
			return err
		}
		_ = t.conn.Close() // it is committed, whatever becomes of the connection
		return nil
	}
	if err := t.Send(ctx); err != nil {
		return err
	}
	return t.local.Commit()
}

// rollback gives the connection back. What it answers is about the connection, which is given up if it is unsound.
func (t *Tx) rollback() error {
	if !t.remote {
		if err := t.local.Rollback(); !errors.Is(err, sql.ErrTxDone) {
			return err
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), rollbackLimit)
	defer cancel()
	_ = t.conn.Raw(func(c any) error {
		conn := c.(*stdlib.Conn).Conn()
		if conn.PgConn().TxStatus() == 'I' {
			return nil
		}
		if _, err := conn.Exec(ctx, "rollback"); err != nil {
			_ = conn.Close(ctx)
			return driver.ErrBadConn
		}
		return nil
	})
	if err := t.conn.Close(); !errors.Is(err, sql.ErrConnDone) {
		return err
	}
	return nil
}

const rollbackLimit = 2 * time.Second

// Insert adds rows of one of the models of Store.tables: they are inserted together, at the commit.
func Insert[T any](t *Tx, rows ...*T) {
	if len(rows) == 0 {
		return
	}
	of := t.s.tables[reflect.TypeFor[T]()]
	if t.rows[of] == nil {
		t.tables = append(t.tables, of)
	}
	for _, row := range rows {
		t.rows[of] = append(t.rows[of], row)
	}
}

func (t *Tx) queueInserts() {
	for _, of := range t.tables {
		of.insert(t, t.rows[of])
	}
	t.tables, t.rows = nil, map[*table][]any{}
}

// AddEvent adds an event. It gets its number, and its deliveries, when all writes have been applied.
func (t *Tx) AddEvent(events ...*Event) {
	t.events = append(t.events, events...)
}

// Expect says in a Write's Read which kinds of event its Apply may add.
func (t *Tx) Expect(kinds ...EventKind) {
	for _, k := range kinds {
		t.kinds[k] = true
	}
}

// readForEvents sends what is queued, with the locks and reads that the events need. The businesses are locked in ascending
// order of id, until the commit: that is what makes sequence order commit order.
func (t *Tx) readForEvents(ctx context.Context) (deliveries func([]*Event) error, err error) {
	for _, e := range t.events {
		t.kinds[e.Kind()] = true
	}
	if len(t.kinds) > 0 {
		t.sequences = map[string]int64{}
		for k := range t.kinds {
			t.sequences[k.BusinessID] = -1
		}
		t.lockSequences(slices.Sorted(maps.Keys(t.sequences)))
		if t.s.outbox != nil {
			deliveries = t.s.outbox.DeliveriesFor(t, slices.SortedFunc(maps.Keys(t.kinds), EventKind.compare))
		}
	}
	begun := t.begun
	if err := t.Send(ctx); err != nil {
		if !begun {
			return nil, fmt.Errorf("%w: %w", errNotBegun, err)
		}
		return nil, err
	}
	return deliveries, nil
}

// lockSequences queues the lock of some businesses, and the reading of their last numbers.
func (t *Tx) lockSequences(businesses []string) {
	read := func(scan func(...any) error) error {
		var business string
		var seq int64
		err := scan(&business, &seq)
		t.sequences[business] = seq
		return err
	}
	if t.remote {
		t.Lock(lockBusinesses, "", `SELECT id, seq FROM businesses WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE`, []any{businesses}, read)
		return
	}
	for _, b := range businesses {
		t.Lock(lockBusinesses, b, `SELECT id, seq FROM businesses WHERE id = $1`, []any{b}, read)
	}
}

// addEvents numbers the transaction's events, which keep the order in which they were added, and adds their rows and deliveries.
func (t *Tx) addEvents(deliveries func([]*Event) error) error {
	if len(t.events) == 0 {
		return nil
	}
	changed := map[string]bool{}
	for _, e := range t.events {
		seq, locked := t.sequences[e.BusinessID]
		switch {
		case !locked:
			return fmt.Errorf("an event %s of business %s that its write did not expect", e.Type, e.BusinessID)
		case seq < 0:
			return fmt.Errorf("number an event of business %s: %w", e.BusinessID, sql.ErrNoRows)
		}
		e.Seq = seq + 1
		t.sequences[e.BusinessID], changed[e.BusinessID] = e.Seq, true
	}
	for _, business := range slices.Sorted(maps.Keys(changed)) {
		t.Bulk(ReadOnly, business, sequencesBulk, []any{business, t.sequences[business]}, nil)
	}
	Insert(t, t.events...)
	if deliveries == nil {
		return nil
	}
	return deliveries(t.events)
}

var sequencesBulk = NewBulk(`UPDATE businesses SET seq = new.seq FROM {rows} WHERE businesses.id = new.id`, Column{"id", "text"}, Column{"seq", "bigint"})

// InTx runs a transaction of its own beside the batcher's, and repeats it where the database rolled it back for the sake of
// another one. What locks many rows belongs here: in a batch it would hold them while other writes wait for theirs.
func (s *Store) InTx(ctx context.Context, do func(ctx context.Context, t *Tx) error) error {
	return s.inTxOn(ctx, s.db, do)
}

// InLease is InTx over the connection of the leases.
func (s *Store) InLease(ctx context.Context, do func(ctx context.Context, t *Tx) error) error {
	return s.inTxOn(ctx, s.leases, do)
}

func (s *Store) inTxOn(ctx context.Context, db *bun.DB, do func(ctx context.Context, t *Tx) error) error {
	for collisions := 0; ; collisions++ {
		var after []func()
		err := db.RunInTx(ctx, nil, func(ctx context.Context, bunTx bun.Tx) error {
			t := &Tx{IDB: bunTx, s: s, local: &bunTx, remote: s.remote(), Now: s.Now(), began: time.Now()}
			err := do(ctx, t)
			after = t.after
			return err
		})
		if err == nil || lost(err) { // then it may have been committed
			for _, do := range after {
				do()
			}
		}
		if s.remote() && atStandby(err) {
			s.moved()
		}
		if !s.remote() || !collided(err) || collisions >= maxCollisions {
			return err
		}
	}
}
