package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/store"
)

// folded is a bench whose deliveries are born without rows.
func folded(t *testing.T, open opener) *bench {
	return newBench(t, open, func(c *store.Config) { c.Ringing = func() bool { return true } })
}

// born makes so many events, and reads their deliveries as the worker does when the bell rings: in sequence.
func (b *bench) born(n int) (jobs []*store.Job) {
	b.t.Helper()
	for range n {
		finish(b.t, b.s, begin(b.t, b.s, b.v, ""))
	}
	var ids []string
	for _, e := range events(b.t, b.s, b.v) {
		if e.Type == store.RunFinished {
			ids = append(ids, e.ID)
		}
	}
	jobs, _, err := b.s.FreshJobs(b.t.Context(), []store.Hold{b.hold()}, ids[len(ids)-n:])
	if err != nil {
		b.t.Fatal(err)
	}
	return jobs
}

// counted fails unless there are so many fan-outs and rows.
func (b *bench) counted(when string, fanOuts, rows int) {
	b.t.Helper()
	f, err := b.s.FanOuts(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	r, err := b.s.Rows(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	if f != fanOuts || r != rows {
		b.t.Errorf("%s there are %d fan-outs and %d rows, want %d and %d", when, f, r, fanOuts, rows)
	}
}

// unfold has all deliveries become rows, as if they had waited.
func (b *bench) unfold() {
	b.t.Helper()
	err := b.s.AgeFanOuts(b.t.Context(), store.FoldedFor)
	if err == nil {
		err = b.s.Unfold(b.t.Context())
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// TestFoldedDeliveriesAreShown: to readers it is all the same whether a delivery has a row. They see each once, in its place, with its
// filters, on each page, and as it is.
func TestFoldedDeliveriesAreShown(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := folded(t, open)
		other := newEndpoint(t, b.s, b.v, store.RunFinished)
		from := b.s.Now().Add(-time.Minute)
		jobs := b.born(5)
		if len(jobs) != 10 || jobs[0].Seq != 3 || jobs[9].Seq != 15 || !jobs[0].Fresh() || jobs[0].URL != b.p.URL || jobs[0].Hold() != b.hold() {
			t.Fatalf("the jobs are %+v", jobs)
		}
		if err := b.s.Unfold(t.Context()); err != nil { // they are too young for that
			t.Fatal(err)
		}
		b.counted("at first", 5, 0)
		want := map[string]store.DeliveryStatus{}
		for _, j := range jobs {
			want[j.DeliveryID] = store.Pending
		}
		seen := func(filter store.DeliveryFilter, first int) map[string]store.DeliveryStatus {
			t.Helper()
			got := map[string]store.DeliveryStatus{}
			last := "dlv_z"
			for page := (store.PageInput{First: first}); ; {
				c, err := b.s.Deliveries(t.Context(), b.v.BusinessID, filter, page)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range c.Nodes() {
					if d.ID >= last {
						t.Fatalf("%s comes after %s", d.ID, last)
					}
					got[d.ID], last = d.Status, d.ID
				}
				if !c.PageInfo.HasNextPage {
					return got
				}
				page.After = c.PageInfo.EndCursor
			}
		}
		check := func(when string) {
			t.Helper()
			for first := 1; first <= 11; first += 2 {
				if got := seen(store.DeliveryFilter{}, first); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s, in pages of %d: %v, want %v", when, first, got, want)
				}
				for _, status := range store.DeliveryStatuses {
					some := map[string]store.DeliveryStatus{}
					for _, j := range jobs {
						if j.EndpointID == other.ID && want[j.DeliveryID] == status {
							some[j.DeliveryID] = status
						}
					}
					filter := store.DeliveryFilter{EndpointID: &other.ID, Status: &status}
					if got := seen(filter, first); fmt.Sprint(got) != fmt.Sprint(some) {
						t.Errorf("%s, %s to the second in pages of %d: %v, want %v", when, status, first, got, some)
					}
				}
			}
			of, err := b.s.DeliveriesOf(t.Context(), b.v.BusinessID, []string{b.p.ID, other.ID}, nil, store.PageInput{First: 3})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range []string{b.p.ID, other.ID} {
				var ids []string
				for _, j := range slices.Backward(jobs) {
					if j.EndpointID == p && len(ids) < 3 {
						ids = append(ids, j.DeliveryID)
					}
				}
				var got []string
				for _, d := range of[p].Nodes() {
					got = append(got, d.ID)
				}
				if !slices.Equal(got, ids) || !of[p].PageInfo.HasNextPage {
					t.Errorf("%s, of an endpoint: %v, want %v and more", when, got, ids)
				}
			}
			rung, err := b.s.DeliveriesRung(t.Context(), b.v.BusinessID, []string{jobs[0].DeliveryID}, []string{jobs[9].EventID})
			if err != nil || len(rung) != 3 {
				t.Errorf("%s, rung for: %v, %v", when, rung, err)
			}
			changed, err := b.s.DeliveriesChanged(t.Context(), b.v.BusinessID, from, store.DeliveryChange{}, 100)
			if err != nil || len(changed) != len(jobs) {
				t.Errorf("%s, changed: %v, %v", when, changed, err)
			}
		}
		check("folded")
		d, err := b.s.Delivery(t.Context(), b.v.BusinessID, jobs[0].DeliveryID)
		if err != nil || d.EventID != jobs[0].EventID || d.EndpointID != jobs[0].EndpointID || d.Lane != jobs[0].Lane || d.Seq != jobs[0].Seq || !d.Leased ||
			d.DueAt() != nil || d.Attempts != 0 || d.Trigger != store.TriggerAutomatic || d.CreatedAt != jobs[0].CreatedAt || d.ReplayID != nil {
			t.Errorf("the first is %+v, %v", d, err)
		}
		stranger := newBusiness(t, b.s)
		if _, err := b.s.Delivery(t.Context(), stranger.BusinessID, jobs[0].DeliveryID); err == nil || len(deliveries(t, b.s, stranger)) != 0 {
			t.Error("a stranger sees it")
		}

		// One of the second event's has an outcome, one of the third's is given back, and the fourth's both are over.
		later := store.Now().Add(time.Hour)
		b.end(store.Retrying, &later, jobs[2])
		if err := b.s.Release(t.Context(), []*store.Job{jobs[4]}); err != nil {
			t.Fatal(err)
		}
		b.end(store.Delivered, nil, jobs[6], jobs[7])
		want[jobs[2].DeliveryID], want[jobs[6].DeliveryID], want[jobs[7].DeliveryID] = store.Retrying, store.Delivered, store.Delivered
		b.counted("half way", 4, 4)
		check("half way")
		if jobs := b.claim(); len(jobs) != 1 || jobs[0].Seq != 9 {
			t.Errorf("claimed %v, want what was given back", jobs)
		}
		b.unfold()
		b.counted("unfolded", 0, 10)
		check("unfolded")
	})
}

// TestAFoldedDeliveryEndsOnce: whatever came between, an outcome counts once, with its attempt.
func TestAFoldedDeliveryEndsOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := folded(t, open)
		jobs := b.born(4)
		attempts := func(job *store.Job, want int) {
			t.Helper()
			of, err := b.s.AttemptsOf(t.Context(), []string{job.DeliveryID})
			if err != nil || len(of[job.DeliveryID]) != want {
				t.Fatalf("attempts %v, %v, want %d", of, err, want)
			}
			for i, a := range of[job.DeliveryID] {
				if a.Number != i+1 || a.Trigger != store.TriggerAutomatic || store.Now().Sub(a.StartedAt) > time.Minute || a.Error == nil || *a.Error != "http_500" {
					t.Errorf("attempt %d is %+v", i+1, a)
				}
			}
		}
		// With no row: its row is made, and the first attempt stands in it. The next ones have rows.
		past := store.Now().Add(-time.Second)
		if n := b.end(store.Retrying, &past, jobs[0]); n != 1 {
			t.Errorf("%d counted", n)
		}
		b.status(jobs[0].DeliveryID, store.Retrying, 1)
		attempts(jobs[0], 1)
		if n := b.end(store.Retrying, &past, jobs[0]); n != 0 {
			t.Errorf("counted again: %d", n)
		}
		if again := b.claim(); len(again) != 1 || again[0].DeliveryID != jobs[0].DeliveryID || b.end(store.Failed, nil, again...) != 1 {
			t.Fatalf("claimed %v", again)
		}
		b.status(jobs[0].DeliveryID, store.Failed, 2)
		attempts(jobs[0], 2)
		// Its row was made meanwhile, for it waited long: that one is changed.
		b.unfold()
		if again, _, err := b.s.FreshJobs(t.Context(), []store.Hold{b.hold()}, []string{jobs[1].EventID}); err != nil || len(again) != 1 ||
			again[0].DeliveryID != jobs[1].DeliveryID || again[0].LeaseUntil != jobs[1].LeaseUntil {
			t.Errorf("read again: %v, %v", again, err)
		}
		if waits, err := b.s.Reread(t.Context(), jobs[1]); err != nil || !waits {
			t.Errorf("it waits no more: %v", err)
		}
		if n := b.end(store.Failed, nil, jobs[1]); n != 1 {
			t.Errorf("%d counted", n)
		}
		b.status(jobs[1].DeliveryID, store.Failed, 1)
		attempts(jobs[1], 1)
		if waits, err := b.s.Reread(t.Context(), jobs[1]); err != nil || waits {
			t.Errorf("it still waits: %v", err)
		}
		// It was given back, with its row: the row keeps its place.
		if err := b.s.Release(t.Context(), []*store.Job{jobs[2]}); err != nil {
			t.Fatal(err)
		}
		if again := b.claim(); len(again) != 1 || again[0].DeliveryID != jobs[2].DeliveryID {
			t.Errorf("claimed %v", again)
		}
		b.counted("at the end", 0, 4)
	})
}

