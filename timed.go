package main

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// timedListener accepts connections whose clients must take what they are sent: a client that reads nothing would hold its
// request's goroutine and answer for as long as it likes. http.Server's WriteTimeout cannot tell that from a long turn.
type timedListener struct {
	net.Listener
	within time.Duration // for each timedPart
}

// timedPart is how much of an answer a client must take within the time that the listener gives.
const timedPart = 64 << 10

func (l timedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		return &timedConn{TCPConn: tcp, within: l.within}, nil
	}
	return conn, err
}

// timedConn sets the deadline of each write, unless whoever writes has set one: streams and WebSockets have deadlines of their
// own. http.Server removes theirs after each response.
type timedConn struct {
	*net.TCPConn
	within time.Duration
	own    atomic.Bool
}

func (c *timedConn) SetDeadline(t time.Time) error {
	c.own.Store(!t.IsZero())
	return c.TCPConn.SetDeadline(t)
}

func (c *timedConn) SetWriteDeadline(t time.Time) error {
	c.own.Store(!t.IsZero())
	return c.TCPConn.SetWriteDeadline(t)
}

func (c *timedConn) Write(b []byte) (n int, err error) {
	if c.own.Load() {
		return c.TCPConn.Write(b)
	}
	for first := true; first || n < len(b); first = false {
		_ = c.TCPConn.SetWriteDeadline(time.Now().Add(c.within))
		var m int
		m, err = c.TCPConn.Write(b[n:min(n+timedPart, len(b))])
		if n += m; err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				_ = c.SetLinger(0) // what the kernel still holds for it goes too
			}
			return n, err
		}
	}
	return n, nil
}

// ReadFrom is what io.Copy uses, and http.Server for files: it must not pass by Write.
func (c *timedConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{c}, r) }
