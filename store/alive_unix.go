//go:build unix

package store

import (
	"errors"
	"net"
	"syscall"
)

// alive says whether an idle connection may be used: the other end has not closed it, and has not said that it ends. An end that is
// gone without a word is not noticed.
func alive(conn net.Conn) bool {
	open, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := open.SyscallConn()
	if err != nil {
		return false
	}
	var next [1]byte
	var n int
	var seen error
	err = raw.Control(func(fd uintptr) { // not Read, which minds the deadline of what was read last
		n, _, seen = syscall.Recvfrom(int(fd), next[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	switch {
	case err != nil:
		return false
	case errors.Is(seen, syscall.EAGAIN) || errors.Is(seen, syscall.EINTR):
		return true
	}
	return seen == nil && n > 0 && next[0] != 'E' // an ErrorResponse to nothing: the server ends
}
