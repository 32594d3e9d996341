package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// broadcastCommand has this program be the bare broadcast instead of the bench.
const broadcastCommand = "broadcast"

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

// broadcaster is a broadcast in a process of its own.
type broadcaster struct {
	*stage
	addr string
	pid  int
	in   io.Writer
}

func startBroadcast(ctx context.Context) (b *broadcaster, err error) {
	b = &broadcaster{stage: newStage(ctx)}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, broadcastCommand)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	b.in, b.pid = in, cmd.Process.Pid
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.end()
		return nil, fmt.Errorf("start the broadcast: %w", err)
	}
	b.addr = strings.TrimSpace(addr)
	return b, nil
}

// fanoutBare measures the bare broadcast.
func (r *rig) fanoutBare(ctx context.Context, n, events, size int) (f fanout, err error) {
	b, err := startBroadcast(ctx)
	if err != nil {
		return f, err
	}
	defer b.end()
	before, _, err := memoryOf(b.pid)
	if err != nil {
		return f, err
	}
	a := &audience{}
	for range n {
		conn, res, err := websocket.DefaultDialer.DialContext(ctx, "ws://"+b.addr, nil)
		if err != nil {
			return f, err
		}
		_ = res.Body.Close()
		b.Cleanup(func() { _ = conn.Close() })
		a.join(conn)
	}
	if err := pause(ctx, calmDown); err != nil {
		return f, err
	}
	after, _, err := memoryOf(b.pid)
	if err != nil {
		return f, err
	}
	f.perConn = (after - before) / float64(n)

	sent := int64(0)
	send := func() error {
		sent++
		_, err := fmt.Fprintln(b.in, size)
		return err
	}
	from, began := cpuOf(b.pid), time.Now()
	for until := began.Add(r.measure / 2); time.Now().Before(until); {
		if err := errors.Join(a.await(ctx, sent+1-fanoutAhead), send()); err != nil {
			return f, err
		}
	}
	if err := a.await(ctx, sent); err != nil {
		return f, err
	}
	f.rate = float64(sent*int64(n)) / time.Since(began).Seconds()
	f.cpu = (cpuOf(b.pid) - from) / float64(sent*int64(n)) * 1e6

	// At the same steady rate: three at a time, as a chat makes its events.
	messages := sent
	from = cpuOf(b.pid)
	tick := time.NewTicker(perTurn * time.Second / time.Duration(events))
	defer tick.Stop()
	for until := time.Now().Add(r.measure); time.Now().Before(until); {
		<-tick.C
		for range perTurn {
			if err := send(); err != nil {
				return f, err
			}
		}
	}
	if err := a.await(ctx, sent); err != nil {
		return f, err
	}
	f.steady = (cpuOf(b.pid) - from) / float64((sent-messages)*int64(n)) * 1e6
	f.spread, err = a.lags(ctx, int(r.measure/2/fanoutPace), func() error {
		for range perTurn {
			if err := send(); err != nil {
				return err
			}
		}
		return a.await(ctx, sent)
	})
	return f, err
}
