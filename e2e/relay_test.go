package e2e_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// relay stands between a server and what it depends on, and breaks.
type relay struct {
	addr, to string
	doubts   atomic.Int64 // how many commits are still to be left in doubt
	doubted  atomic.Int64

	mu    sync.Mutex // guards what follows
	cut   bool
	conns map[net.Conn]struct{}
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: l.Addr().String(), to: to, conns: map[net.Conn]struct{}{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { r.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); r.sever(); serving.Wait() })
	return r
}

// sever ends all connections and takes no new ones; mend takes them again.
func (r *relay) sever() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = true
	for conn := range r.conns {
		_ = conn.Close()
	}
}

func (r *relay) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = false
}

// keep notes a connection, so that it can be ended; it says whether there may be one.
func (r *relay) keep(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.cut {
		r.conns[conn] = struct{}{}
	}
	return !r.cut
}

func (r *relay) drop(conn net.Conn) {
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}

func (r *relay) serve(client net.Conn) {
	defer r.drop(client)
	if !r.keep(client) {
		return
	}
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer r.drop(server)
	if !r.keep(server) {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(client, server)
		_ = client.Close()
	}()
	r.forward(client, server)
	_ = server.Close()
	<-done
}

// forward passes on what the client says. A commit that is to be in doubt reaches PostgreSQL or not, by turns, and the client does
// not hear of it.
func (r *relay) forward(client, server net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			said := buf[:n]
			if bytes.Contains(said, []byte("COMMIT\x00")) && r.doubts.Add(-1) >= 0 {
				_ = client.Close()
				if r.doubted.Add(1)%2 == 0 {
					_, _ = server.Write(said)
				}
				return
			}
			if _, err := server.Write(said); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
