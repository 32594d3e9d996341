package webhook_test

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/store"
	"parley/store/hook"
	"parley/webhook"
)

// TestOneConversationHangs: an endpoint never answers for one conversation, of which far more waits than its part of the
// window. All others go on, and once it answers that one comes as well, whole and in order.
func TestOneConversationHangs(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} { // what the bell brings, and what is read from SQL
		w := newWorld(t, t.TempDir(), func(c *webhook.Config) { c.Timeout = time.Hour })
		var mu sync.Mutex
		var came []string
		var hanging atomic.Value
		hanging.Store("none")
		stop := make(chan struct{})
		answer := sync.OnceFunc(func() { close(stop) })
		t.Cleanup(answer)
		r := newReceiver(t, func(_ http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			if strings.Contains(string(body), hanging.Load().(string)) {
				mu.Lock()
				came = append(came, req.Header.Get("Webhook-Id"))
				mu.Unlock()
				<-stop
			}
		})
		session := w.turn("")
		hanging.Store(session)
		p, _ := w.endpoint(r.URL, store.MessageCreated)
		w.deaf.Store(deaf)
		const long, others = 150, 40 // two events each
		for i := range long {
			w.turn(session)
			if i%4 == 0 {
				w.turn("")
			}
		}
		for range others {
			w.turn("")
		}
		w.deaf.Store(false)
		n := 2 * (long + (long+3)/4 + others)
		of := func(all []*hook.Delivery) (delivered int) {
			for _, d := range all {
				if d.Status == store.Delivered {
					delivered++
				}
			}
			return delivered
		}
		until(t, "all but the one conversation have come", func() bool { return len(r.got()) == n-2*long+1 })
		answer()
		until(t, "that one has come, too", func() bool { return len(r.got()) == n })
		mu.Lock()
		if len(came) != 2*long || !slices.IsSorted(came) { // ids of events are in order of their making
			t.Errorf("deaf %v: of the conversation %d came, in order: %v", deaf, len(came), slices.IsSorted(came))
		}
		mu.Unlock()
		w.await(p.ID, func(all []*hook.Delivery) bool { return of(all) == 100 })
	}
}

// TestUnwrittenOutcomesAreBounded: while the database takes no outcome, receivers that answer get no more attempts than may be
// lost; nothing of it is made twice when it takes them again.
func TestUnwrittenOutcomesAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newWorld(t, dir, nil)
	r := newReceiver(t, nil)
	const endpoints, turns = 100, 20
	for range endpoints {
		w.endpoint(r.URL, store.RunFinished)
	}
	onDisk(t, dir, func(db *sql.DB) {
		if _, err := db.ExecContext(t.Context(), "CREATE TRIGGER away BEFORE UPDATE OF attempts ON deliveries BEGIN SELECT RAISE(ABORT, 'away'); END"); err != nil {
			t.Fatal(err)
		}
		for range turns {
			w.turn("")
		}
		until(t, "as many have come as may be lost", func() bool { return w.worker.Unwritten() == webhook.MostUnwritten })
		begun := webhook.MostUnwritten + w.worker.InFlight() // on a busy machine some count as slow, which answer at once
		for range 20 {
			<-time.After(20 * time.Millisecond)
			if n := len(r.got()); n > begun || w.worker.Unwritten() > webhook.MostUnwritten {
				t.Fatalf("%d attempts were answered, and none of their outcomes is written: want %d at most", n, begun)
			}
		}
		if _, err := db.ExecContext(t.Context(), "DROP TRIGGER away"); err != nil {
			t.Fatal(err)
		}
	})
	until(t, "all has come", func() bool { return len(r.got()) >= endpoints*turns })
	until(t, "all is written", func() bool { return w.worker.Unwritten() == 0 && w.worker.Held() == 0 })
	if n := len(r.got()); n != endpoints*turns {
		t.Errorf("%d attempts of %d deliveries", n, endpoints*turns)
	}
}

// TestRetriesGoWhenTheyAreDue: hundreds of deliveries to one endpoint fail, and are all due again at once. They go out as fast as
// it takes them, and so does what is fresh meanwhile.
func TestRetriesGoWhenTheyAreDue(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		var well atomic.Bool
		w := newWorldOn(t, url, func(c *webhook.Config) { c.Policy = webhook.Policy{Retries: 1, Backoff: 10 * time.Second} })
		r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
			if !well.Load() {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		p, _ := w.endpoint(r.URL, store.EventTypes...)
		const talkers, turns = 16, 45
		distinct := func() int {
			ids := map[string]bool{}
			for _, req := range r.got() {
				ids[req.header.Get("Webhook-Id")] = true
			}
			return len(ids)
		}
		var talking sync.WaitGroup
		for range talkers {
			talking.Go(func() {
				for range turns {
					w.turn("")
				}
			})
		}
		talking.Wait()
		const all = 3 * talkers * turns // at 48 a second, as it was once, they would take 45 s
		until(t, "all have come", func() bool { return distinct() == all })
		well.Store(true)
		w.turn("")
		until(t, "all were taken", func() bool { return len(r.got()) == 2*all+3 })
		w.await(p.ID, func(all []*hook.Delivery) bool {
			return !slices.ContainsFunc(all, func(d *hook.Delivery) bool { return d.Status != store.Delivered })
		})
	})
}

