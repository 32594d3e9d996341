package hook_test

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun/driver/pgdriver"

	"parley/e2e/servers"
	"parley/store"
)

// TestShardsHaveOneHolder: a shard is taken by one replica at a time; what was in flight under its last hold is free at once
// for the next, in its place, and whatever is still written under that last hold changes nothing.
func TestShardsHaveOneHolder(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, func(c *store.Config) { c.Ringing = func() bool { return true } }) // deliveries are born with a lease
		v := newBusiness(t, s)
		p := newEndpoint(t, s, v, store.EventTypes...)
		turn := begin(t, s, v, "")
		first := takeAll(t, s, "first")
		finish(t, s, turn)
		shard := store.ShardOf(v.BusinessID)
		events, err := s.EventsAfter(t.Context(), v.BusinessID, 1, 3, nil, 10)
		if err != nil || len(events) != 2 {
			t.Fatal(events, err)
		}
		fresh, overtaken, err := s.FreshJobs(t.Context(), []store.Hold{first[shard]}, []string{events[0].ID, events[1].ID})
		if err != nil || len(fresh) != 2 || fresh[0].Hold() != first[shard] {
			t.Fatalf("fresh: %v, %v", fresh, err)
		}
		if others, _, err := s.FreshJobs(t.Context(), []store.Hold{first[(shard+1)%store.Shards]}, []string{events[0].ID}); err != nil || len(others) != 0 {
			t.Errorf("of another shard: %v, %v", others, err)
		}
		if !slices.Equal(overtaken, []string{p.ID}) {
			t.Errorf("the first event, which was in flight when the shard was taken, does not wait in SQL: %v", overtaken)
		}
		if s.Shared() { // nobody takes what is held
			if taken, err := s.TakeShards(t.Context(), "second", 1); err != nil || len(taken) != 0 {
				t.Fatalf("took what is held: %v, %v", taken, err)
			}
			if held, share, err := s.RenewShards(t.Context(), "second"); err != nil || len(held) != 0 || share != store.Shards {
				t.Errorf("the only live replica holds %v of %d, %v", held, share, err)
			}
			if held, share, err := s.RenewShards(t.Context(), "first"); err != nil || len(held) != store.Shards || share != store.Shards/2 {
				t.Errorf("the first of two holds %d, its share is %d, %v", len(held), share, err)
			}
			if err := s.GiveShards(t.Context(), []store.Hold{first[shard]}); err != nil {
				t.Fatal(err)
			}
		}
		taken, err := s.TakeShards(t.Context(), "second", store.Shards)
		if err != nil {
			t.Fatal(err)
		}
		var second store.Hold
		for _, h := range taken {
			if h.Shard == shard {
				second = h
			}
		}
		outcome := &store.Outcome{Job: fresh[0], Status: store.Delivered, Attempt: &store.Attempt{
			DeliveryID: fresh[0].DeliveryID, Number: 1, Trigger: store.TriggerAutomatic, StartedAt: store.Now(),
		}}
		if changed, _, err := s.Record(t.Context(), []*store.Outcome{outcome}); err != nil || len(changed) != 0 {
			t.Errorf("recorded under a hold that is over: %v, %v", changed, err)
		}
		if err := s.Release(t.Context(), fresh); err != nil {
			t.Fatal(err)
		}
		if err := s.GiveShards(t.Context(), []store.Hold{first[shard]}); err != nil {
			t.Fatal(err)
		}
		if jobs, err := s.Claim(t.Context(), []store.Wanted{{EndpointID: p.ID, Limit: 10, UpTo: 3, Hold: first[shard]}}, time.Minute); err != nil || len(jobs) != 0 {
			t.Errorf("claimed under a hold that is over: %v, %v", jobs, err)
		}
		jobs, err := s.Claim(t.Context(), []store.Wanted{{EndpointID: p.ID, Limit: 10, UpTo: 3, Hold: second}}, time.Minute)
		if err != nil || len(jobs) != 3 || jobs[0].Seq != 1 || jobs[2].Seq != 3 || jobs[0].Hold() != second {
			t.Fatalf("claimed by the second: %v, %v", jobs, err)
		}
		for i := range fresh {
			fresh[i] = jobs[i]
		}
		outcome.Job, outcome.Attempt.DeliveryID = jobs[0], jobs[0].DeliveryID
		if changed, _, err := s.Record(t.Context(), []*store.Outcome{outcome}); err != nil || len(changed) != 1 {
			t.Errorf("recorded by the second: %v, %v", changed, err)
		}
	})
}