// TestTheFirstAttemptStays: it stands in its delivery's row, or beside it where the answer is long, and stays as it was whatever comes
// after.
func TestTheFirstAttemptStays(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := folded(t, open)
		for name, body := range map[string]string{"short": "<&>\ufffd\n\"", "long": strings.Repeat("<", 16<<10), "none": ""} {
			job := b.born(1)[0]
			first := &store.Attempt{
				DeliveryID: job.DeliveryID, Number: 1, Trigger: store.TriggerAutomatic, StartedAt: b.s.Now(), DurationMs: 7, StatusCode: ptr(500),
				Error: ptr("http_500"), ResponseBody: &body, NextAttemptAt: ptr(b.s.Now()),
				Timings: store.Timings{DNSMs: ptr(0), ConnectMs: ptr(1), TLSMs: ptr(2), FirstByteMs: ptr(6), RemoteAddress: ptr("[::1]:443")},
			}
			if _, _, err := b.s.Record(t.Context(), []*store.Outcome{{Job: job, Status: store.Failed, Attempt: first}}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.s.Redeliver(t.Context(), b.v, job.DeliveryID); err != nil {
				t.Fatal(err)
			}
			b.end(store.Delivered, nil, b.claim()...)
			of, err := b.s.AttemptsOf(t.Context(), []string{job.DeliveryID})
			if err != nil || len(of[job.DeliveryID]) != 2 || of[job.DeliveryID][1].Number != 2 {
				t.Fatalf("%s: attempts %v, %v", name, of, err)
			}
			if diff := cmp.Diff(first, of[job.DeliveryID][0]); diff != "" {
				t.Errorf("%s: the first attempt is not as it was: %s", name, diff)
			}
		}
	})
}

