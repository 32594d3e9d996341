package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/driver/pgdriver"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// The commit batcher: one goroutine a process takes the writes that wait, commits them in one transaction, and answers all
// of them. An fsync, the dearest step of a small write, is so shared by all who wait for one; nobody waits for company.

const (
	batchWrites  = 128       // writes a transaction at most: bounds how long one commit can take
	batchBytes   = 256 << 10 // and their size
	batchFanOut  = 5000      // deliveries a transaction makes at most
	queuedWrites = 4096      // waiting writes at most; beyond, callers are told to come back
	commitLimit  = 30 * time.Second
)

// write is one caller's part of a batch.
type write struct {
	size  int
	step  *turnStep // taken for all writes of the batch at once, before any is applied; nil: there is none
	apply func(ctx context.Context, t *tx) error
	err   error
	done  chan struct{}
}

// tx is the transaction of a batch. Single rows that a write changes are changed at once; rows that it adds are collected
// and inserted together when all writes have been applied.
type tx struct {
	bun.Tx
	remote     bool
	hot        hot
	insertions map[reflect.Type]*insertion
	began      time.Time
	now        Time
	sessions   []*Session
	messages   []*Message
	runs       []*Run // that begin
	ended      []*Run // that end
	events     []*Event
	over       []*Delivery // that it has ended, each with its id and business
	changes    []*DeliveryChange
	young      string // a delivery with a lesser id has its change noted; see change
}

// forUpdate is a query of rows that the transaction is about to change: it locks them, where there are other writers.
func (t *tx) forUpdate() *bun.SelectQuery {
	if t.remote {
		return t.NewSelect().For("UPDATE")
	}
	return t.NewSelect()
}

type batcher struct {
	s      *Store
	db     *bun.DB
	hot    hot // of db
	queue  chan *write
	mu     sync.RWMutex // guards closed, against a send on the closed queue
	closed bool
	ended  chan struct{}

	commits, committing atomic.Int64 // of events: how many, and nanoseconds from the instant that the events bear
}

// startBatcher starts a batcher that writes through db, in which it prepares the hot writes.
func (s *Store) startBatcher(ctx context.Context, db *bun.DB) (*batcher, error) {
	prepared, err := s.prepare(ctx, db.DB, s.hotWrites...)
	if err != nil {
		return nil, err
	}
	b := &batcher{s: s, db: db, hot: prepared, queue: make(chan *write, queuedWrites), ended: make(chan struct{})}
	go b.run()
	return b, nil
}

// stop commits what waits, and returns when it is committed.
func (b *batcher) stop() {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		close(b.queue)
	}
	b.mu.Unlock()
	<-b.ended
}

// Commits counts the transactions that have committed events, and how long they took, from the instant that their events bear.
func (s *Store) Commits() (n int64, took time.Duration) {
	return s.batcher.commits.Load(), time.Duration(s.batcher.committing.Load())
}

// do has apply run inside a batch, and returns when that is committed. apply may run more than once (after a rollback) and
// must refuse, with an *Error, before it changes anything. ctx does not cut it short: a caller that left must not leave a
// half known outcome.
func (b *batcher) do(size int, apply func(ctx context.Context, t *tx) error) error {
	return b.doTurn(size, nil, apply)
}

// doTurn is do for a write that takes or gives back a session's lock. If the batch could do that with others', the step says so
// to apply.
func (b *batcher) doTurn(size int, step *turnStep, apply func(ctx context.Context, t *tx) error) error {
	w, err := b.enqueue(size, step, apply)
	if err != nil {
		return err
	}
	<-w.done
	return w.err
}

// post is do for a write whose outcome nobody waits for.
func (b *batcher) post(size int, apply func(ctx context.Context, t *tx) error) {
	_, _ = b.enqueue(size, nil, apply)
}

func (b *batcher) enqueue(size int, step *turnStep, apply func(ctx context.Context, t *tx) error) (*write, error) {
	w := &write{size: size, step: step, apply: apply, done: make(chan struct{})}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return nil, ErrShuttingDown
	}
	select {
	case b.queue <- w:
		return w, nil
	default:
		return nil, ErrOverloaded
	}
}

