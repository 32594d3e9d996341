//go:build unix

package transport

import "syscall"

// writeNow writes what the kernel takes at once; Go's network connections do not block.
func writeNow(fd uintptr, b []byte) int {
	for {
		n, err := syscall.Write(int(fd), b)
		if err != syscall.EINTR { //nolint:errorlint // it is the system's number itself
			return max(n, 0)
		}
	}
}