// TestAHoldIsRenewedDuringALongCommit: a commit under a hold that takes longer than the hold is good for, as with a slow database
// or much to write, does not cost it. Nor is the shard taken or given back under it.
func TestAHoldIsRenewedDuringALongCommit(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	s := open(t, func(c *store.Config) { c.URL = url })
	v := newBusiness(t, s)
	p := newEndpoint(t, s, v, store.RunFinished)
	hold := takeAll(t, s, "replica")[store.ShardOf(v.BusinessID)]
	finish(t, s, begin(t, s, v, ""))
	jobs, err := s.Claim(t.Context(), []store.Wanted{{EndpointID: p.ID, Limit: 1, UpTo: 100, Hold: hold}}, time.Minute)
	if err != nil || len(jobs) != 1 {
		t.Fatal(jobs, err)
	}
	db := sql.OpenDB(pgdriver.NewConnector(pgdriver.WithDSN(url)))
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), "SELECT 1 FROM endpoints FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	waiting := func(n int) { // until so many of the store's transactions wait for a lock
		t.Helper()
		for count := 0; count != n; {
			err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&count)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	written, given := make(chan error, 1), make(chan error, 1)
	var changed []string
	go func() {
		class := "timeout"
		var err error
		changed, _, err = s.Record(context.Background(), []*store.Outcome{{Job: jobs[0], Status: store.Failed, Attempt: &store.Attempt{
			DeliveryID: jobs[0].DeliveryID, Number: 1, Trigger: store.TriggerAutomatic, StartedAt: store.Now(), Error: &class,
		}}})
		written <- err
	}()
	waiting(1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if held, _, err := s.RenewShards(ctx, "replica"); err != nil || len(held) != store.Shards {
		t.Errorf("renewed %d shards, %v", len(held), err)
	}
	go func() { given <- s.GiveShards(context.Background(), []store.Hold{hold}) }()
	waiting(2)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil || len(changed) != 1 {
		t.Errorf("recorded %v, %v", changed, err)
	}
	if err := <-given; err != nil {
		t.Error(err)
	}
}

