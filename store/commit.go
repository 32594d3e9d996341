package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// The commit batcher: one goroutine a process takes the writes that wait, commits them in one transaction, and answers all
// of them. An fsync, the dearest step of a small write, is so shared by all who wait for one; nobody waits for company.
//
// On PostgreSQL a batch is two round trips. The first begins the transaction, takes the locks and reads what the writes
// said that they need; then each write decides; the second inserts and updates all rows, and commits. SQLite, which is in
// the process, runs the same statements one after the other.

const (
	batchWrites = 128       // writes a transaction at most: bounds how long one commit can take
	batchBytes  = 256 << 10 // and their size
	// And the rows of deliveries that they are thought to make: who waits for others' waits so
	// long.
	batchRows   = 500
	commitLimit = 30 * time.Second
)

// MaxRows is how many rows a commit may add for its events' deliveries, unless one write alone needs more.
const MaxRows = 5000

// Write is one caller's part of a batch.
type Write struct {
	// Business is whose it is; empty: the server's own.
	Business string
	// Size is about how many bytes it writes.
	Size int
	// Read queues the locks and reads that Apply needs, with Tx.Lock, Tx.Read and Tx.Expect: they share the batch's first
	// round trip. A write without it runs its own statements in Apply, each of which takes a round trip.
	Read func(t *Tx)
	// Apply decides, and adds rows, events and updates to t. It must refuse, with an *Error, before it changes anything, for
	// a refused write shares its transaction with others; and it may run again after a rollback.
	Apply func(ctx context.Context, t *Tx) error

	err  error
	done chan struct{}
}

type batcher struct {
	s     *Store
	pool  *pool
	queue *queue
	ended chan struct{}

	batches, writes     atomic.Int64 // that have ended well
	commits, committing atomic.Int64 // of events: how many, and nanoseconds from the instant that the events bear
}

// startBatcher starts a batcher that writes through a pool of one connection.
func (s *Store) startBatcher(p *pool) *batcher {
	b := &batcher{s: s, pool: p, queue: newQueue(), ended: make(chan struct{})}
	go b.run()
	return b
}

// stop commits what waits, and returns when it is committed.
func (b *batcher) stop() {
	b.queue.close()
	<-b.ended
}

// Commits counts the transactions that have committed events, and how long they took, from the instant that their events bear.
func (s *Store) Commits() (n int64, took time.Duration) {
	return s.batcher.commits.Load(), time.Duration(s.batcher.committing.Load())
}

// Batches counts the transactions that have committed writes, and these: of chats, and on
// PostgreSQL not of what is written aside.
func (s *Store) Batches() (n, writes int64) {
	return s.batcher.batches.Load(), s.batcher.writes.Load()
}

// Write has w be part of the next batch, and returns when that is committed. There is no context: a caller that left must
// not leave a half known outcome.
func (s *Store) Write(w *Write) error { return s.batcher.write(w) }

// WriteAside is Write for what a background task writes in bulk. On PostgreSQL it goes over a connection of its own, so that
// no chat waits for it.
func (s *Store) WriteAside(w *Write) error { return s.aside.write(w) }

// Change is Write for what runs its own statements.
func (s *Store) Change(business string, size int, apply func(ctx context.Context, t *Tx) error) error {
	return s.batcher.write(&Write{Business: business, Size: size, Apply: apply})
}

// post has statements of a business queued that nobody waits for.
func (s *Store) post(business string, size int, read func(t *Tx)) {
	_ = s.batcher.enqueue(&Write{Business: business, Size: size, Read: read, Apply: func(context.Context, *Tx) error { return nil }})
}

func (b *batcher) write(w *Write) error {
	if err := b.enqueue(w); err != nil {
		return err
	}
	<-w.done
	return w.err
}

func (b *batcher) enqueue(w *Write) error {
	w.done = make(chan struct{})
	return b.queue.put(w)
}

func (b *batcher) run() {
	defer close(b.ended)
	for {
		batch := b.queue.batch(b.s.remote())
		if batch == nil {
			return
		}
		b.commit(batch)
		for _, w := range batch {
			close(w.done)
		}
	}
}

var (
	errUnknown  = errors.New("the connection was lost during the commit")
	errNotBegun = errors.New("begin")

	// ErrTooManyRows says that a batch of several writes would make more than MaxRows: it is halved.
	ErrTooManyRows = errors.New("more rows than one batch may make")
)