// TestManyFanOuts: however many there are, whoever takes a shard, or disables an endpoint, leaves none, and what is freed is claimed in
// its order.
func TestManyFanOuts(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := folded(t, open)
		if err := b.s.CopyFanOut(t.Context(), b.born(1)[0].EventID, 450); err != nil {
			t.Fatal(err)
		}
		b.counted("at first", 451, 0)
		if err := b.s.GiveShards(t.Context(), []store.Hold{b.hold()}); err != nil {
			t.Fatal(err)
		}
		b.counted("handed back", 0, 451)
		taken, err := b.s.TakeShards(t.Context(), "replica", store.Shards)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range taken {
			b.holds[h.Shard] = h
		}
		jobs, err := b.s.Claim(t.Context(), []store.Wanted{{EndpointID: b.p.ID, Limit: 1000, UpTo: 1 << 40, Hold: b.hold()}}, time.Minute)
		if err != nil || len(jobs) != 451 || !slices.IsSortedFunc(jobs, func(a, b *store.Job) int { return int(a.Seq - b.Seq) }) {
			t.Fatalf("claimed %d, %v", len(jobs), err)
		}
		if err := b.s.CopyFanOut(t.Context(), b.born(1)[0].EventID, 450); err != nil {
			t.Fatal(err)
		}
		if _, err := b.s.UpdateEndpoint(t.Context(), b.v, b.p.ID, store.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
			t.Fatal(err)
		}
		if err := b.s.EndWaiting(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.counted("disabled", 0, 902)
		if n, err := b.s.Waiting(t.Context(), b.p.ID); err != nil || n != 0 {
			t.Errorf("%d wait, %v", n, err)
		}
	})
}

