package hook_test

import (
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"parley/store"
)

// TestReplayReadsLittle: of a long history a replay reads what is of its time, and few events in one reading, though there is
// almost nothing for its endpoint.
func TestReplayReadsLittle(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		const n, days = 20_000, 10
		if err := b.s.LongAgo(t.Context(), b.v.BusinessID, n, days*24*time.Hour); err != nil {
			t.Fatal(err)
		}
		finish(t, b.s, begin(t, b.s, b.v, ""))
		jobs, err := b.s.Claim(t.Context(), []store.Wanted{{EndpointID: b.p.ID, Limit: 10, UpTo: 2 * n, Hold: b.hold()}}, time.Minute)
		if err != nil || len(jobs) != 1 {
			t.Fatalf("claimed %d, %v", len(jobs), err)
		}
		b.end(store.Delivered, nil, jobs...)
		walked := regexp.MustCompile(`e\.seq > (\d+)\D+ e\.seq <= (\d+)`)
		type span struct{ after, until int }
		var spans []span
		b.s.Reads(func(query string) {
			if found := walked.FindStringSubmatch(query); found != nil {
				after, _ := strconv.Atoi(found[1])
				until, _ := strconv.Atoi(found[2])
				spans = append(spans, span{after, until})
			}
		})
		replay := func(since, until int) *store.Replay { // days ago
			t.Helper()
			spans = nil
			in := store.ReplayInput{EndpointID: b.p.ID, Since: store.Now().Add(-time.Duration(since) * 24 * time.Hour), FailedOnly: ptr(false)}
			if until > 0 {
				in.Until = ptr(store.Now().Add(-time.Duration(until) * 24 * time.Hour))
			}
			r, err := b.s.ReplayEvents(t.Context(), b.v, in)
			if err != nil || len(spans) != 1 {
				t.Fatalf("%v after %v", err, spans)
			}
			return r
		}
		const day, hour = n / days, n / days / 24
		if r := replay(7, 5); r.Total != 0 || spans[0].after < 3*day-2*hour || spans[0].until > 5*day+2*hour {
			t.Errorf("of the days 3 to 5, the events %+v were counted: %+v", spans[0], r)
		}
		if r := replay(9, 0); r.Total != 1 || spans[0].after < day-2*hour || spans[0].after > day {
			t.Errorf("since the first day, the events %+v were counted: %+v", spans[0], r)
		}
		spans = nil
		due, err := b.s.AdvanceReplays(t.Context(), []store.Hold{b.hold()}, 32)
		if err != nil || len(due[b.v.BusinessID]) != 1 || len(spans) < 4 {
			t.Errorf("due are %v, %v, after %v", due, err, spans)
		}
		for _, s := range spans {
			if s.until-s.after > 5_000 {
				t.Errorf("the events %+v were read at once", s)
			}
		}
	})
}

// TestReplayKeepsItsOrderInSQL: whatever is given back, and however few are claimed at once, a replay's deliveries are claimed in
// their sequence: those that are as old as their events, those that the replay made, and those of its next step.
func TestReplayKeepsItsOrderInSQL(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		since := store.Now()
		for range 3 { // of these there are no deliveries to the endpoint that is replayed to
			b.end(store.Delivered, nil, b.event())
		}
		young := newEndpoint(t, b.s, b.v, store.RunFinished)
		claim := func(limit int) []*store.Job {
			t.Helper()
			jobs, err := b.s.Claim(t.Context(), []store.Wanted{{EndpointID: young.ID, Limit: limit, UpTo: 1000, Hold: b.hold()}}, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			return jobs
		}
		for range 5 {
			b.end(store.Delivered, nil, b.event())
			b.end(store.Delivered, nil, claim(100)...)
		}
		if _, err := b.s.ReplayEvents(t.Context(), b.v, store.ReplayInput{EndpointID: young.ID, Since: since, FailedOnly: ptr(false)}); err != nil {
			t.Fatal(err)
		}
		advance := func() {
			t.Helper()
			if _, err := b.s.AdvanceReplays(t.Context(), []store.Hold{b.hold()}, 6); err != nil {
				t.Fatal(err)
			}
		}
		release := func(jobs []*store.Job, n int) {
			t.Helper()
			if len(jobs) != n {
				t.Fatalf("claimed %d, want %d", len(jobs), n)
			}
			if err := b.s.Release(t.Context(), jobs); err != nil {
				t.Fatal(err)
			}
		}
		advance()
		release(claim(100), 6)
		b.end(store.Delivered, nil, claim(8)...)
		advance()
		release(claim(4), 2)
		if b.s.Shared() { // and so it is for another holder
			claim(4)
			if err := b.s.GiveShards(t.Context(), []store.Hold{b.hold()}); err != nil {
				t.Fatal(err)
			}
			taken, err := b.s.TakeShards(t.Context(), "another", store.Shards)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range taken {
				b.holds[h.Shard] = h
			}
		}
		var got []int64
		for {
			jobs := claim(4)
			if len(jobs) == 0 {
				break
			}
			for _, j := range jobs {
				got = append(got, j.Seq)
			}
			b.end(store.Delivered, nil, jobs...)
		}
		if len(got) != 5 || !slices.IsSorted(got) || got[0] != 4*3 {
			t.Errorf("after the first three came %v", got)
		}
	})
}

