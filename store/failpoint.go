//go:build !failpoints

package store

// Failpoint is where the crash tests can kill a server (go build -tags failpoints). In this build it is nothing.
func Failpoint(string) {}