// TestFoldedDeliveriesMeet has deliveries that have no rows yet meet whoever changes deliveries.
func TestFoldedDeliveriesMeet(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := folded(t, open)
		since := store.Now().Add(-time.Minute)
		jobs := b.born(2)

		_, err := b.s.Redeliver(t.Context(), b.v, jobs[0].DeliveryID)
		b.refused("a resend of one that is about to be sent", err, "delivery_busy")

		// A replay of everything takes up what has ended, and what there is no delivery of; not what is about to be sent.
		b.end(store.Delivered, nil, jobs[0])
		young := newEndpoint(t, b.s, b.v, store.RunFinished)
		for endpoint, want := range map[string]int{b.p.ID: 1, young.ID: 2} {
			r, err := b.s.ReplayEvents(t.Context(), b.v, store.ReplayInput{EndpointID: endpoint, Since: since, FailedOnly: ptr(false)})
			if err != nil || r.Total != want {
				t.Errorf("a replay of %+v, %v, want %d", r, err, want)
			}
		}
		due, err := b.s.AdvanceReplays(t.Context(), []store.Hold{b.hold()}, 32)
		if err != nil || len(due[b.v.BusinessID]) != 3 {
			t.Errorf("the replays made due %v, %v", due, err)
		}
		if n := b.end(store.Delivered, nil, jobs[1]); n != 1 {
			t.Errorf("%d counted", n)
		}
		b.counted("after the replays", 0, 4)

		// An endpoint that is disabled: what it was to get is over, and stays so when it is enabled.
		jobs = b.born(1)
		if _, err := b.s.UpdateEndpoint(t.Context(), b.v, b.p.ID, store.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
			t.Fatal(err)
		}
		b.status(jobs[0].DeliveryID, store.Skipped, 0)
		if waits, err := b.s.Reread(t.Context(), jobs[0]); err != nil || !waits || jobs[0].EndpointStatus != store.Disabled {
			t.Errorf("read again: %v, %v, %s", waits, err, jobs[0].EndpointStatus)
		}
		_, err = b.s.Redeliver(t.Context(), b.v, jobs[0].DeliveryID)
		b.refused("a resend to an endpoint that is disabled", err, "endpoint_disabled")
		ctx, cancel := context.WithCancel(t.Context())
		var ending sync.WaitGroup
		ending.Go(func() { _ = b.s.RunEndings(ctx) })
		_, err = b.s.UpdateEndpoint(t.Context(), b.v, b.p.ID, store.EndpointInput{Status: ptr(store.Enabled)})
		cancel()
		ending.Wait()
		if err != nil {
			t.Fatal(err)
		}
		b.status(jobs[0].DeliveryID, store.Skipped, 0)
		if n := b.end(store.Retrying, ptr(store.Now()), jobs[0]); n != 1 { // it was in flight
			t.Errorf("%d counted", n)
		}
		b.status(jobs[0].DeliveryID, store.Failed, 1)
	})
}

