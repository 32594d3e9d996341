package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	backlog     = 100_000         // deliveries that wait
	ofChat      = 3               // events of a chat that the endpoints get
	watched     = 8 * time.Second // they wait, and the memory is looked at
	memoryGate  = 200             // MB
	insertLimit = time.Minute     // for the chats that make them
)

// waiters are who so many deliveries wait for, and what is in them.
type waiters struct {
	what      string
	endpoints int
	down      bool // refuses connections; else it takes each request and never answers
	alone     bool // each is of a business of its own, with one conversation, which leaves it most of its slots
	message   string
}

// aloneChats is how many a business of such an endpoint makes: not enough to fill a queue in memory, which is given back then.
const aloneChats = 300

// benchBacklog measures the server's memory while 100,000 deliveries wait.
func benchBacklog(ctx context.Context, r *rig) error {
	const short = "When are you open on Saturday?"
	for _, w := range []waiters{
		{"100 endpoints that hang", endpoints, false, false, short},
		{"100 endpoints that hang, with messages of 32,000 characters", endpoints, false, false, strings.Repeat("ä", 32_000)},
		{"10 endpoints that hang, each for a conversation with messages of 32,000 characters", 10, false, true, strings.Repeat("ä", 32_000)},
		{"100 endpoints that are down", endpoints, true, false, short},
		{"one endpoint that hangs", 1, false, false, short},
	} {
		if r.short && w.endpoints == 1 {
			continue // its chats take a minute
		}
		if err := r.backlog(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// backlog fills a server of its own, as far as it gets in a minute, and looks at its memory: while it is filled, while
// everything waits and the list of deliveries is read, and again after a restart. What has failed once waits for an hour, so that nothing ends.
func (r *rig) backlog(ctx context.Context, w waiters) error {
	s, err := r.start(ctx, "PARLEY_DELIVERY_BACKOFF=1h")
	if err != nil {
		return err
	}
	defer s.end()
	to, err := receive(s.stage, endpoints)
	if err != nil {
		return err
	}
	if w.down {
		closed := newStage(ctx)
		to.url, err = listen(closed, to)
		closed.end()
		if err != nil {
			return err
		}
	}
	talkers, n, each := slices.Repeat([]business{demo}, chatters), backlog/(ofChat*w.endpoints)+1, ofChat*w.endpoints
	if w.alone {
		talkers, n, each = nil, aloneChats*w.endpoints, ofChat
	}
	for i := range w.endpoints {
		b := demo
		if w.alone {
			if b, err = s.business(fmt.Sprint("bench ", i)); err != nil {
				return err
			}
			talkers = append(talkers, b)
		}
		if err := s.registerAs(b.token, to.urlOf(i), "message.created", "run.finished"); err != nil {
			return err
		}
	}
	m, began := s.watchMemory(), time.Now()
	turns, err := s.chats(talkers, w.message, n)
	if err != nil {
		return err
	}
	inserted, filling := time.Since(began), m.peak()
	if err := pause(ctx, watched); err != nil {
		return err
	}
	for _, b := range slices.Compact(talkers) {
		if err := s.allWait(b); err != nil {
			return err
		}
	}
	waiting := m.peak()
	if err := s.restart(); err != nil {
		return err
	}
	if err := pause(ctx, 2*watched); err != nil { // on PostgreSQL the shards are free when their leases end
		return err
	}
	fmt.Printf("backlog, %s: %d deliveries wait for %s: at most %.0f MB anonymous, after a restart %.0f (gate %d); while %.0f s of chats made them %.0f\n",
		r.mode, turns*each, w.what, waiting/1024, m.peak()/1024, memoryGate, inserted.Seconds(), filling/1024)
	return nil
}

// chats runs so many, each talker's one after the other in one session, as fast as they are answered, or as many as there is time for, and returns how many those were.
func (s *server) chats(talkers []business, message string, n int) (int, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: chatters}}
	defer client.CloseIdleConnections()
	var begun, made atomic.Int64
	until := time.Now().Add(insertLimit)
	failed := make(chan error, len(talkers))
	var wg sync.WaitGroup
	for _, b := range talkers {
		wg.Go(func() {
			session := ""
			for time.Now().Before(until) && begun.Add(1) <= int64(n) {
				var err error
				if session, err = b.say(s.ctx, client, s.url, session, message); err != nil {
					failed <- err
					return
				}
				made.Add(1)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return 0, err
	default:
		return int(made.Load()), nil
	}
}

// allWait is an error if anything of a business has come to its end: then fewer wait than were made.
func (s *server) allWait(b business) error {
	answer, err := s.postAs(b.token, "/graphql", map[string]any{"query": `{ delivered: deliveries(status: DELIVERED, first: 1) { nodes { id } }
		failed: deliveries(status: FAILED, first: 1) { nodes { id } } skipped: deliveries(status: SKIPPED, first: 1) { nodes { id } } }`})
	if err != nil {
		return err
	}
	var ended struct {
		Data map[string]struct{ Nodes []any }
	}
	if err := json.Unmarshal(answer, &ended); err != nil || ended.Data == nil {
		return fmt.Errorf("deliveries: %.200s", answer)
	}
	for status, of := range ended.Data {
		if len(of.Nodes) > 0 {
			return errors.New("some deliveries wait no longer: " + status)
		}
	}
	return nil
}

// memoryWatch looks at a server's own memory ten times a second, until the server ends.
type memoryWatch struct{ most atomic.Int64 } // KB

func (s *server) watchMemory() *memoryWatch {
	m := &memoryWatch{}
	ctx, stop := context.WithCancel(s.ctx)
	s.Cleanup(stop)
	go func() {
		for ctx.Err() == nil {
			if _, own, err := memoryOf(int(s.pid.Load())); err == nil && int64(own) > m.most.Load() {
				m.most.Store(int64(own))
			}
			_ = pause(ctx, 100*time.Millisecond)
		}
	}()
	return m
}

// peak is the most since the last call, in KB.
func (m *memoryWatch) peak() float64 { return float64(m.most.Swap(0)) }
