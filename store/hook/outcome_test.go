package hook_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/e2e/servers"
	"parley/store"
	"parley/store/hook"
)

// TestOutcomes: each is written with its attempt, and once; a retry waits for its time; a delivery of an endpoint that was disabled
// meanwhile is not revived.
func TestOutcomes(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		b.turns(4)
		jobs := b.next(b.p.ID)
		past := b.s.Now().Add(-time.Second)
		delivered, retrying, skipped := b.outcome(jobs[0], store.Delivered, nil), b.outcome(jobs[1], store.Retrying, &past), &hook.Outcome{
			Job: jobs[3], Hold: b.hold(), Status: store.Skipped,
		}
		recorded := b.record(delivered, retrying, skipped)
		want := []string{jobs[0].ID(), jobs[1].ID(), jobs[3].ID()}
		if got := recorded.Changed[b.v.BusinessID]; !slices.Equal(got, want) || len(recorded.Changed) != 1 || len(recorded.Disabled) != 0 {
			t.Errorf("recorded %+v, want %v", recorded, want)
		}
		if recorded := b.record(delivered, retrying, skipped); len(recorded.Changed) != 0 { // the answer to the first was lost
			t.Errorf("once more: %+v", recorded)
		}
		b.status(jobs[0].ID(), store.Delivered, 1)
		b.status(jobs[1].ID(), store.Retrying, 1)
		b.status(jobs[3].ID(), store.Skipped, 0)
		retry := b.due(b.p.ID)
		if len(retry) != 1 || retry[0].ID() != jobs[1].ID() || retry[0].Attempts != 1 || retry[0].InTurn() || retry[0].Due != past {
			t.Fatalf("due are %+v", retry)
		}
		if b.end(store.Failed, nil, retry...) != 1 || b.end(store.Delivered, nil, retry...) != 0 {
			t.Error("the retry counted not once")
		}
		b.status(jobs[1].ID(), store.Failed, 2)

		// One that is under way when its endpoint is disabled.
		b.set(b.p.ID, store.Disabled)
		later := b.s.Now().Add(time.Hour)
		if n := b.end(store.Retrying, &later, jobs[2]); n != 1 {
			t.Errorf("%d counted", n)
		}
		b.status(jobs[2].ID(), store.Failed, 1)
		if left := b.rows("deliveries WHERE due IS NOT NULL"); left != 0 {
			t.Errorf("%d wait", left)
		}
	})
}

// TestARetryCountsOnceWhateverIsLost: an outcome that is written again, since the answer to the first time was lost, changes nothing
// more, though its delivery waits again: neither the delivery, nor what its replay counts, nor its endpoint's health.
func TestARetryCountsOnceWhateverIsLost(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		since := b.s.Now()
		b.end(store.Failed, nil, b.event())
		r, err := b.h.ReplayEvents(t.Context(), b.v, hook.ReplayInput{EndpointID: b.p.ID, Since: since})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.h.AdvanceReplays(t.Context(), []hook.Hold{b.hold()}, 10); err != nil {
			t.Fatal(err)
		}
		job := b.due(b.p.ID)[0]
		later := b.s.Now().Add(time.Hour)
		o := b.outcome(job, store.Retrying, &later)
		b.record(o)
		b.record(o)
		b.status(job.ID(), store.Retrying, 2)
		if r, err := b.h.Replay(t.Context(), b.v.BusinessID, r.ID); err != nil || r.Sent != 1 {
			t.Errorf("the replay has sent %d, %v", r.Sent, err)
		}
	})
}

// TestLateOutcomes: an attempt that ends when its delivery has been ended, or sent again, is on record, and changes the state only if
// the receiver took the delivery. The attempt that was due by then counts all the same.
func TestLateOutcomes(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		for _, swept := range []bool{false, true} {
			b := newBench(t, open, nil)
			b.turns(3)
			jobs := b.next(b.p.ID)
			b.set(b.p.ID, store.Disabled)
			if swept {
				if err := b.h.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for _, j := range jobs {
				b.status(j.ID(), store.Skipped, 0)
			}
			b.end(store.Delivered, nil, jobs[0])
			b.status(jobs[0].ID(), store.Delivered, 1)
			b.end(store.Failed, nil, jobs[1])
			b.status(jobs[1].ID(), store.Failed, 1)
			b.set(b.p.ID, store.Enabled)
			b.status(jobs[2].ID(), store.Skipped, 0)

			// The third is sent again while its first attempt is still under way.
			if err := b.resend(jobs[2].ID()); err != nil {
				t.Fatal(err)
			}
			again := b.due(b.p.ID)
			if len(again) != 1 || again[0].Trigger != store.TriggerManual || again[0].Generation != 1 {
				t.Fatalf("due are %+v", again)
			}
			b.end(store.Failed, nil, jobs[2])
			b.status(jobs[2].ID(), store.Pending, 1)
			if b.fresh(jobs[2]) == nil {
				t.Error("a late outcome ended what was sent again")
			}
			if n := b.end(store.Failed, nil, again...); n != 1 {
				t.Errorf("%d counted of what was sent again", n)
			}
			b.status(jobs[2].ID(), store.Failed, 2)
			if b.fresh(jobs[2]) != nil {
				t.Error("what was sent again is still due")
			}
		}
	})
}