// TestRetentionLeavesFoldedDeliveries: an event stays as long as something of it is to be sent.
func TestRetentionLeavesFoldedDeliveries(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := folded(t, open)
		newEndpoint(t, b.s, b.v, store.RunFinished)
		jobs := b.born(1)
		prune := func(want bool) {
			t.Helper()
			if _, err := b.s.Prune(t.Context(), store.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if found, err := b.s.EventsByID(t.Context(), []string{jobs[0].EventID}); err != nil || found[jobs[0].EventID] != nil != want {
				t.Errorf("its event is there: %v, %v", found, err)
			}
		}
		prune(true)
		b.end(store.Delivered, nil, jobs[0])
		prune(true)
		b.end(store.Delivered, nil, jobs[1])
		prune(false)
		b.counted("at the end", 0, 0)
	})
}

// TestFoldedDeliveriesAtOnce has everything happen at once to deliveries that have no rows yet: each gets one row, one outcome, and
// one attempt, and no fan-out is left.
func TestFoldedDeliveriesAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := folded(t, open)
		for range 3 {
			newEndpoint(t, b.s, b.v, store.RunFinished)
		}
		for range 5 {
			jobs := b.born(6)
			rand.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
			var all sync.WaitGroup
			for chunk := range slices.Chunk(jobs, 5) {
				all.Go(func() {
					gone := chunk[0]
					if err := b.s.Release(t.Context(), []*store.Job{gone}); err != nil {
						t.Error(err)
					}
					for _, again := range [][]*store.Job{chunk[1:], chunk[2:]} { // as after a commit in doubt
						if _, _, err := b.s.Record(t.Context(), delivered(again)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			for range 3 {
				all.Go(func() {
					if err := b.s.UnfoldAll(t.Context()); err != nil {
						t.Error(err)
					}
				})
				all.Go(func() {
					if n := len(deliveries(t, b.s, b.v)); n < len(jobs) {
						t.Errorf("%d deliveries are shown", n)
					}
					_, err := b.s.Redeliver(t.Context(), b.v, jobs[1].DeliveryID)
					if e, ok := store.AsError(err); err != nil && (!ok || e.Reason != "delivery_busy") {
						t.Error(err)
					}
				})
			}
			all.Wait()
			b.unfold()
		}
		b.counted("at the end", 0, 5*6*4)
		for _, d := range deliveries(t, b.s, b.v) {
			if d.Status != store.Delivered && d.Attempts != 0 {
				t.Errorf("one is %+v", d)
			}
			of, err := b.s.AttemptsOf(t.Context(), []string{d.ID})
			if err != nil || len(of[d.ID]) != d.Attempts || d.Attempts > 1 {
				t.Errorf("%+v has the attempts %v, %v", d, of, err)
			}
		}
	})
}

// delivered are outcomes of jobs that went well.
func delivered(jobs []*store.Job) (outcomes []*store.Outcome) {
	for _, j := range jobs {
		outcomes = append(outcomes, &store.Outcome{Job: j, Status: store.Delivered, Attempt: &store.Attempt{
			DeliveryID: j.DeliveryID, Number: 1, Trigger: j.Trigger, StartedAt: store.Now(), StatusCode: ptr(200),
		}})
	}
	return outcomes
}
