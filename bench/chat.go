package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	clients  = 16 // that chat, each in a session of its own
	perChat  = 3  // events of a chat: two messages and the run's end
	question = "When are you open on Saturday?"
)

// chatShapes compare chats a second, 16 clients, with no endpoint, and the model that answers at once.
func chatShapes(*rig) []shape {
	return []shape{{
		name: "16 clients, no endpoint",
		run: func(ctx context.Context, r *rig, of side) (figures, error) {
			s, err := r.start(ctx, of)
			if err != nil {
				return nil, err
			}
			defer s.end()
			return r.drive(ctx, s.url)
		},
		bare: func(ctx context.Context, r *rig) (figures, error) {
			b, err := r.startBare(ctx)
			if err != nil {
				return nil, err
			}
			defer b.end()
			return r.drive(ctx, b.url)
		},
	}}
}

// drive measures chats at full speed. The bare handler is in this process: what it takes of the CPU is not told apart.
func (r *rig) drive(ctx context.Context, url string) (figures, error) {
	if _, err := flatOut(ctx, url, []business{demo}, clients, r.warmup, nil); err != nil {
		return nil, err
	}
	cpu, began := r.stack(), time.Now()
	took, err := flatOut(ctx, url, []business{demo}, clients, r.measure, nil)
	if err != nil {
		return nil, err
	}
	n, cpu := float64(len(took)), r.stack()-cpu
	f := append(figures{{"chats a second", n / time.Since(began).Seconds()}}, timesOf("chat", took, 50, 99)...)
	return append(f, figure{"CPU of the stack for 1,000 chats, s", cpu / n * 1000}), nil
}

// flatOut has clients chat as fast as they are answered, each in a session of its own, the businesses in turn, and returns how
// long each chat took. Before each one it asks whether it may.
func flatOut(ctx context.Context, url string, as []business, clients int, d time.Duration, before func() error) (took []time.Duration, err error) {
	var mu sync.Mutex // guards took
	group, ctx := errgroup.WithContext(ctx)
	until := time.Now().Add(d)
	for i := range clients {
		group.Go(func() error {
			var mine []time.Duration
			session := ""
			for time.Now().Before(until) {
				if before != nil {
					if err := before(); err != nil {
						return err
					}
				}
				began := time.Now()
				var err error
				if session, err = say(ctx, url, as[i%len(as)], session, question); err != nil {
					return err
				}
				mine = append(mine, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
			return nil
		})
	}
	err = group.Wait()
	if err == nil && len(took) == 0 {
		err = errors.New("nothing was answered in time")
	}
	return took, err
}

// steady begins so many chats a second, each in a new session, however long they take. Each is told when it was answered. It
// returns how long they took from when each was due, so that a late start of one is not lost.
func steady(ctx context.Context, url string, as business, rate int, d time.Duration, answered func(session string, at time.Time)) ([]time.Duration, error) {
	return open(ctx, rate, d, func(int) error {
		session, err := say(ctx, url, as, "", question)
		if err == nil && answered != nil {
			answered(session, time.Now())
		}
		return err
	})
}

// open does something so many times a second, however long it takes, and returns how long from when each was due.
func open(ctx context.Context, rate int, d time.Duration, do func(n int) error) ([]time.Duration, error) {
	took := make([]time.Duration, int(d.Seconds()*float64(rate)))
	var group errgroup.Group
	began := time.Now()
	for i := range took {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if err := pause(ctx, time.Until(due)); err != nil {
			return nil, err
		}
		group.Go(func() error {
			err := do(i)
			took[i] = time.Since(due)
			return err
		})
	}
	return took, group.Wait()
}

// repeat chats so many times, in sessions of their own, with so many clients.
func repeat(ctx context.Context, url string, as business, clients, n int) error {
	var group errgroup.Group
	var begun atomic.Int64
	for range clients {
		group.Go(func() error {
			for begun.Add(1) <= int64(n) {
				if _, err := say(ctx, url, as, "", question); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// say chats once, and returns the session.
func say(ctx context.Context, url string, as business, session, message string) (string, error) {
	in := map[string]string{"message": message, "channel": "whatsapp"}
	if session != "" {
		in["session_id"] = session
	}
	raw, err := send(ctx, url+"/agents/"+as.agent+"/chat", http.Header{"X-Api-Key": {as.key}}, in)
	if err != nil {
		return "", fmt.Errorf("chat: %w", err)
	}
	var out struct {
		SessionID string `json:"session_id"`
	}
	return out.SessionID, json.Unmarshal(raw, &out)
}
