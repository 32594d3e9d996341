package store_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"parley/e2e/servers"
	"parley/store"
)

// TestARunEndsOnce has replicas end the same run that a crash left, all at once: one of them does.
func TestARunEndsOnce(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	var replicas [4]*store.Store
	for i := range replicas {
		replicas[i] = open(t, func(c *store.Config) { c.URL = url })
	}
	v := newBusiness(t, replicas[0])
	for range 30 {
		turn := begin(t, replicas[0], v, "")
		var ended atomic.Int64
		var all sync.WaitGroup
		for _, s := range replicas {
			all.Go(func() {
				if s.FailTurn(t.Context(), turn.Run, store.RunInterrupted) == nil {
					ended.Add(1)
				}
			})
		}
		all.Wait()
		if n := ended.Load(); n != 1 {
			t.Fatalf("a run ended %d times", n)
		}
	}
}