func (b *batcher) run() {
	defer close(b.ended)
	var held *write // taken from the queue, but too large for the last batch
	for {
		first := held
		held = nil
		if first == nil {
			var ok bool
			if first, ok = <-b.queue; !ok {
				return
			}
		}
		batch, size := []*write{first}, first.size
	fill:
		for len(batch) < batchWrites {
			select {
			case w, ok := <-b.queue:
				if !ok {
					break fill
				}
				if size+w.size > batchBytes {
					held = w
					break fill
				}
				batch, size = append(batch, w), size+w.size
			default:
				break fill
			}
		}
		b.commit(batch)
		for _, w := range batch {
			close(w.done)
		}
	}
}

var (
	errFanOut   = errors.New("more deliveries than one batch may make")
	errUnknown  = errors.New("the connection was lost during the commit")
	errNotBegun = errors.New("begin")
)

// commit commits the batch and leaves each write's outcome in it. A rollback that the database reported is no write's
// fault in particular: they are repeated one by one, so that the faulty one fails alone.
func (b *batcher) commit(batch []*write) {
	events, err := b.try(batch)
	switch {
	case err == nil:
		if len(events) > 0 && b.s.cfg.Committed != nil {
			b.s.cfg.Committed(events)
		}
	case len(batch) > 1 && !errors.Is(err, ErrUnavailable):
		if errors.Is(err, errFanOut) {
			b.commit(batch[:len(batch)/2])
			b.commit(batch[len(batch)/2:])
			return
		}
		for i := range batch {
			b.commit(batch[i : i+1])
		}
	default:
		for _, w := range batch {
			w.err = err
		}
	}
}

// try runs one transaction, and after a connection lost in the commit finds out what became of it.
func (b *batcher) try(batch []*write) ([]*Event, error) {
	ctx := context.Background() // for SQLite: its driver would start a goroutine a statement to watch for the end
	if b.s.remote() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, commitLimit)
		defer cancel()
	}
	for collisions, begun := 0, true; ; {
		id := newID("bat")
		t, err := b.transact(ctx, id, batch)
		if !errors.Is(err, errUnknown) {
			switch {
			case errors.Is(err, errNotBegun) && begun && lost(err): // the connection was lost some time ago, and is made again
				begun = false
				continue
			case err != nil && b.s.remote() && lost(err):
				b.s.log.Warn("commit a batch: the database is away", "error", err)
				return nil, ErrUnavailable
			case err != nil && b.s.remote() && collided(err) && collisions < maxCollisions:
				collisions++
				continue
			}
			if err != nil {
				return nil, err
			}
			return b.committed(t), nil
		}
		committed, err := b.find(ctx, id)
		if err != nil {
			b.s.log.Error("find out whether a batch was committed", "batch", id, "error", err)
			return nil, ErrUnavailable
		}
		if committed {
			return b.committed(t), nil
		}
	}
}

// committed counts a transaction that was committed, and tells of what it has ended. It returns its events.
func (b *batcher) committed(t *tx) []*Event {
	if len(t.events) > 0 {
		b.commits.Add(1)
		b.committing.Add(int64(time.Since(t.began)))
	}
	b.s.tellEnded(t.over)
	return t.events
}

func (b *batcher) transact(ctx context.Context, id string, batch []*write) (*tx, error) {
	bunTx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotBegun, err)
	}
	t := &tx{Tx: bunTx, began: time.Now(), remote: b.s.remote(), hot: b.hot, insertions: b.s.insertions, now: b.s.Now()}
	err = func() error {
		if err := b.s.takeSteps(ctx, t, batch); err != nil {
			return err
		}
		for _, w := range batch {
			w.err = nil
			if err := w.apply(ctx, t); err != nil {
				var refusal *Error
				if !errors.As(err, &refusal) {
					return err
				}
				w.err = err
				continue
			}
		}
		if err := b.s.insertCollected(ctx, t, id, len(batch) > 1); err != nil {
			return err
		}
		if err := t.noteChanges(ctx); err != nil {
			return err
		}
		if took := time.Since(t.began); took > commitLimit { // for SQLite, where ctx does not say so
			return fmt.Errorf("a batch took %v: %w", took, context.DeadlineExceeded)
		}
		return nil
	}()
	if err != nil {
		return nil, errors.Join(err, t.Rollback())
	}
	Failpoint("commit.before")
	if err := t.Commit(); err != nil {
		if b.s.remote() && lost(err) {
			return t, errUnknown
		}
		return nil, fmt.Errorf("commit: %w", err)
	}
	Failpoint("commit.after")
	return t, nil
}

