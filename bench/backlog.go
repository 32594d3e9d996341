package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

const (
	backlog     = 100_000         // deliveries that wait
	watched     = 8 * time.Second // they wait, and the memory is looked at
	insertLimit = time.Minute     // for the chats that make them
	aloneChats  = 300             // of a business with an endpoint of its own: not enough to fill a queue in memory
)

// waiters are who so many deliveries wait for, and what is in them.
type waiters struct {
	what      string
	endpoints int
	down      bool // refuses connections; else it takes each request and never answers
	alone     bool // each is of a business of its own, with one conversation
	message   string
}

// backlogShapes measure the server's memory while 100,000 deliveries wait, or as many as a minute of chats makes. What has failed
// once waits for an hour, so that nothing ends.
func backlogShapes(*rig) (all []shape) {
	long := strings.Repeat("ä", 32_000)
	for _, w := range []waiters{
		{"100 endpoints that hang", 100, false, false, question},
		{"100 endpoints that hang, messages of 32,000 characters", 100, false, false, long},
		{"10 endpoints that hang, each for one conversation, messages of 32,000 characters", 10, false, true, long},
		{"100 endpoints that are down", 100, true, false, question},
		{"one endpoint that hangs", 1, false, false, question},
	} {
		all = append(all, shape{name: w.what, once: true, alone: true, run: func(ctx context.Context, r *rig, of side) (figures, error) {
			return r.backlog(ctx, of, w)
		}})
	}
	return all
}

func (r *rig) backlog(ctx context.Context, of side, w waiters) (figures, error) {
	s, err := r.start(ctx, of, "PARLEY_DELIVERY_BACKOFF=1h")
	if err != nil {
		return nil, err
	}
	defer s.end()
	closed := newStage(ctx)
	to, err := receive(closed)
	if w.down {
		closed.end()
	} else {
		s.Cleanup(closed.end)
	}
	if err != nil {
		return nil, err
	}
	as, n, each := []business{demo}, backlog/(perChat*w.endpoints)+1, perChat*w.endpoints
	if w.alone {
		as, n, each = nil, aloneChats*w.endpoints, perChat
	}
	for i := range w.endpoints {
		b := demo
		if w.alone {
			if b, err = s.business(fmt.Sprint("bench ", i)); err != nil {
				return nil, err
			}
			as = append(as, b)
		}
		if _, err := s.register(b, fmt.Sprintf("%s/hang/%d", to.url, i), "MESSAGE_CREATED", "RUN_FINISHED"); err != nil {
			return nil, err
		}
	}
	most := s.watchMemory()
	made, err := s.fill(ctx, as, w.message, n)
	if err != nil {
		return nil, err
	}
	filling := most.Swap(0)
	if err := pause(ctx, watched); err != nil {
		return nil, err
	}
	for _, b := range as {
		ended, err := s.some(b, "DELIVERED", "FAILED", "SKIPPED")
		if err != nil {
			return nil, err
		}
		if len(ended) == 0 || ended["DELIVERED"] || ended["FAILED"] || ended["SKIPPED"] {
			return nil, errors.New("some deliveries wait no longer")
		}
	}
	waiting := most.Load()
	if err := s.restart(func() error { most.Store(0); return nil }); err != nil {
		return nil, err
	}
	if err := pause(ctx, 2*watched); err != nil { // on PostgreSQL the shards are free when their leases end
		return nil, err
	}
	return figures{
		{"deliveries that wait", float64(made * each)},
		{"anonymous memory while they are made, MB", float64(filling) / 1024},
		{"while they wait, MB", float64(waiting) / 1024},
		{"after a restart, MB", float64(most.Load()) / 1024},
	}, nil
}

// fill chats so many times, 16 at a time, or a client for each of many businesses, each in one session, or as often as there is time
// for, and returns how often.
func (s *server) fill(ctx context.Context, as []business, message string, n int) (int, error) {
	var begun, made atomic.Int64
	until := time.Now().Add(insertLimit)
	var next atomic.Int64
	at := clients
	if len(as) > 1 {
		at = len(as)
	}
	err := together(at, func() error {
		b, session := as[int(next.Add(1)-1)%len(as)], ""
		for time.Now().Before(until) && begun.Add(1) <= int64(n) {
			var err error
			if session, err = say(ctx, s.url, b, session, message); err != nil {
				return err
			}
			made.Add(1)
		}
		return nil
	})
	return int(made.Load()), err
}

// watchMemory keeps the most that a server's own memory has been, in KB, looked at ten times a second until the server ends.
func (s *server) watchMemory() *atomic.Int64 {
	most := &atomic.Int64{}
	ctx, stop := context.WithCancel(s.ctx)
	s.Cleanup(stop)
	go func() {
		for pause(ctx, 100*time.Millisecond) == nil {
			_, own := memoryOf(int(s.pid.Load()))
			if kb := int64(own * 1024); kb > most.Load() {
				most.Store(kb)
			}
		}
	}()
	return most
}
