package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

const (
	ahead    = 32              // events that the slowest viewer may be behind, where throughput is measured
	calmDown = 2 * time.Second // after what happened last, until what follows is measured
)

// fanoutShapes compare the fan-out of events to viewers who all run the same operation with a bare broadcast of gorilla's prepared
// messages of the same size, in a process of its own.
func fanoutShapes(*rig) (all []shape) {
	for _, a := range []struct{ viewers, chats int }{{100, 60}, {1000, 10}} {
		size := &atomic.Int64{} // of the server's messages
		all = append(all, shape{
			name: fmt.Sprintf("%d viewers", a.viewers),
			run: func(ctx context.Context, r *rig, of side) (figures, error) {
				s, err := r.start(ctx, of)
				if err != nil {
					return nil, err
				}
				defer s.end()
				return r.fanout(ctx, &chatting{server: s, size: size}, a.viewers, a.chats)
			},
			bare: func(ctx context.Context, r *rig) (figures, error) {
				b := &broadcaster{stage: newStage(ctx), size: max(size.Load(), 500)}
				defer b.end()
				in, addr, err := child(ctx, b.stage, "broadcast")
				if err != nil {
					return nil, err
				}
				b.in, b.addr = in, addr
				return r.fanout(ctx, b, a.viewers, a.chats)
			},
		})
	}
	return all
}

// source is where events come from, three at a time.
type source interface {
	join(n int) (*viewers, error)
	happen(ctx context.Context) error
	at() int // how many may be under way at a time
}

// fanout measures one side. What the stack spends on the chats that make the events it spends without viewers too: that is
// measured at the same rates before they come, and taken off, so that what is left is the fan-out's.
func (r *rig) fanout(ctx context.Context, from source, n, rate int) (f figures, err error) {
	var vs viewers
	var events atomic.Int64
	flat := func(d time.Duration) (cpu, took float64, err error) {
		events.Store(0)
		base := int64(0)
		if len(vs.all) > 0 {
			base = vs.all[0].count.Load()
		}
		cpu, began := r.stack(), time.Now()
		err = together(from.at(), func() error {
			for time.Since(began) < d {
				if err := vs.await(ctx, base+events.Load()-ahead); err != nil {
					return err
				}
				if err := from.happen(ctx); err != nil {
					return err
				}
				events.Add(perChat)
			}
			return nil
		})
		if err == nil {
			err = vs.await(ctx, base+events.Load())
		}
		return r.stack() - cpu, time.Since(began).Seconds(), err
	}
	steady := func() (cpu float64, err error) {
		base := int64(0)
		if len(vs.all) > 0 {
			base = vs.all[0].count.Load()
		}
		cpu = r.stack()
		took, err := open(ctx, rate, r.measure, func(int) error { return from.happen(ctx) })
		if err == nil {
			err = vs.await(ctx, base+int64(perChat*len(took)))
		}
		return (r.stack() - cpu) / float64(perChat*len(took)), err
	}
	if _, _, err := flat(r.warmup); err != nil {
		return nil, err
	}
	cpu, _, err := flat(r.measure / 2)
	if err != nil {
		return nil, err
	}
	flatAlone := cpu / float64(events.Load()) // of an event
	steadyAlone, err := steady()
	if err != nil {
		return nil, err
	}
	joined, err := from.join(n)
	if err != nil {
		return nil, err
	}
	vs.all = joined.all
	if err := pause(ctx, calmDown); err != nil {
		return nil, err
	}
	cpu, took, err := flat(r.measure / 2)
	if err != nil {
		return nil, err
	}
	each := cpu/float64(events.Load()) - flatAlone
	f = append(f, figure{"messages a second, flat out", float64(events.Load()) * float64(n) / took},
		figure{"CPU of the stack a message, flat out, µs", each / float64(n) * 1e6})
	whole, err := steady()
	if err != nil {
		return nil, err
	}
	f = append(f, figure{"the same, steady, µs", (whole - steadyAlone) / float64(n) * 1e6})
	lags, err := vs.lags(ctx, r.measure/2, func() error {
		base := vs.all[0].count.Load()
		if err := from.happen(ctx); err != nil {
			return err
		}
		return vs.await(ctx, base+perChat)
	})
	if c, ok := from.(*chatting); ok && err == nil {
		c.size.Store(int64(len(vs.all[0].last)))
	}
	return append(f, timesOf("event to socket", lags, 50, 99)...), joined.err(err)
}

// err is why a viewer was cut off, or else the error that is given.
func (vs *viewers) err(or error) error {
	if err := vs.failed.Load(); err != nil && or == nil {
		return *err
	}
	return or
}

// together runs so many at a time, and waits for all.
func together(n int, f func() error) (err error) {
	var wg sync.WaitGroup
	failed := make(chan error, n)
	for range n {
		wg.Go(func() { failed <- f() })
	}
	wg.Wait()
	for range n {
		if e := <-failed; e != nil {
			err = e
		}
	}
	return err
}

// chatting makes events by chats.
type chatting struct {
	*server
	size *atomic.Int64
}

func (c *chatting) at() int { return 4 }

func (c *chatting) join(n int) (*viewers, error) {
	vs, err := c.connect(n)
	if err != nil {
		return nil, err
	}
	return vs, vs.subscribe(feedOf(""))
}

func (c *chatting) happen(ctx context.Context) error {
	_, err := say(ctx, c.url, demo, "", question)
	return err
}

// broadcaster is a broadcast in a process of its own.
type broadcaster struct {
	*stage
	addr string
	size int64

	mu sync.Mutex // guards in
	in io.Writer
}

func (b *broadcaster) at() int { return 1 }

func (b *broadcaster) join(n int) (*viewers, error) {
	vs := &viewers{}
	for range n {
		v, err := vs.dial(b.stage, "ws://"+b.addr)
		if err != nil {
			return nil, err
		}
		go vs.read(v)
	}
	return vs, nil
}

func (b *broadcaster) happen(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := io.WriteString(b.in, strings.Repeat(fmt.Sprintln(b.size), perChat))
	return err
}

// broadcast is a server that sends each WebSocket one prepared message for each line on stdin, which says how many bytes: the
// least that a server of gorilla's can do. It ends with its stdin.
func broadcast() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var mu sync.Mutex // guards conns
	var conns []*websocket.Conn
	upgrader := websocket.Upgrader{}
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // it ends with the bench
			conn, err := upgrader.Upgrade(w, r, nil)
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			for { // what a client says, its pongs too, is to be read
				if _, _, err := conn.NextReader(); err != nil {
					return
				}
			}
		}))
	}()
	fmt.Println(l.Addr())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		size, err := strconv.Atoi(lines.Text())
		if err != nil {
			return err
		}
		text := fmt.Sprintf(`{"timestamp":%q,"rest":"`, time.Now().Format(time.RFC3339Nano))
		text += strings.Repeat("x", max(0, size-len(text)-2)) + `"}`
		prepared, err := websocket.NewPreparedMessage(websocket.TextMessage, []byte(text))
		if err != nil {
			return err
		}
		mu.Lock()
		for _, conn := range conns {
			if err := conn.WritePreparedMessage(prepared); err != nil {
				return err
			}
		}
		mu.Unlock()
	}
	return nil
}
