package transport

import (
	"runtime"
	"sync"
	"syscall"
)

// flusher writes for connections that have something to write, one after the other, as much as the kernel takes at once. It has as many
// goroutines as there are cores, and none while there is nothing to write. An event for a thousand connections so costs a thousand writes and
// no thousand goroutines; and since a connection has its turn a moment later, what comes for it until then goes out in the same write.
// It waits for nobody: a connection that takes no more gets a goroutine of its own.
type flusher struct {
	mu      sync.Mutex // guards what follows
	waiting queue[*writer]
	running int
}

func (f *flusher) add(w *writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting.keep = 1 << 10
	f.waiting.push(w)
	if f.running < runtime.GOMAXPROCS(0) {
		f.running++
		go f.run()
	}
}

func (f *flusher) next() *writer {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, ok := f.waiting.pop()
	if !ok {
		f.running--
	}
	return w
}

func (f *flusher) run() {
	var a attempt
	a.once = a.write
	for w := f.next(); w != nil; w = f.next() {
		w.flush(&a)
	}
}

// attempt is one write that does not wait.
type attempt struct {
	b    []byte
	n    int
	once func(fd uintptr) (done bool) // write, made once: each use of a method as a value is an allocation
}

func (a *attempt) write(fd uintptr) bool {
	a.n = writeNow(fd, a.b)
	return true // never wait until fd takes more
}

// on writes as much of b as the connection takes at once, and returns the rest. What goes wrong is for who waits to find out.
func (a *attempt) on(conn syscall.RawConn, b []byte) []byte {
	a.b, a.n = b, 0
	if conn.Write(a.once) != nil {
		return b
	}
	a.b = nil
	return b[a.n:]
}
