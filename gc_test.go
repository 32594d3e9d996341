package main

import "testing"

func TestGCPercent(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 200, 8 << 20: 200, 42 << 20: 200, 43 << 20: 180, 50 << 20: 140, 60 << 20: 100, 64 << 20: 100, 1 << 30: 100, 1 << 40: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d MB: %d %%, want %d", live>>20, got, want)
		}
	}
}
