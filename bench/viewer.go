package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// viewers read as fast as they can, each on a WebSocket of its own, and keep the last message alone.
type viewers struct {
	all    []*viewer
	failed atomic.Pointer[error]
}

type viewer struct {
	conn  *websocket.Conn
	count atomic.Int64                       // messages
	heard func(at time.Time, message []byte) // of each message, unless it is nil

	mu   sync.Mutex // guards what follows
	last []byte     // the last message
	at   time.Time  // when it came
}

// feedOf is the operation that all viewers run; after is an argument, or nothing.
func feedOf(after string) string {
	return "subscription { events" + after + " { cursor node { id type timestamp sessionId data } } }"
}

// connect opens so many WebSockets, which end with the stage, and has a server acknowledge them.
func (s *server) connect(n int) (vs *viewers, err error) {
	vs = &viewers{}
	for range n {
		var ack struct{ Type string }
		v, err := vs.dial(s.stage, strings.Replace(s.url, "http", "ws", 1)+"/graphql", "graphql-transport-ws")
		if err == nil {
			err = errors.Join(v.conn.WriteJSON(map[string]any{"type": "connection_init", "payload": map[string]string{"Authorization": "Bearer " + demo.token}}), v.conn.ReadJSON(&ack))
		}
		if err == nil && ack.Type != "connection_ack" {
			err = fmt.Errorf("%q for an acknowledgement", ack.Type)
		}
		if err != nil {
			return nil, err
		}
	}
	return vs, nil
}

func (vs *viewers) dial(on *stage, url string, protocols ...string) (*viewer, error) {
	dialer := websocket.Dialer{Subprotocols: protocols}
	conn, res, err := dialer.DialContext(on.ctx, url, http.Header{})
	if err != nil {
		return nil, err
	}
	_ = res.Body.Close()
	on.Cleanup(func() { _ = conn.Close() })
	v := &viewer{conn: conn}
	vs.all = append(vs.all, v)
	return v, nil
}

// subscribe has all viewers run an operation, and read from then on.
func (vs *viewers) subscribe(operation string) error {
	for _, v := range vs.all {
		if err := v.conn.WriteJSON(map[string]any{"id": "1", "type": "subscribe", "payload": map[string]string{"query": operation}}); err != nil {
			return err
		}
		go vs.read(v)
	}
	return nil
}

// read counts a viewer's messages, which are all that it was sent but pings.
func (vs *viewers) read(v *viewer) {
	buf := make([]byte, 4096)
	for {
		_, from, err := v.conn.NextReader()
		n := 0
		if err == nil {
			n, err = io.ReadFull(from, buf)
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			vs.failed.CompareAndSwap(nil, &err)
			return
		}
		at, message := time.Now(), buf[:n]
		switch head := string(message[:min(n, 80)]); {
		case strings.Contains(head, `"type":"ping"`):
			continue
		case strings.Contains(head, `"type":"error"`), strings.Contains(head, `"type":"complete"`):
			err := fmt.Errorf("a viewer was told: %.200s", message)
			vs.failed.CompareAndSwap(nil, &err)
			return
		}
		if v.heard != nil {
			v.heard(at, message)
		}
		v.mu.Lock()
		v.at, v.last = at, append(v.last[:0], message...)
		v.mu.Unlock()
		v.count.Add(1)
	}
}

// await waits until every viewer has so many messages.
func (vs *viewers) await(ctx context.Context, n int64) error {
	slowest := func() int64 {
		least := int64(math.MaxInt64) // without viewers nobody is waited for
		for _, v := range vs.all {
			least = min(least, v.count.Load())
		}
		return least
	}
	err := until(ctx, time.Minute, "all viewers have everything", func() (bool, error) {
		if err := vs.failed.Load(); err != nil {
			return false, fmt.Errorf("a viewer was cut off: %w", *err)
		}
		return slowest() >= n, nil
	})
	if err != nil {
		err = fmt.Errorf("%d of %d messages: %w", slowest(), n, err)
	}
	return err
}

// lags has events happen, which every viewer then has, and returns the times from the last one's timestamp to its arrival at each.
func (vs *viewers) lags(ctx context.Context, d time.Duration, happen func() error) (took []time.Duration, err error) {
	for until := time.Now().Add(d); time.Now().Before(until); {
		if err := errors.Join(happen(), pause(ctx, 100*time.Millisecond)); err != nil {
			return nil, err
		}
		for _, v := range vs.all {
			v.mu.Lock()
			stamp, err := stampOf(v.last)
			took = append(took, v.at.Sub(stamp))
			v.mu.Unlock()
			if err != nil {
				return nil, err
			}
		}
	}
	return took, nil
}

// stampOf is the timestamp in a message.
func stampOf(message []byte) (time.Time, error) {
	_, rest, found := strings.Cut(string(message), `"timestamp":"`)
	if !found {
		return time.Time{}, fmt.Errorf("a message has no timestamp: %.200s", message)
	}
	text, _, _ := strings.Cut(rest, `"`)
	return time.Parse(time.RFC3339Nano, text)
}
