package hook_test

import (
	"slices"
	"testing"
	"time"

	"parley/store"
	"parley/store/hook"
)

// TestWhatWaitsIsFound: the endpoints for which something waits, each with its last number and what is due next out of turn; first
// attempts in their sequence, whatever is after a number, and the rest as it becomes due. What has ended, by its row or by the rule,
// is not among them, nor what is of another shard.
func TestWhatWaitsIsFound(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		retried, off, idle := newEndpoint(t, b.h, b.v, store.RunFinished), newEndpoint(t, b.h, b.v, store.RunFinished), newEndpoint(t, b.h, b.v, store.CallEnded)
		b.turns(5)
		shard, elsewhere := b.shard(), (b.shard()+1)%hook.Shards
		lanes := func(shards ...int) map[string]hook.Lane {
			t.Helper()
			found, err := b.h.Lanes(t.Context(), shards)
			if err != nil {
				t.Fatal(err)
			}
			of := map[string]hook.Lane{}
			for _, l := range found {
				if l.BusinessID != b.v.BusinessID || l.Shard != shard {
					t.Errorf("a lane is %+v", l)
				}
				of[l.EndpointID] = l
			}
			if len(of) != len(found) {
				t.Errorf("twice: %+v", found)
			}
			return of
		}
		later := b.s.Now().Add(time.Hour)
		jobs := b.next(retried.ID)
		b.end(store.Retrying, &later, jobs[3], jobs[1])
		b.end(store.Delivered, nil, jobs[0], jobs[2], jobs[4])
		b.end(store.Delivered, nil, b.next(b.p.ID)[4])
		b.set(off.ID, store.Disabled)

		got := lanes(shard, elsewhere)
		if l := got[b.p.ID]; l.LastSeq != 12 || l.NextDue != 0 {
			t.Errorf("of first attempts: %+v", l)
		}
		if l := got[retried.ID]; l.LastSeq != 12 || l.NextDue != later {
			t.Errorf("of retries: %+v", l)
		}
		if _, found := got[idle.ID]; found || len(lanes(elsewhere)) != 0 || len(lanes()) != 0 {
			t.Errorf("found %+v, of another shard %+v, of none %+v", got, lanes(elsewhere), lanes())
		}

		next := func(endpoint string, after int64, limit int) (seqs []int64) {
			t.Helper()
			jobs, err := b.h.Next(t.Context(), shard, endpoint, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range jobs {
				if !j.InTurn() || j.EndpointID != endpoint || j.BusinessID != b.v.BusinessID || j.Shard != shard || j.Type != store.RunFinished ||
					j.Attempts != 0 || j.Trigger != store.TriggerAutomatic || j.ID() != hook.DeliveryID(j.EventID, endpoint) {
					t.Errorf("a job is %+v", j)
				}
				seqs = append(seqs, j.Seq)
			}
			return seqs
		}
		for _, c := range []struct {
			after int64
			limit int
			want  []int64
		}{{0, 10, []int64{3, 6, 9, 12}}, {0, 3, []int64{3, 6, 9}}, {6, 10, []int64{9, 12}}, {12, 10, nil}} {
			if got := next(b.p.ID, c.after, c.limit); !slices.Equal(got, c.want) {
				t.Errorf("%d after %d: %v, want %v", c.limit, c.after, got, c.want)
			}
		}
		if got := append(next(retried.ID, 0, 10), next(off.ID, 0, 10)...); len(got) != 0 {
			t.Errorf("of retries, and of what is over, %v are next", got)
		}

		due := func(endpoint string, until store.Time, limit int) (seqs []int64) {
			t.Helper()
			jobs, err := b.h.Due(t.Context(), shard, endpoint, until, limit)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range jobs {
				if j.InTurn() || j.EndpointID != endpoint || j.Due > until {
					t.Errorf("a job is %+v", j)
				}
				seqs = append(seqs, j.Seq)
			}
			return seqs
		}
		if got := due(retried.ID, later-1, 10); len(got) != 0 {
			t.Errorf("before their time %v are due", got)
		}
		if got := due(retried.ID, later, 10); !slices.Equal(got, []int64{6, 12}) {
			t.Errorf("%v are due", got)
		}
		if got := due(retried.ID, later, 1); !slices.Equal(got, []int64{6}) {
			t.Errorf("first, %v is due", got)
		}
		if got := due(b.p.ID, later, 10); len(got) != 0 {
			t.Errorf("out of their turn %v are due", got)
		}

		// Enabled again, it gets what comes from now on; a test goes to it before that.
		test, err := b.h.SendTest(t.Context(), b.v, off.ID, store.RunFinished)
		if err != nil {
			t.Fatal(err)
		}
		if jobs := b.due(off.ID); len(jobs) != 1 || jobs[0].ID() != test.ID() || jobs[0].Trigger != store.TriggerTest {
			t.Errorf("of a disabled endpoint %+v are due", jobs)
		}
		b.set(off.ID, store.Enabled)
		b.turns(1)
		if got := next(off.ID, 0, 10); !slices.Equal(got, []int64{18}) {
			t.Errorf("enabled again: %v", got)
		}
	})
}

// TestWhereDeliveriesGo: endpoints as the worker needs them, deleted ones too.
func TestWhereDeliveriesGo(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		gone := newEndpoint(t, b.h, b.v, store.RunFinished)
		b.set(b.p.ID, store.Disabled)
		if err := b.h.DeleteEndpoint(t.Context(), b.v, gone.ID); err != nil {
			t.Fatal(err)
		}
		to, err := b.h.Targets(t.Context(), []string{b.p.ID, gone.ID, "whe_none"})
		if err != nil || len(to) != 2 {
			t.Fatal(to, err)
		}
		p := to[b.p.ID]
		if p.URL != b.p.URL || p.BusinessID != b.v.BusinessID || p.Status != store.Disabled || p.Gone || p.Epoch != 1 || p.ReadAt == 0 {
			t.Errorf("%+v", p)
		}
		if secrets, err := b.h.SigningSecrets(p.EndpointID, p.Secrets, b.s.Now()); err != nil || len(secrets) != 1 {
			t.Errorf("%d secrets, %v", len(secrets), err)
		}
		if !to[gone.ID].Gone {
			t.Errorf("%+v", to[gone.ID])
		}
		test, err := b.h.SendTest(t.Context(), b.v, b.p.ID, store.CallEnded)
		if err != nil {
			t.Fatal(err)
		}
		b.turns(1)
		ids := []string{test.EventID}
		for _, e := range events(t, b.s, b.v) {
			ids = append(ids, e.ID)
		}
		bodies, err := b.h.Bodies(t.Context(), append(ids, "evt_none"))
		if err != nil || len(bodies) != 4 {
			t.Fatalf("%d bodies, %v", len(bodies), err)
		}
		for id, body := range bodies {
			if e, err := store.ParseEvent(body, 0); err != nil || e.ID != id || !slices.Contains(ids, id) {
				t.Errorf("the body of %s is %s, %v", id, body, err)
			}
		}
	})
}
