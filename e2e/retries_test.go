package e2e_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// chats has the demo agent chat n times, each time in a new session, with some clients at once.
func (s *server) chats(n int) {
	s.t.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for left.Add(-1) >= 0 {
				status, _, raw, err := s.try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey), `{"message":"Hello","channel":"sms"}`)
				if err != nil || status != http.StatusOK {
					s.t.Errorf("chat: %d %s %v", status, raw, err)
					return
				}
			}
		})
	}
	clients.Wait()
}

// TestManyRetriesAtOnce: the first retries of one endpoint that are all due at the same moment go out as fast as the first attempts did.
func TestManyRetriesAtOnce(t *testing.T) {
	t.Parallel()
	const chats, events = 400, 3 * 400
	f := production(t, 1, patientDeliveries)
	s := f.replicas[0]
	open := make(chan struct{})
	var mu sync.Mutex // guards what follows
	tried := map[string]int{}
	var came [2]int // first attempts, and retries
	var opened, allTried, due, allCame time.Time
	r := receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
		<-open
		mu.Lock()
		defer mu.Unlock()
		id := req.Header.Get("Webhook-Id")
		again := tried[id]
		if tried[id]++; again > 1 {
			t.Errorf("%s came %d times", id, again+1)
			return
		}
		came[again]++
		switch {
		case again == 0:
			if w.Header().Set("Retry-After", due.UTC().Format(http.TimeFormat)); came[0] == events {
				allTried = time.Now()
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		case came[1] == events:
			allCame = time.Now()
		}
	})
	s.register(r.URL, everything...)
	s.chats(chats)
	go func() {
		for range r.came {
			continue
		}
	}()
	mu.Lock()
	opened, due = time.Now(), time.Now().Add(8*time.Second).Truncate(time.Second)
	mu.Unlock()
	close(open)
	eventually(t, "tried again", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return !allCame.IsZero()
	})
	mu.Lock()
	defer mu.Unlock()
	first, again := allTried.Sub(opened), allCame.Sub(later(due, allTried))
	t.Logf("%d first attempts in %v, their retries in %v from when they were due", events, first.Round(10*time.Millisecond), again.Round(10*time.Millisecond))
	if again > 3*first+2*time.Second {
		t.Errorf("%d first attempts took %v, their retries %v", events, first, again)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TestDoublesOfACrash: however many outcomes the database has not taken when the server dies, no more than 500 of them are made again,
// and what was in flight.
func TestDoublesOfACrash(t *testing.T) {
	t.Parallel()
	const endpoints, chats = 10, 70
	s := start(t, patientDeliveries)
	open := make(chan struct{})
	var mu sync.Mutex // guards what follows
	requests := map[string]int{}
	came := 0
	r := receive(t, func(_ int, _ http.ResponseWriter, req *http.Request) {
		select {
		case <-open:
		case <-req.Context().Done():
			return
		}
		mu.Lock()
		defer mu.Unlock()
		requests[req.URL.Path+req.Header.Get("Webhook-Id")]++
		came++
	})
	go func() {
		for range r.came {
			continue
		}
	}()
	for i := range endpoints {
		s.register(fmt.Sprintf("%s/%d", r.URL, i), everything...)
	}
	s.chats(chats)

	// Somebody else writes in the database, and does not end.
	db, err := sql.Open("sqlite", filepath.Join(s.dir, "parley.db")+"?_txlock=immediate&_pragma=busy_timeout(20000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	lock, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	close(open)
	taken, quiet := 0, 0
	eventually(t, "it sends no more", func() bool {
		mu.Lock()
		defer mu.Unlock()
		if came != taken {
			taken, quiet = came, 0
		}
		quiet++
		return taken > 0 && quiet > 100
	})
	s.kill()
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	s.up()
	eventually(t, "all of them", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(requests) == endpoints*3*chats
	})
	eventually(t, "nothing waits", func() bool {
		var n int
		return db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM deliveries WHERE due IS NOT NULL").Scan(&n) == nil && n == 0
	})
	mu.Lock()
	defer mu.Unlock()
	doubles := came - len(requests)
	t.Logf("%d deliveries; %d had arrived when it died, %d came again", len(requests), taken, doubles)
	if most := oneBatch + endpoints*endpointInFlight; doubles > most {
		t.Errorf("%d deliveries came again, and %d may", doubles, most)
	}
}

// TestDeliveriesAfterADeath: deliveries go on within seconds when the replica that made them has died, at the one that is started in its
// place, and at another one that is there.
func TestDeliveriesAfterADeath(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"restarted", "another replica"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := production(t, 1)
			in := newInbox(t)
			dying := f.replicas[0]
			dying.register(in.URL, everything...)
			dying.chat("Hello", "")
			db := f.open()
			shard := "SELECT owner FROM shards WHERE shard = (SELECT MAX(shard) FROM endpoints)"
			owner := func() (id string) { _ = db.QueryRowContext(t.Context(), shard).Scan(&id); return id }
			mine := owner()
			other := &server{t: t, dir: t.TempDir(), env: f.env}
			if how == "another replica" {
				other.up()
				f.counts("shared out", "SELECT COUNT(DISTINCT owner) FROM shards WHERE owner <> ''", 2)
				if owner() != mine {
					dying, other = other, dying
				}
			}
			eventually(t, "delivered", func() bool { events, _ := in.counts(); return events == 3 })
			dying.kill()
			began := time.Now()
			if how == "restarted" {
				dying.up()
				other = dying
			}
			other.chat("Hello", "")
			eventually(t, "delivered again", func() bool { events, _ := in.counts(); return events > 3 })
			took := time.Since(began)
			t.Logf("%s: the first delivery came %v after the death", how, took.Round(10*time.Millisecond))
			if took > 8*time.Second {
				t.Errorf("%s: the first delivery came %v after the death", how, took)
			}
		})
	}
}

// TestManyTests: tests go the way of any delivery. They fill their endpoint's slots, and share
// their commits, and their outcomes', as the deliveries of as many chats do.
func TestManyTests(t *testing.T) {
	t.Parallel()
	const n, slots = 400, 8
	f := production(t, 1, patientDeliveries)
	s, db := f.replicas[0], f.open()
	var came, waiting atomic.Int64
	full := make(chan struct{})
	r := receive(t, func(int, http.ResponseWriter, *http.Request) {
		if waiting.Add(1) == slots {
			close(full)
		}
		<-full
		came.Add(1)
	})
	go func() {
		for range r.came {
			continue
		}
	}()
	id, _ := s.register(r.URL, "run.finished")
	// committed counts the transactions of n deliveries, and of what makes them.
	committed := func(what string, send func()) int {
		batches := "SELECT COUNT(*) FROM batches"
		before, target := number(t, db, batches), came.Load()+n
		send()
		eventually(t, what, func() bool { return came.Load() >= target })
		f.counts(what+" written", "SELECT COUNT(*) FROM deliveries WHERE due IS NOT NULL", 0)
		return number(t, db, batches) - before
	}
	tests := committed("tests", func() {
		var clients sync.WaitGroup
		for range n / 20 {
			clients.Go(func() {
				s.many(token, 20, func(int) string { return fmt.Sprintf(`sendTestEvent(endpointId: %q, type: RUN_FINISHED) { id }`, id) })
			})
		}
		clients.Wait()
	})
	events := committed("events", func() { s.chats(n) })
	t.Logf("%d tests took %d transactions, as many chats and their deliveries %d", n, tests, events)
	if tests > events {
		t.Errorf("%d tests took %d transactions, as many chats and their deliveries %d", n, tests, events)
	}
}
