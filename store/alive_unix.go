//go:build unix

package store

import (
	"errors"
	"net"
	"syscall"
)

// alive says whether an idle connection may be used: the other end has not closed it, and has said nothing unasked, such as
// that it ends. An end that is gone without a word is not noticed.
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
	var seen error
	err = raw.Control(func(fd uintptr) { // not Read, which minds the deadline of what was read last
		_, _, seen = syscall.Recvfrom(int(fd), next[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return err == nil && (errors.Is(seen, syscall.EAGAIN) || errors.Is(seen, syscall.EINTR))
}