// commit commits the batch and leaves each write's outcome in it. A rollback that the database reported is no write's
// fault in particular: they are repeated one by one, so that the faulty one fails alone.
func (b *batcher) commit(batch []*Write) {
	events, err := b.try(batch)
	switch {
	case err == nil:
		if len(events) > 0 && b.s.cfg.Committed != nil {
			b.s.cfg.Committed(events)
		}
	case len(batch) > 1 && !errors.Is(err, ErrUnavailable):
		if errors.Is(err, ErrTooManyRows) {
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
func (b *batcher) try(batch []*Write) ([]*Event, error) {
	ctx := context.Background() // for SQLite: its driver would start a goroutine a statement to watch for the end
	if b.s.remote() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, commitLimit)
		defer cancel()
	}
	for collisions, begun := 0, true; ; {
		id := NewID("bat")
		t, err := b.transact(ctx, id, batch)
		switch {
		case err == nil:
			return b.committed(t, batch), nil
		case errors.Is(err, errUnknown):
			committed, err := b.find(ctx, id)
			if err != nil {
				b.s.reach.lost(fmt.Errorf("find out whether batch %s was committed: %w", id, err))
				return nil, ErrUnavailable
			}
			if committed {
				return b.committed(t, batch), nil
			}
		case errors.Is(err, errNotBegun) && begun && lost(err): // the connection was lost some time ago, and is made again
			begun = false
		case b.s.remote() && lost(err):
			b.s.reach.lost(err)
			if atStandby(err) {
				b.s.moved()
			}
			return nil, ErrUnavailable
		case b.s.remote() && collided(err) && collisions < maxCollisions:
			collisions++
		default:
			if full(err, pgError(err)) {
				b.s.reach.lost(err)
			}
			return nil, err
		}
	}
}

// committed counts a transaction that was committed, and does what was to be done after it. It returns its events.
func (b *batcher) committed(t *Tx, batch []*Write) []*Event {
	b.queue.made(t.made, batch)
	b.batches.Add(1)
	b.writes.Add(int64(len(batch)))
	if len(t.events) > 0 {
		b.commits.Add(1)
		b.committing.Add(int64(time.Since(t.began)))
	}
	for _, do := range t.after {
		do()
	}
	return t.events
}

// transact runs the writes in one transaction. errUnknown says that it may have been committed.
func (b *batcher) transact(ctx context.Context, id string, batch []*Write) (*Tx, error) {
	t, err := b.pool.begin(ctx, b.s)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotBegun, err)
	}
	t.divisible = len(batch) > 1
	if err := t.apply(ctx, batch); err != nil {
		return nil, errors.Join(err, t.rollback())
	}
	if t.remote {
		t.Exec(batchSQL, id, int64(t.Now))
	}
	Failpoint("commit.before")
	if err := t.commit(ctx); err != nil {
		if b.s.remote() && lost(err) {
			return t, errors.Join(errUnknown, t.rollback())
		}
		return nil, errors.Join(fmt.Errorf("commit: %w", err), t.rollback())
	}
	Failpoint("commit.after")
	return t, nil
}

// apply runs the writes up to their commit.
func (t *Tx) apply(ctx context.Context, batch []*Write) error {
	run := func(w *Write) error {
		w.err = nil
		err := w.Apply(ctx, t)
		var refusal *Error
		if errors.As(err, &refusal) {
			w.err, err = err, nil
		}
		return err
	}
	// Those that run their own statements come first: businesses are locked after whatever they lock.
	ready := 0
	for _, w := range batch {
		if w.Read != nil {
			ready++
			continue
		}
		if !t.begun {
			if err := t.Send(ctx); err != nil {
				return fmt.Errorf("%w: %w", errNotBegun, err)
			}
		}
		if err := run(w); err != nil {
			return err
		}
	}
	for _, w := range batch {
		if w.Read != nil {
			w.Read(t)
		}
	}
	deliveries, err := t.readForEvents(ctx)
	if err != nil {
		return err
	}
	if ready > 0 {
		for _, w := range batch {
			if w.Read == nil {
				continue
			}
			if err := run(w); err != nil {
				return err
			}
		}
	}
	if err := t.addEvents(deliveries); err != nil {
		return err
	}
	if took := time.Since(t.began); took > commitLimit { // for SQLite, where ctx does not say so
		return fmt.Errorf("a batch took %v: %w", took, context.DeadlineExceeded)
	}
	return nil
}

// batchSQL leaves a batch's id, which tells whether it was committed where the answer to its COMMIT is lost: on PostgreSQL alone.
const batchSQL = `INSERT INTO batches (id, created_at) VALUES ($1, $2)`

// findSQL leaves a tombstone in a batch's place, and says whether the batch is there. It can be asked again: a tombstone, which is of
// an instant below 0, stays one.
const findSQL = `INSERT INTO batches (id, created_at) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET created_at = batches.created_at
	RETURNING created_at > 0`

// find says what became of the batch, for as long as ctx lets it. A COMMIT may still be on its way: writing the batch's own id waits
// for its transaction. If that is there then, it was committed; if a tombstone is, it never can be. The answer to this may be lost as
// well, and what was given up here may still be done there: so it is the row that says it, and not whether it could be written.
func (b *batcher) find(ctx context.Context, id string) (committed bool, err error) {
	for {
		err := b.pool.NewRaw(findSQL, id, -b.s.Now()).Scan(ctx, &committed)
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
