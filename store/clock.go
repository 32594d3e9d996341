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

// soundReading is how long a reading may take that is believed: its error is half of that at most.
const soundReading = 200 * time.Millisecond

// syncClock reads the database's clock.
func (s *Store) syncClock(ctx context.Context) error {
	if !s.remote() {
		return nil
	}
	var theirs Time
	before := time.Now()
	if err := s.read.NewRaw("SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT").Scan(ctx, &theirs); err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	took := time.Since(before)
	if took < soundReading || s.clock.Load() == nil {
		s.clock.Store(&reading{theirs, before.Add(took / 2)})
	}
	return nil
}
