package store

import (
	"context"
	"fmt"
	"time"
)

// reading is what the database's clock said at a moment of this process, which counts on by itself: it does not jump when this
// machine's clock is set.
type reading struct {
	theirs Time
	ours   time.Time
}

// Now is the present instant by the database's clock, which is the same for all replicas: leases, locks and expiries are
// compared by it. On SQLite it is this machine's.
func (s *Store) Now() Time {
	last := s.clock.Load()
	if last == nil {
		return Now()
	}
	return last.theirs.Add(time.Since(last.ours))
}

const (
	// soundReading is how long a reading may take that is believed: its error is half of that at most.
	soundReading = 200 * time.Millisecond
	// readAgain is how long a reading is gone by: two clocks do not drift apart by much in that time.
	readAgain = 5 * time.Second
	// clockReadings is of how many readings the quickest counts: one that the network or a scheduler held up tells little.
	clockReadings = 3
)

// SyncClock reads the database's clock, over a connection that stands: to dial, and to be let in, takes longer than to ask.
func (s *Store) SyncClock(ctx context.Context) error {
	last := s.clock.Load()
	if !s.remote() || last != nil && time.Since(last.ours) < readAgain {
		return nil
	}
	conn, err := s.leases.Conn(ctx)
	if err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.PingContext(ctx); err != nil { // a connection of the pool may be long dead
		return fmt.Errorf("read the database's clock: %w", err)
	}
	now, took, err := quickest(func() (theirs Time, err error) {
		err = conn.NewRaw("SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT").Scan(ctx, &theirs)
		return theirs, err
	})
	if err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	if took < soundReading || s.clock.Load() == nil {
		s.clock.Store(now)
	}
	return nil
}

// quickest reads a clock several times, and returns the reading that took the shortest, and how long that was. The clock said
// so at some moment of that time: its middle is taken for it.
func quickest(read func() (Time, error)) (best *reading, took time.Duration, err error) {
	for range clockReadings {
		before := time.Now()
		theirs, err := read()
		if err != nil {
			return nil, 0, err
		}
		if d := time.Since(before); best == nil || d < took {
			best, took = &reading{theirs, before.Add(d / 2)}, d
		}
	}
	return best, took, nil
}
