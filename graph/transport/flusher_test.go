package transport

import (
	"runtime"
	"testing"
)

// Under a load that lasts the flusher's list may never run empty: it grows with what waits, and not with what has had its turn.
func TestFlusherHoldsOnlyWhatWaits(t *testing.T) {
	t.Parallel()
	f := &flusher{running: runtime.GOMAXPROCS(0)} // as if all its goroutines ran: this test is them
	writers := make([]*writer, 100)
	for i := range writers {
		writers[i] = &writer{}
		f.add(writers[i])
	}
	for round := range 1000 {
		for i, w := range writers {
			if f.next() != w {
				t.Fatalf("round %d: number %d did not have its turn", round, i)
			}
			f.add(w)
		}
	}
	if room := cap(f.waiting.items); room > 10*len(writers) {
		t.Errorf("for %d that wait there is room for %d", len(writers), room)
	}
}
