package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// openListener takes the socket that systemd holds and hands over, or else opens one at addr.
func openListener(ctx context.Context, addr string) (net.Listener, error) {
	if given, err := inherited(); given != nil || err != nil {
		return given, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: address already in use: stop what runs there, or set PARLEY_ADDR", addr)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return listener, nil
}

// inheritedFD is the first file descriptor that systemd hands over, by its protocol
// (sd_listen_fds(3)).
const inheritedFD = 3

// inherited is the listener that was handed over to this process; nil for none.
func inherited() (net.Listener, error) {
	count := os.Getenv("LISTEN_FDS")
	if count == "" || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	if count != "1" {
		return nil, fmt.Errorf("LISTEN_FDS is %s: one socket is taken", count)
	}
	file := os.NewFile(inheritedFD, "LISTEN_FDS")
	listener, err := net.FileListener(file)
	_ = file.Close() // the listener has its own, which is closed in children
	if err != nil {
		return nil, fmt.Errorf("take the socket of LISTEN_FDS: %w", err)
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		_ = listener.Close()
		return nil, fmt.Errorf("take the socket of LISTEN_FDS: it is %s, not tcp", listener.Addr().Network())
	}
	return newHeldListener(tcp), nil
}

// heldListener is a listener whose socket outlives this process: who connects once this one has
// ceased to accept waits in the kernel for the next one.
type heldListener struct {
	*net.TCPListener
	once    sync.Once
	closed  chan struct{}
	changed chan struct{} // what follows has, one way or the other

	mu     sync.Mutex // guards what follows
	unread map[net.Conn]bool
	ceased bool
}

func newHeldListener(tcp *net.TCPListener) *heldListener {
	return &heldListener{TCPListener: tcp, closed: make(chan struct{}), changed: make(chan struct{}, 1), unread: map[net.Conn]bool{}}
}

// unreadPatience is for who has connected and says nothing, as browsers do in advance.
const unreadPatience = time.Second

// Cease has Accept take nobody any more, and waits until a request of each who was taken has been
// read: when http.Server is shut down, it closes the others without an answer.
func (l *heldListener) Cease() {
	_ = l.SetDeadline(time.Unix(1, 0))
	late := time.After(unreadPatience)
	for !l.done() {
		select {
		case <-l.changed:
		case <-late:
			return
		}
	}
}

func (l *heldListener) done() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ceased && len(l.unread) == 0
}

// Track is http.Server's ConnState.
func (l *heldListener) Track(conn net.Conn, state http.ConnState) {
	l.change(func() {
		if state == http.StateNew {
			l.unread[conn] = true
		} else {
			delete(l.unread, conn)
		}
	})
}

func (l *heldListener) change(apply func()) {
	l.mu.Lock()
	apply()
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// Accept takes the next connection. Once it has ceased it waits for Close.
func (l *heldListener) Accept() (net.Conn, error) {
	conn, err := l.TCPListener.Accept()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.change(func() { l.ceased = true })
		<-l.closed
		return nil, net.ErrClosed
	}
	return conn, err
}

// Close closes this process's hold on the socket.
func (l *heldListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.TCPListener.Close()
}