// TestRetriesAreNotStarved: however many deliveries were never tried, a claim takes retries too.
func TestRetriesAreNotStarved(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		p := newEndpoint(t, s, v, store.RunFinished)
		holds := takeAll(t, s, "replica")
		want := []store.Wanted{{EndpointID: p.ID, Limit: 4, UpTo: 100, Hold: holds[store.ShardOf(v.BusinessID)]}}
		finish(t, s, begin(t, s, v, ""))
		first, err := s.Claim(t.Context(), want, time.Minute)
		if err != nil || len(first) != 1 {
			t.Fatal(first, err)
		}
		due := store.Now()
		_, _, err = s.Record(t.Context(), []*store.Outcome{{Job: first[0], Status: store.Retrying, Next: &due, Attempt: &store.Attempt{
			DeliveryID: first[0].DeliveryID, Number: 1, Trigger: store.TriggerAutomatic, StartedAt: due,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		for range 6 {
			finish(t, s, begin(t, s, v, ""))
		}
		jobs, err := s.Claim(t.Context(), want, time.Minute)
		if err != nil || len(jobs) != 5 || jobs[0].Attempts != 1 || jobs[4].Attempts != 0 {
			t.Errorf("claimed %d, %v", len(jobs), err)
		}
	})
}

// TestReleaseIsOfTheLease: a job that was forgotten for longer than its lease, and claimed again meanwhile, gives nothing back
// of what its new holder is sending.
func TestReleaseIsOfTheLease(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		p := newEndpoint(t, s, v, store.RunFinished)
		want := []store.Wanted{{EndpointID: p.ID, Limit: 4, UpTo: 100, Hold: takeAll(t, s, "replica")[p.Shard]}}
		finish(t, s, begin(t, s, v, ""))
		claim := func(lease time.Duration) []*store.Job {
			t.Helper()
			jobs, err := s.Claim(t.Context(), want, lease)
			if err != nil {
				t.Fatal(err)
			}
			return jobs
		}
		forgotten := claim(-time.Second)
		held := claim(time.Minute)
		if len(forgotten) != 1 || len(held) != 1 || held[0].DeliveryID != forgotten[0].DeliveryID {
			t.Fatalf("claimed %v, and when that lease was over %v", forgotten, held)
		}
		if err := s.Release(t.Context(), forgotten); err != nil {
			t.Fatal(err)
		}
		if jobs := claim(time.Minute); len(jobs) != 0 {
			t.Errorf("what is held was given back by whoever held it before: %v", jobs)
		}
		if err := s.Release(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		if jobs := claim(time.Minute); len(jobs) != 1 {
			t.Errorf("what is held was not given back: %v", jobs)
		}
		d := deliveries(t, s, v)[0]
		if err := s.DeleteEndpoint(t.Context(), v, p.ID); err != nil {
			t.Fatal(err)
		}
		if err := s.Release(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		if d, err := s.Delivery(t.Context(), v.BusinessID, d.ID); err != nil || d.Status != store.Skipped || d.NextAttemptAt != nil {
			t.Errorf("what has ended came back: %+v, %v", d, err)
		}
	})
}

// TestALeaseWaitsForNobody: a replica's shards are renewed while all of its other connections wait, and while it hands one of them
// back that somebody else is at.
func TestALeaseWaitsForNobody(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	s := open(t, func(c *store.Config) { c.URL, c.Ringing = url, func() bool { return true } }) // deliveries are born with a lease
	v := newBusiness(t, s)
	newEndpoint(t, s, v, store.EventTypes...)
	holds := takeAll(t, s, "mine")
	begin(t, s, v, "") // its delivery is in flight
	db := sql.OpenDB(pgdriver.NewConnector(pgdriver.WithDSN(url)))
	defer func() { _ = db.Close() }()
	blocking, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = blocking.Rollback() }()
	waiting := func(n int, query string) {
		t.Helper()
		for waiting := 0; waiting < n; {
			err := blocking.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE $1`, query).Scan(&waiting)
			if err == nil {
				_, err = blocking.ExecContext(t.Context(), "SELECT pg_stat_clear_snapshot()")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	renewed := func(want int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if held, _, err := s.RenewShards(ctx, "mine"); err != nil || len(held) != want {
			t.Errorf("renewed %d of %d, %v", len(held), want, err)
		}
	}
	if _, err := blocking.ExecContext(t.Context(), "SELECT 1 FROM fan_outs FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	var others sync.WaitGroup
	defer others.Wait()
	defer func() { _ = blocking.Rollback() }()
	others.Go(func() { _ = s.GiveShards(t.Context(), []store.Hold{holds[store.ShardOf(v.BusinessID)]}) })
	waiting(1, "SELECT event_id, LENGTH%")
	renewed(store.Shards - 1)
	if _, err := blocking.ExecContext(t.Context(), "LOCK TABLE runs IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	for range store.Readers {
		others.Go(func() { _, _ = s.Run(t.Context(), v.BusinessID, "run_none") })
	}
	waiting(store.Readers-1, "SELECT%runs%") // the hand-back has the last
	renewed(store.Shards - 1)
}
