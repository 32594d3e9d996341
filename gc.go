package main

import (
	"os"
	"runtime"
	"runtime/debug"
	gometrics "runtime/metrics"
	"sync"
)

// How much garbage may be there beside what lives, in percent of that: never less than gcPercent, for what lives is little and a tenth
// of the CPU went into the collector at 100; and up to gcMost while all of it stays below gcSpare. So a busy server whose data is
// small does not collect ten times a second, an idle one keeps little, and a large one no more than it would anyway.
const (
	gcPercent = 200
	gcMost    = 400
	gcSpare   = 32 << 20 // bytes
)

// paceGC keeps to that from now on, unless the operator has said otherwise by GOGC.
var paceGC = sync.OnceFunc(func() {
	if os.Getenv("GOGC") != "" {
		return
	}
	scanned := []gometrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}} // GOGC is of all
	percent := 0
	var pace func(struct{})
	pace = func(struct{}) {
		gometrics.Read(scanned)
		live := uint64(0)
		for _, s := range scanned {
			live += s.Value.Uint64()
		}
		if next := gcPercentFor(live); next < percent*9/10 || next > percent*11/10 { // each change stops the world
			percent = next
			debug.SetGCPercent(percent)
		}
		// It is garbage at once, so the next collection calls this again.
		runtime.AddCleanup(&struct{ _ [2]*byte }{}, pace, struct{}{})
	}
	pace(struct{}{})
})

// gcPercentFor is GOGC for so many bytes that live.
func gcPercentFor(live uint64) int {
	return int(min(gcMost, max(gcPercent, gcSpare*100/max(live, 1))))
}
