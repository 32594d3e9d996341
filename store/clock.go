package store

import (
	"context"
	"fmt"
	"time"
)

// Now is the present instant by the database's clock, which is the same for all replicas: leases, locks and expiries are
// compared by it. On SQLite it is this machine's.
func (s *Store) Now() Time { return Now() + Time(s.ahead.Load()) }

// syncClock finds out how far the database's clock is ahead of this machine's.
func (s *Store) syncClock(ctx context.Context) error {
	if !s.remote() {
		return nil
	}
	var theirs Time
	before := time.Now()
	if err := s.read.NewRaw("SELECT (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT").Scan(ctx, &theirs); err != nil {
		return fmt.Errorf("read the database's clock: %w", err)
	}
	s.ahead.Store(int64(theirs - At(before.Add(time.Since(before)/2))))
	return nil
}
