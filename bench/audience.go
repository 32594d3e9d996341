package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// audience are subscribers that read as fast as they can, and keep the last message alone.
type audience struct {
	members []*member
	failed  atomic.Pointer[error]
}

type member struct {
	count atomic.Int64 // messages

	mu   sync.Mutex // guards what follows
	last []byte     // the last message
	at   time.Time  // when it came
}

// join adds a member. Whatever it was sent is a message of the feed, but for pings.
func (a *audience) join(conn *websocket.Conn) {
	m := new(member)
	a.members = append(a.members, m)
	go func() {
		buf := make([]byte, 4096)
		for {
			_, from, err := conn.NextReader()
			n := 0
			if err == nil {
				n, err = io.ReadFull(from, buf)
			}
			if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
				a.failed.CompareAndSwap(nil, &err)
				return
			}
			if strings.HasPrefix(string(buf[:min(n, 20)]), `{"type":"ping"`) {
				continue
			}
			at := time.Now()
			m.mu.Lock()
			m.at, m.last = at, append(m.last[:0], buf[:n]...)
			m.mu.Unlock()
			m.count.Add(1)
		}
	}()
}

func (a *audience) err() error {
	if err := a.failed.Load(); err != nil {
		return fmt.Errorf("a subscriber was cut off: %w", *err)
	}
	return nil
}

// slowest is how many messages every member has.
func (a *audience) slowest() int64 {
	least := int64(math.MaxInt64) // without members nobody is waited for
	for _, m := range a.members {
		least = min(least, m.count.Load())
	}
	return least
}

// await waits until every member has so many messages.
func (a *audience) await(ctx context.Context, n int64) error {
	for late := time.Now().Add(20 * time.Second); a.slowest() < n; {
		if err := errors.Join(a.err(), pause(ctx, time.Millisecond)); err != nil {
			return err
		}
		if time.Now().After(late) {
			return fmt.Errorf("a subscriber has %d messages of %d", a.slowest(), n)
		}
	}
	return nil
}

// lags has events happen, and returns the times from each last one's timestamp to its arrival at each member. happen returns
// when every member has it.
func (a *audience) lags(ctx context.Context, times int, happen func() error) (spread, error) {
	var took []time.Duration
	for range times {
		if err := happen(); err != nil {
			return spread{}, err
		}
		began, err := a.members[0].stamp()
		if err != nil {
			return spread{}, err
		}
		for _, m := range a.members {
			m.mu.Lock()
			took = append(took, m.at.Sub(began))
			m.mu.Unlock()
		}
		if err := pause(ctx, fanoutPace); err != nil {
			return spread{}, err
		}
	}
	return spreadOf(took), a.err()
}

// size is that of the last message.
func (m *member) size() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.last)
}

// stamp is the timestamp in the last message.
func (m *member) stamp() (at time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, rest, found := strings.Cut(string(m.last), `"timestamp":"`)
	text, _, _ := strings.Cut(rest, `"`)
	if !found {
		return at, fmt.Errorf("a message has no timestamp: %.200s", m.last)
	}
	return time.Parse(time.RFC3339Nano, text)
}