// TestALostBellIsFound: the worker hears nothing, of a new endpoint either, and delivers all the same; and with the bell back
// it makes nothing twice.
func TestALostBellIsFound(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		w := newWorldOn(t, url, nil)
		r := newReceiver(t, nil)
		w.deaf.Store(true)
		p, _ := w.endpoint(r.URL, store.EventTypes...)
		w.turn("")
		w.settled(p.ID, 3)
		w.turn("")
		w.settled(p.ID, 6)
		w.deaf.Store(false)
		w.turn("")
		w.settled(p.ID, 9)
		if n := len(r.got()); n != 9 {
			t.Errorf("%d attempts of 9 deliveries", n)
		}
	})
}

// TestLostCommits: a failover loses what the worker was told of, and SQL gives the same numbers
// again, all of them or the first. With nobody else to tell it, the worker delivers what happens
// then.
func TestLostCommits(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]int{"all numbers are given again": 1, "some are": 2} {
		lostCommits := func(t *testing.T, url string) {
			w := newWorldOn(t, url, nil)
			r := newReceiver(t, nil)
			p, _ := w.endpoint(r.URL, store.EventTypes...)
			w.turn("")
			w.settled(p.ID, 3)
			for range lost {
				w.turn("")
			}
			w.settled(p.ID, 3+3*lost)
			w.goBack(3)
			w.turn("")
			w.settled(p.ID, 6)
			w.turn("")
			for _, d := range w.settled(p.ID, 9) {
				if d.Status != store.Delivered {
					t.Errorf("delivery %d is %s", d.Seq, d.Status)
				}
			}
			if n, all := len(r.got()), 9+3*lost; n != all {
				t.Errorf("%d attempts, want %d", n, all)
			}
		}
		t.Run(name, func(t *testing.T) { onBoth(t, lostCommits) })
	}
}

// TestLateRenewals: the hold on all shards cannot be renewed in time while attempts are in flight,
// others wait and a conversation goes on; in one case its lease is over by then. Nobody else took
// it, so nothing is sent twice, and all is sent.
func TestLateRenewals(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]string{
		"before the lease is over": "SELECT TRUE", "after it": "SELECT MAX(held_until) < extract(epoch FROM clock_timestamp()) * 1000000 FROM shards",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldOn(t, servers.Database(t), func(c *webhook.Config) { c.Timeout = time.Minute })
			release := make(chan struct{})
			answer := sync.OnceFunc(func() { close(release) })
			r := newReceiver(t, func(http.ResponseWriter, *http.Request) { <-release })
			t.Cleanup(answer)
			p, _ := w.endpoint(r.URL, store.EventTypes...)
			session := w.turn("")
			for range 19 {
				w.turn("")
			}
			until(t, "its slots are full", func() bool { return r.count() == 8 })
			db, err := sql.Open("pgx", w.url)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.ExecContext(t.Context(), "LOCK TABLE replicas IN EXCLUSIVE MODE"); err != nil {
				t.Fatal(err)
			}
			until(t, "nothing begins", func() bool { return w.worker.Shards() == 0 })
			w.turn(session)
			until(t, "the lease is as old as it is to be", func() (so bool) {
				if err := db.QueryRowContext(t.Context(), over).Scan(&so); err != nil {
					t.Fatal(err)
				}
				return so
			})
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			until(t, "it is renewed", func() bool { return w.worker.Shards() == hook.Shards })
			answer()
			const all = 3 * 21
			for _, d := range w.settled(p.ID, all) {
				if d.Status != store.Delivered || d.Attempts != 1 {
					t.Errorf("delivery %d: %s after %d attempts", d.Seq, d.Status, d.Attempts)
				}
			}
			if n := r.count(); n != all {
				t.Errorf("%d attempts of %d deliveries", n, all)
			}
		})
	}
}

// goBack has the database lose what was committed after a number, as a failover may.
func (w *world) goBack(seq int64) {
	w.t.Helper()
	kind, dsn := "sqlite", store.SQLitePath(w.url)
	if store.IsPostgres(w.url) {
		kind, dsn = "pgx", w.url
	}
	db, err := sql.Open(kind, dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for _, lose := range []string{"DELETE FROM deliveries WHERE seq > %d", "DELETE FROM events WHERE seq > %d", "UPDATE businesses SET seq = %d"} {
		if _, err := db.ExecContext(w.t.Context(), fmt.Sprintf(lose, seq)); err != nil {
			w.t.Fatal(err)
		}
	}
}
