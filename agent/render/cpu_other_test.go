//go:build !linux

package render_test

import "time"

var start = time.Now()

// cpu is the clock's: what a thread has had of the CPU, only Linux tells.
func cpu() time.Duration { return time.Since(start) }