// TestReplayGoesOnBesideItsRetries: what a receiver refuses, and is tried again in an hour, holds the rest up for no time. The replay
// ends when all of it has.
func TestReplayGoesOnBesideItsRetries(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		const n, window = 12, 4
		since := store.Now()
		for range n {
			b.end(store.Failed, nil, b.event())
		}
		replay, err := b.s.ReplayEvents(t.Context(), b.v, store.ReplayInput{EndpointID: b.p.ID, Since: since})
		if err != nil {
			t.Fatal(err)
		}
		later := store.Now().Add(time.Hour)
		for i := range n/window + 1 {
			if _, err := b.s.AdvanceReplays(t.Context(), []store.Hold{b.hold()}, window); err != nil {
				t.Fatal(err)
			}
			jobs := b.claim()
			if want := min(window, n-i*window); len(jobs) != want {
				t.Fatalf("step %d: %d are due, want %d", i, len(jobs), want)
			}
			b.end(store.Retrying, &later, jobs...)
		}
		if r, err := b.s.Replay(t.Context(), b.v.BusinessID, replay.ID); err != nil || r.Status != store.ReplayRunning || r.Sent != n {
			t.Errorf("with %d retries to come: %+v, %v", n, r, err)
		}
	})
}

// TestResendsStarveNoRetry: however many resends are due for longer, a claim has retries too, and no more resends than the worker
// can send before long. Those that are given back are due since they were asked for, whatever the age of their events.
func TestResendsStarveNoRetry(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		retried := b.event()
		var failed []*store.Job
		for range 40 {
			failed = append(failed, b.event())
		}
		b.end(store.Failed, nil, failed...)
		slices.Reverse(failed)
		for _, j := range failed {
			if _, err := b.s.Redeliver(t.Context(), b.v, j.DeliveryID); err != nil {
				t.Fatal(err)
			}
		}
		now := b.s.Now()
		b.end(store.Retrying, &now, retried)
		claim := func(limit, asides, want int) []*store.Job {
			t.Helper()
			jobs, err := b.s.Claim(t.Context(), []store.Wanted{{EndpointID: b.p.ID, Limit: limit, Asides: asides, UpTo: 1000, Hold: b.hold()}}, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if len(jobs) != want || jobs[0].DeliveryID != retried.DeliveryID { // by sequence it is the first
				t.Errorf("with %d at hand: %d are claimed, want %d, the retry among them", asides, len(jobs), want)
			}
			if err := b.s.Release(t.Context(), jobs); err != nil {
				t.Fatal(err)
			}
			return jobs
		}
		claim(100, 0, 27)
		claim(100, 60, 5)
		claim(100, 64, 1)
		for i, j := range claim(8, 0, 4)[1:] {
			if j.DeliveryID != failed[2-i].DeliveryID {
				t.Errorf("resend %d is of event %d, want %d", i, j.Seq, failed[2-i].Seq)
			}
		}
	})
}
