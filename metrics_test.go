package main

import (
	"testing"
	"time"
)

// TestShareOfTheBusiest: of a window that is over the busiest business's part is told, until the
// next one is over.
func TestShareOfTheBusiest(t *testing.T) {
	t.Parallel()
	var s shares
	now := time.Unix(1_000_000, 0)
	is := func(want float64) {
		t.Helper()
		if got := s.most(now); got != want {
			t.Errorf("it is %v, and not %v", got, want)
		}
	}
	is(0)
	for range 3 {
		s.count("one", now)
	}
	s.count("another", now)
	is(0)
	now = now.Add(sharesWindow)
	is(.75)
	s.count("another", now)
	now = now.Add(sharesWindow - 1)
	is(.75)
	now = now.Add(1)
	is(1)
	now = now.Add(2 * sharesWindow)
	is(0)
}
