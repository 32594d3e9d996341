package render_test

import (
	"syscall"
	"time"
)

// cpu is what the calling thread has had of the CPU so far: what it does not get because of its neighbours is not in it.
func cpu() time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var used syscall.Rusage
	if err := syscall.Getrusage(thread, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