// findSQL leaves a tombstone in a batch's place, and says whether the batch is there. It can be asked again: a tombstone, which is of
// an instant below 0, stays one.
const findSQL = `INSERT INTO batches (id, created_at) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET created_at = batches.created_at
	RETURNING created_at > 0`

// find says what became of the batch, for as long as ctx lets it. A COMMIT may still be on its way: writing the batch's own id waits
// for its transaction. If that is there then, it was committed; if a tombstone is, it never can be. The answer to this may be lost as
// well, and what was given up here may still be done there: so it is the row that says it, and not whether it could be written.
func (b *batcher) find(ctx context.Context, id string) (committed bool, err error) {
	for {
		err := b.db.NewRaw(findSQL, id, -b.s.Now()).Scan(ctx, &committed)
		if err == nil {
			return committed, nil
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

const maxCollisions = 5

// collided says whether the database rolled a batch back for the sake of another replica's: it is to be repeated.
func collided(err error) bool {
	var pg pgdriver.Error
	return errors.As(err, &pg) && (pg.Field('C') == "40P01" || pg.Field('C') == "40001")
}

// full says whether the database has no room left: PostgreSQL's class is of all resources that can run out.
func full(err error) bool {
	var pg pgdriver.Error
	if errors.As(err, &pg) {
		return strings.HasPrefix(pg.Field('C'), "53")
	}
	var lite *sqlite.Error
	return errors.As(err, &lite) && lite.Code()&0xff == sqlite3.SQLITE_FULL
}

// lost says whether err tells of a lost connection, rather than being the database's own word on a statement.
func lost(err error) bool {
	var pg pgdriver.Error
	if errors.As(err, &pg) {
		class := pg.Field('C')
		return fatal(pg) || strings.HasPrefix(class, "08") || strings.HasPrefix(class, "57P") // connection exceptions, shutdown
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, context.DeadlineExceeded)
}

// Every insert by bun says Returning("NULL"): it would otherwise read back each column that was left null, row by row.

// batchSQL leaves a batch's id, which tells whether it was committed where the answer to its COMMIT is lost: on PostgreSQL alone.
const batchSQL = `INSERT INTO batches (id, created_at) SELECT new.id, new.created_at FROM {rows}`

var batchColumns = []column{{"id", "text"}, {"created_at", "bigint"}}

// insertCollected inserts what the writes have added: messages, runs, and events with their deliveries.
func (s *Store) insertCollected(ctx context.Context, t *tx, id string, divisible bool) error {
	if err := s.insertTurns(ctx, t, id); err != nil || len(t.events) == 0 {
		return err
	}
	endpoints, err := s.numberEvents(ctx, t)
	if err != nil {
		return err
	}
	born, deliveries := s.deliveriesFor(t, endpoints)
	n := len(deliveries)
	for _, f := range born {
		n += len(f.Deliveries)
	}
	if divisible && n > batchFanOut {
		return errFanOut
	}
	if _, err := t.runAll(ctx, s.eventsSQL, all(t, t.events), all(t, born), all(t, deliveries)); err != nil {
		return fmt.Errorf("insert %d events with %d deliveries: %w", len(t.events), n, err)
	}
	return nil
}

// insertTurns writes what turns have begun and ended, and the batch's id.
func (s *Store) insertTurns(ctx context.Context, t *tx, id string) error {
	batch := some{1, func(int) ([]any, error) { return []any{id, int64(t.now)}, nil }}
	parts := []some{all(t, t.sessions), all(t, t.messages), all(t, t.runs), {len(t.ended), s.endOf(t)}}
	switch {
	case t.remote && len(t.sessions)+len(t.messages)+len(t.runs)+len(t.ended) == 0:
		_, err := t.run(ctx, s.batchSQL, batch, nil)
		return err
	case t.remote:
		parts = append(parts, batch)
	}
	changed, err := t.runAll(ctx, s.turnsSQL, parts...)
	if err != nil {
		return fmt.Errorf("write what %d turns began and %d ended: %w", len(t.runs), len(t.ended), err)
	}
	// The rows of their sessions were locked first, here as everywhere: that they still ran is certain, and checked all the same.
	if n := changed[3]; n != int64(len(t.ended)) {
		return fmt.Errorf("end %d runs: %d of them still ran", len(t.ended), n)
	}
	return nil
}
