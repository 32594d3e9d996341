//go:build failpoints

package store

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var failpoint struct {
	name string
	left atomic.Int64
}

func init() { //nolint:gochecknoinits // of the crash tests' build alone
	name, count, _ := strings.Cut(os.Getenv("PARLEY_FAILPOINT"), "=")
	n, err := strconv.ParseInt(count, 10, 64)
	if name == "" {
		return
	}
	if err != nil || n < 1 {
		panic("PARLEY_FAILPOINT must be name=n")
	}
	failpoint.name = name
	failpoint.left.Store(n)
}

// Failpoint kills the process, as a power cut would, when the point that PARLEY_FAILPOINT names is passed for the nth time.
func Failpoint(name string) {
	if name == failpoint.name && failpoint.left.Add(-1) == 0 {
		_, _ = fmt.Fprintln(os.Stderr, "failpoint", name)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
