package main

import (
	"context"
	"os"
	"runtime/debug"
	gometrics "runtime/metrics"
	"time"
)

// The garbage collector runs half as often as Go's own pace would have it, while that takes little memory: what lives is some ten MB
// mostly, and a tenth of the CPU went there. With more it comes back to Go's pace, and so memory to what docs/performance.md promises.
const (
	rareGC  = 200       // percent of what lives that may be added to it before a collection
	usualGC = 100       // Go's
	heapFor = 128 << 20 // bytes of heap up to which it is rare
	gcEvery = 250 * time.Millisecond
	gcStep  = 20 // percent: to set it stops the world
)

// paceGC sets the collector's pace until ctx ends. GOGC in the environment is in charge.
func paceGC(ctx context.Context) error {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	debug.SetGCPercent(rareGC)
	lives := []gometrics.Sample{{Name: "/gc/heap/live:bytes"}}
	ticker := time.NewTicker(gcEvery)
	defer ticker.Stop()
	for was := rareGC; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		gometrics.Read(lives)
		if pace := gcPercent(lives[0].Value.Uint64()); pace != was {
			debug.SetGCPercent(pace)
			was = pace
		}
	}
}

// gcPercent is the pace for so many bytes that live.
func gcPercent(live uint64) int {
	if live <= heapFor*100/(100+rareGC) {
		return rareGC
	}
	return max(usualGC, (int(heapFor*100/live)-100)/gcStep*gcStep)
}