// TestDeliveredIsFinal: what a receiver took once stays delivered, whatever comes of sending it again.
func TestDeliveredIsFinal(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		job := b.event()
		b.end(store.Delivered, nil, job)
		past := b.s.Now().Add(-time.Second)
		for i, end := range []func(j *hook.Job){
			func(j *hook.Job) { b.end(store.Retrying, &past, j); b.end(store.Failed, nil, b.fresh(j)) },
			func(*hook.Job) {
				b.set(b.p.ID, store.Disabled)
				if err := b.h.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
				b.set(b.p.ID, store.Enabled)
			},
			func(j *hook.Job) { b.end(store.Failed, nil, j) },
		} {
			if err := b.resend(job.ID()); err != nil {
				t.Fatal(err)
			}
			j := b.fresh(job)
			if j == nil || b.delivery(job.ID()).Status != store.Delivered {
				t.Fatalf("%d: it is %+v", i, b.delivery(job.ID()))
			}
			end(j)
			if d := b.delivery(job.ID()); d.Status != store.Delivered || d.NextAttemptAt() != nil {
				t.Errorf("%d: in the end it is %+v", i, d)
			}
		}
	})
}

// TestAttemptsStay: the first stands in its delivery's row, those after it beside it, and each stays as it was whatever comes after.
func TestAttemptsStay(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		for name, body := range map[string]string{"short": "<&>\ufffd\n\"", "long": strings.Repeat("<", 16<<10), "none": ""} {
			job := b.event()
			past := b.s.Now().Add(-time.Second)
			attempt := func(number int, next *store.Time) *hook.Attempt {
				return &hook.Attempt{
					EndpointID: job.EndpointID, Seq: job.Seq, EventID: job.EventID, Number: number, Trigger: store.TriggerAutomatic, StartedAt: b.s.Now(), DurationMs: 7,
					StatusCode: ptr(500), Error: ptr("http_500"), ResponseBody: &body, NextAttemptAt: next,
					Timings: hook.Timings{DNSMs: ptr(0), ConnectMs: ptr(1), TLSMs: ptr(2), FirstByteMs: ptr(6), RemoteAddress: ptr("[::1]:443")},
				}
			}
			first, second := attempt(1, &past), attempt(2, nil)
			b.record(&hook.Outcome{Job: job, Hold: b.hold(), Status: store.Retrying, Next: &past, Attempt: first})
			b.record(&hook.Outcome{Job: b.fresh(job), Hold: b.hold(), Status: store.Failed, Attempt: second})
			if err := b.resend(job.ID()); err != nil {
				t.Fatal(err)
			}
			b.end(store.Delivered, nil, b.due(b.p.ID)...)
			b.status(job.ID(), store.Delivered, 3)
			all := b.attempts(job.ID())
			if diff := cmp.Diff([]*hook.Attempt{first, second}, all[:2]); diff != "" || all[2].Trigger != store.TriggerManual || all[2].Error != nil {
				t.Errorf("%s: the attempts are not as they were: %s", name, diff)
			}
		}
	})
}

// TestALostHoldChangesNothing: whatever is written under a hold that another replica has taken over.
func TestALostHoldChangesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		job := b.event()
		late := b.outcome(job, store.Delivered, nil)
		b.takenOver("another")
		if recorded := b.record(late); len(recorded.Changed) != 0 {
			t.Errorf("recorded under a hold that is over: %+v", recorded)
		}
		b.status(job.ID(), store.Pending, 0)
		if jobs := b.next(b.p.ID); len(jobs) != 1 || b.end(store.Delivered, nil, jobs...) != 1 {
			t.Errorf("the next holder finds %+v", jobs)
		}
		late.Status, late.Disable = store.Failed, "gone"
		if recorded := b.record(late); len(recorded.Changed) != 0 || len(recorded.Disabled) != 0 || b.endpoint(b.p.ID).Status != store.Enabled {
			t.Errorf("an endpoint was disabled under a hold that is over: %+v", recorded)
		}
		b.status(job.ID(), store.Delivered, 1)
	})
}

