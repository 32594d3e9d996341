package servers

import (
	"io"
	"net"
	"sync"
)

// Relay stands between a client and a server, and breaks. Fill it in, and Start it.
type Relay struct {
	To     string                 // the server; Lead leads to another one
	Judge  func(said []byte) Fate // of what a client says; nil: it is all passed on
	Pooled bool                   // the connections to the server outlive the client's, as behind a pooler

	Addr string // where it listens, once it is started

	mu    sync.Mutex // guards what follows
	cut   bool
	conns map[net.Conn]struct{}
}

// Fate is what becomes of something that a client says.
type Fate int

// What can become of it.
const (
	Passed     Fate = iota
	Lost            // the server does not hear of it, and both connections end
	Unanswered      // the server hears of it, and the client does not hear of that: its connection has ended
)

// Start has it listen until the test ends.
func (r *Relay) Start(t T) *Relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.Addr, r.conns = l.Addr().String(), map[net.Conn]struct{}{}
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
	t.Cleanup(func() { _ = l.Close(); r.Sever(); serving.Wait() })
	return r
}

// Sever ends all connections and takes no new ones; Mend takes them again.
func (r *Relay) Sever() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = true
	for conn := range r.conns {
		_ = conn.Close()
	}
}

// Mend ends a Sever.
func (r *Relay) Mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = false
}

// Lead has connections that come from now on go to another server. Those that are there stay.
func (r *Relay) Lead(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.To = to
}

func (r *Relay) to() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.To
}

// keep notes a connection, so that it can be ended; it says whether there may be one.
func (r *Relay) keep(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.cut {
		r.conns[conn] = struct{}{}
	}
	return !r.cut
}

func (r *Relay) drop(conn net.Conn) {
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}

func (r *Relay) serve(client net.Conn) {
	defer r.drop(client)
	if !r.keep(client) {
		return
	}
	server, err := net.Dial("tcp", r.to())
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
		if r.Pooled {
			_, _ = io.Copy(io.Discard, server)
		}
	}()
	r.forward(client, server)
	if !r.Pooled {
		_ = server.Close()
	}
	<-done
}

func (r *Relay) forward(client, server net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			said, fate := buf[:n], Passed
			if r.Judge != nil {
				fate = r.Judge(said)
			}
			if fate != Passed {
				_ = client.Close()
			}
			if fate == Lost {
				return
			}
			if _, err := server.Write(said); err != nil || fate == Unanswered {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