// TestEverythingAtOnce has outcomes come twice, as after a commit in doubt, beside resends, lists and a sweeper: each delivery ends once,
// and has each of its attempts on record.
func TestEverythingAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		off := newEndpoint(t, b.h, b.v, store.RunFinished)
		for range 5 {
			b.turns(6)
			jobs := append(b.next(b.p.ID), b.next(off.ID)...)
			rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
			var all sync.WaitGroup
			for chunk := range slices.Chunk(jobs, 3) {
				all.Go(func() {
					var outcomes []*hook.Outcome
					for _, j := range chunk {
						outcomes = append(outcomes, b.outcome(j, store.Delivered, nil))
					}
					for range 2 {
						if _, err := b.h.Record(t.Context(), outcomes); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Go(func() {
				b.set(off.ID, store.Disabled)
				if err := b.h.Sweep(t.Context()); err != nil {
					t.Error(err)
				}
				b.set(off.ID, store.Enabled)
			})
			for range 3 {
				all.Go(func() {
					if n := len(b.deliveries()); n < len(jobs) {
						t.Errorf("%d deliveries are shown", n)
					}
					err := b.resend(jobs[1].ID())
					if e, ok := store.AsError(err); err != nil && (!ok || e.Reason != "delivery_busy" && e.Reason != "endpoint_disabled") {
						t.Error(err)
					}
				})
			}
			all.Wait()
			b.end(store.Delivered, nil, append(b.due(b.p.ID), b.due(off.ID)...)...)
		}
		all := b.deliveries()
		if len(all) != 60 {
			t.Errorf("%d deliveries", len(all))
		}
		for _, d := range all {
			if d.Status != store.Delivered || d.NextAttemptAt() != nil || d.Attempts > 4 {
				t.Errorf("one is %+v", d)
			}
			b.status(d.ID(), store.Delivered, d.Attempts)
		}
	})
}

// TestAHoldIsRenewedDuringALongCommit: a commit under a hold that takes longer than the hold is good for, as with a slow database
// or much to write, does not cost it. Nor is the shard taken or given back under it.
func TestAHoldIsRenewedDuringALongCommit(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	b := newBench(t, func(t *testing.T, change func(*config)) (*store.Store, *hook.Hooks) { return open(t, url, change) }, nil)
	job := b.event()
	blocking, waiting := blocked(t, url)
	blocking("SELECT 1 FROM endpoints FOR UPDATE")
	written, given := make(chan error, 1), make(chan error, 1)
	var recorded hook.Recorded
	go func() {
		var err error
		recorded, err = b.h.Record(context.Background(), []*hook.Outcome{b.outcome(job, store.Failed, nil)})
		written <- err
	}()
	waiting(1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if held, _, err := b.h.RenewShards(ctx, "replica"); err != nil || len(held) != hook.Shards {
		t.Errorf("renewed %d shards, %v", len(held), err)
	}
	go func() { given <- b.h.GiveShards(context.Background(), []hook.Hold{b.hold()}) }()
	waiting(2)
	blocking("ROLLBACK")
	if err := <-written; err != nil || len(recorded.Changed) != 1 {
		t.Errorf("recorded %v, %v", recorded, err)
	}
	if err := <-given; err != nil {
		t.Error(err)
	}
}

// blocked is a transaction beside the stores, in which statements are run, and what waits until so many of theirs wait for a lock.
func blocked(t *testing.T, url string) (do func(statement string), waiting func(n int)) {
	t.Helper()
	db := dial(t, url)
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	do = func(statement string) {
		t.Helper()
		if _, err := conn.ExecContext(context.Background(), statement); err != nil {
			t.Fatal(err)
		}
	}
	do("BEGIN")
	t.Cleanup(func() { _, _ = conn.ExecContext(context.Background(), "ROLLBACK"); _ = conn.Close() })
	return do, func(n int) {
		t.Helper()
		for count := 0; count < n; {
			err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&count)
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

var _ = fmt.Sprint
var _ *sql.DB
