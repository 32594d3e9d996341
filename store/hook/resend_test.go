package hook_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"parley/store"
)

// bench is a store with an endpoint and all shards, where a test plays the worker.
type bench struct {
	t     *testing.T
	s     *store.Store
	v     *store.Viewer
	p     *store.Endpoint
	holds map[int]store.Hold
}

func newBench(t *testing.T, open opener, change func(*store.Config)) *bench {
	s := open(t, change)
	v := newBusiness(t, s)
	return &bench{t, s, v, newEndpoint(t, s, v, store.RunFinished), takeAll(t, s, "replica")}
}

func (b *bench) hold() store.Hold { return b.holds[store.ShardOf(b.v.BusinessID)] }

// claim takes what is due.
func (b *bench) claim() []*store.Job {
	b.t.Helper()
	jobs, err := b.s.Claim(b.t.Context(), []store.Wanted{{EndpointID: b.p.ID, Limit: 100, UpTo: 1000, Hold: b.hold()}}, time.Minute)
	if err != nil {
		b.t.Fatal(err)
	}
	return jobs
}

// end records one attempt of each job, and returns how many counted.
func (b *bench) end(status store.DeliveryStatus, next *store.Time, jobs ...*store.Job) int {
	b.t.Helper()
	var outcomes []*store.Outcome
	for _, j := range jobs {
		o := &store.Outcome{Job: j, Status: status, Next: next, Attempt: &store.Attempt{
			DeliveryID: j.DeliveryID, Number: j.Attempts + 1, Trigger: j.Trigger, StartedAt: store.Now(),
		}}
		if status != store.Delivered {
			o.Attempt.Error = ptr("http_500")
		}
		outcomes = append(outcomes, o)
	}
	changed, _, err := b.s.Record(b.t.Context(), outcomes)
	if err != nil {
		b.t.Fatal(err)
	}
	return len(changed)
}

// event makes an event, and returns its delivery, claimed.
func (b *bench) event() *store.Job {
	b.t.Helper()
	finish(b.t, b.s, begin(b.t, b.s, b.v, ""))
	jobs := b.claim()
	if len(jobs) != 1 {
		b.t.Fatalf("claimed %d", len(jobs))
	}
	return jobs[0]
}

func (b *bench) status(id string, want store.DeliveryStatus, attempts int) {
	b.t.Helper()
	d, err := b.s.Delivery(b.t.Context(), b.v.BusinessID, id)
	if err != nil || d.Status != want || d.Attempts != attempts {
		b.t.Errorf("the delivery is %+v, %v, want %s after %d attempts", d, err, want, attempts)
	}
}

func (b *bench) refused(what string, err error, reason string) {
	b.t.Helper()
	if e, ok := store.AsError(err); !ok || e.Reason != reason {
		b.t.Errorf("%s: %v, want %s", what, err, reason)
	}
}

// TestResendMeetings has a resend meet a delivery in each of its states.
func TestResendMeetings(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		resend := func(id string) error {
			_, err := b.s.Redeliver(t.Context(), b.v, id)
			return err
		}

		job := b.event()
		b.refused("an attempt is in flight", resend(job.DeliveryID), "delivery_busy")
		if err := b.s.Release(t.Context(), []*store.Job{job}); err != nil {
			t.Fatal(err)
		}
		b.refused("it waits for its first turn", resend(job.DeliveryID), "delivery_busy")
		job = b.claim()[0]

		// A pending retry is taken over: what is made is one attempt, and nothing after it.
		later := store.Now().Add(time.Hour)
		b.end(store.Retrying, &later, job)
		if err := resend(job.DeliveryID); err != nil {
			t.Fatal(err)
		}
		b.refused("twice", resend(job.DeliveryID), "delivery_busy")
		jobs := b.claim()
		if len(jobs) != 1 || jobs[0].Trigger != store.TriggerManual || jobs[0].Attempts != 1 || jobs[0].Base != 1 || jobs[0].Fresh() {
			t.Fatalf("claimed %+v", jobs)
		}
		b.refused("a resend is in flight", resend(job.DeliveryID), "delivery_busy")
		if n := b.end(store.Delivered, nil, job); n != 0 {
			t.Error("an attempt of before the resend counted")
		}
		b.end(store.Failed, nil, jobs[0])
		b.status(job.DeliveryID, store.Failed, 2)

		// What was delivered stays so.
		if err := resend(job.DeliveryID); err != nil {
			t.Fatal(err)
		}
		b.status(job.DeliveryID, store.Retrying, 2)
		b.end(store.Delivered, nil, b.claim()...)
		if err := resend(job.DeliveryID); err != nil {
			t.Fatal(err)
		}
		b.status(job.DeliveryID, store.Delivered, 3)
		b.end(store.Failed, nil, b.claim()...)
		b.status(job.DeliveryID, store.Delivered, 4)

		// Two at once are one.
		var accepted sync.Map
		var both sync.WaitGroup
		for i := range 2 {
			both.Go(func() {
				if resend(job.DeliveryID) == nil {
					accepted.Store(i, true)
				}
			})
		}
		both.Wait()
		n := 0
		accepted.Range(func(any, any) bool { n++; return true })
		if jobs := b.claim(); n != 1 || len(jobs) != 1 {
			t.Errorf("of two at once %d were accepted, and %d sent", n, len(jobs))
		} else if err := b.s.Release(t.Context(), jobs); err != nil {
			t.Fatal(err)
		}

		// Disabling ends it; the delivery keeps what it was. Then it is refused.
		if _, err := b.s.UpdateEndpoint(t.Context(), b.v, b.p.ID, store.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
			t.Fatal(err)
		}
		b.status(job.DeliveryID, store.Delivered, 4)
		if jobs := b.claim(); len(jobs) != 0 {
			t.Errorf("a disabled endpoint gets %+v", jobs[0])
		}
		b.refused("a disabled endpoint", resend(job.DeliveryID), "endpoint_disabled")
		finish(t, b.s, begin(t, b.s, b.v, ""))
		skipped := deliveries(t, b.s, b.v)[0]
		if _, err := b.s.UpdateEndpoint(t.Context(), b.v, b.p.ID, store.EndpointInput{Status: ptr(store.Enabled)}); err != nil {
			t.Fatal(err)
		}
		if err := resend(skipped.ID); err != nil {
			t.Fatal(err)
		}
		b.status(skipped.ID, store.Pending, 0)
		if to, err := b.s.Targets(t.Context(), []string{b.p.ID}); err != nil || to[0].Waiting {
			t.Errorf("what is sent again stands among the fresh ones: %+v, %v", to, err)
		}
		first := b.claim()
		if err := b.s.Release(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if to, err := b.s.Targets(t.Context(), []string{b.p.ID}); err != nil || to[0].Waiting {
			t.Errorf("and after it was given back: %+v, %v", to, err)
		}
		if err := b.s.DeleteEndpoint(t.Context(), b.v, b.p.ID); err != nil {
			t.Fatal(err)
		}
		b.status(skipped.ID, store.Skipped, 0)
		b.refused("a deleted endpoint", resend(skipped.ID), "endpoint_deleted")
		b.refused("of nobody", resend("dlv_x"), "delivery_not_found")
		stranger := newBusiness(t, b.s)
		_, err := b.s.Redeliver(t.Context(), stranger, skipped.ID)
		b.refused("of another business", err, "delivery_not_found")
	})
}

// TestReplayWalksAlongTheSequence has a replay of a few deliveries at a time, given to another holder half way.
func TestReplayWalksAlongTheSequence(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		const window = 4
		since := store.Now()
		for i := range 12 { // every third is delivered
			status := store.Failed
			if i%3 == 0 {
				status = store.Delivered
			}
			b.end(status, nil, b.event())
		}
		replay, err := b.s.ReplayEvents(t.Context(), b.v, store.ReplayInput{EndpointID: b.p.ID, Since: since})
		if err != nil || replay.Total != 8 || replay.Status != store.ReplayRunning {
			t.Fatalf("%+v, %v", replay, err)
		}
		_, err = b.s.ReplayEvents(t.Context(), b.v, store.ReplayInput{EndpointID: b.p.ID, Since: since})
		b.refused("a second replay", err, "replay_running")
		advance := func() int {
			t.Helper()
			due, err := b.s.AdvanceReplays(t.Context(), []store.Hold{b.hold()}, window)
			if err != nil {
				t.Fatal(err)
			}
			return len(due[b.v.BusinessID])
		}
		if n := advance(); n != window {
			t.Errorf("%d are due at first", n)
		}
		if n := advance(); n != 0 {
			t.Errorf("%d more are due while those wait", n)
		}
		jobs := b.claim()
		if len(jobs) != window || jobs[0].Trigger != store.TriggerReplay || jobs[0].ReplayID == nil || jobs[0].Base != 1 {
			t.Fatalf("claimed %d: %+v", len(jobs), jobs)
		}
		_, err = b.s.Redeliver(t.Context(), b.v, jobs[0].DeliveryID)
		b.refused("a resend of what a replay sends", err, "delivery_busy")
		b.end(store.Delivered, nil, jobs[:3]...)
		// The holder dies: what it held is free, and the next one goes on.
		if b.s.Shared() {
			if err := b.s.GiveShards(t.Context(), []store.Hold{b.hold()}); err != nil {
				t.Fatal(err)
			}
		}
		lost := b.hold()
		taken, err := b.s.TakeShards(t.Context(), "another", store.Shards)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range taken {
			b.holds[h.Shard] = h
		}
		if due, err := b.s.AdvanceReplays(t.Context(), []store.Hold{lost}, window); err != nil || len(due) != 0 {
			t.Errorf("a lost holder went on: %v, %v", due, err)
		}
		soon := store.Now().Add(-time.Second)
		sent := 3
		var order []int64
		for range 20 {
			advance()
			jobs := b.claim()
			for _, j := range jobs {
				if j.Attempts == j.Base {
					order = append(order, j.Seq)
				}
			}
			if len(jobs) > 0 && sent == 3 { // one of them needs a retry, which is no second one sent
				b.end(store.Retrying, &soon, jobs[0])
				jobs = jobs[1:]
			}
			b.end(store.Delivered, nil, jobs...)
			sent += len(jobs)
		}
		for i := 1; i < len(order); i++ {
			if order[i] < order[i-1] {
				t.Errorf("out of order: %v", order)
			}
		}
		done, err := b.s.Replay(t.Context(), b.v.BusinessID, replay.ID)
		if err != nil || done.Status != store.ReplayFinished || done.Total != 8 || done.Sent != 8 || done.FinishedAt == nil {
			t.Errorf("in the end: %+v, %v", done, err)
		}
		for _, d := range deliveries(t, b.s, b.v) {
			if d.Status != store.Delivered {
				t.Errorf("delivery %d is %s", d.Seq, d.Status)
			}
		}
	})
}

// TestReplayOfEverything sends what was delivered, and what is older than the endpoint; not what its filters leave out, nor
// what waits.
func TestReplayOfEverything(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		since := store.Now()
		b.end(store.Delivered, nil, b.event())
		b.end(store.Failed, nil, b.event())
		young := newEndpoint(t, b.s, b.v, store.RunFinished)
		waits := b.event()
		run := func(endpoint string, all bool, until *store.Time) *store.Replay {
			t.Helper()
			r, err := b.s.ReplayEvents(t.Context(), b.v, store.ReplayInput{EndpointID: endpoint, Since: since, Until: until, FailedOnly: ptr(!all)})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if r := run(young.ID, false, nil); r.Total != 0 || r.Status != store.ReplayFinished {
			t.Errorf("nothing failed at a young endpoint: %+v", r)
		}
		if r := run(young.ID, true, nil); r.Total != 2 {
			t.Errorf("two are older than the endpoint, one waits: %+v", r)
		}
		if _, err := b.s.AdvanceReplays(t.Context(), []store.Hold{b.hold()}, 10); err != nil {
			t.Fatal(err)
		}
		jobs, err := b.s.Claim(t.Context(), []store.Wanted{{EndpointID: young.ID, Limit: 10, UpTo: 100, Hold: b.hold()}}, time.Minute)
		if err != nil || len(jobs) != 3 || !jobs[2].Fresh() || jobs[0].Trigger != store.TriggerReplay || jobs[0].Fresh() {
			t.Fatalf("claimed %d, %v", len(jobs), err)
		}
		if r := run(b.p.ID, true, nil); r.Total != 2 {
			t.Errorf("one was delivered, one failed, one is in flight: %+v", r)
		}
		b.end(store.Delivered, nil, waits)
		if err := b.s.DeleteEndpoint(t.Context(), b.v, b.p.ID); err != nil {
			t.Fatal(err)
		}
		of, err := b.s.ReplaysOf(t.Context(), []string{b.p.ID})
		all := of[b.p.ID]
		if err != nil || len(all) != 1 || all[0].Status != store.ReplayStopped {
			t.Errorf("the replay of a deleted endpoint: %+v, %v", all, err)
		}
		_, err = b.s.ReplayEvents(t.Context(), b.v, store.ReplayInput{EndpointID: b.p.ID, Since: since})
		b.refused("to a deleted endpoint", err, "webhook_not_found")
		if _, err = b.s.UpdateEndpoint(t.Context(), b.v, young.ID, store.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
			t.Fatal(err)
		}
		_, err = b.s.ReplayEvents(t.Context(), b.v, store.ReplayInput{EndpointID: young.ID, Since: since})
		b.refused("to a disabled endpoint", err, "endpoint_disabled")
		_, err = b.s.ReplayEvents(t.Context(), b.v, store.ReplayInput{EndpointID: young.ID, Since: since, Until: &since})
		b.refused("of no time", err, "validation_error")
	})
}

// TestTestsCountForNothing: a test is a well-formed event beside the feed, goes to disabled endpoints too, and changes nothing
// of the endpoint's health.
func TestTestsCountForNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, func(c *store.Config) { c.EndpointGrace = time.Nanosecond })
		if _, err := b.s.UpdateEndpoint(t.Context(), b.v, b.p.ID, store.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
			t.Fatal(err)
		}
		for _, kind := range store.EventTypes {
			d, err := b.s.SendTest(t.Context(), b.v, b.p.ID, kind)
			if err != nil {
				t.Fatal(err)
			}
			of, err := b.s.EventsByID(t.Context(), []string{d.EventID})
			if err != nil || of[d.EventID] == nil {
				t.Fatalf("%s: no event, %v", kind, err)
			}
			parsed, err := store.ParseEvent(of[d.EventID].Body, 0)
			if err != nil || parsed.Type != kind || parsed.BusinessID != b.v.BusinessID || parsed.ID != d.EventID || parsed.AgentID == nil {
				t.Errorf("%s: %s, %v", kind, of[d.EventID].Body, err)
			}
			details, err := parsed.Details()
			if err != nil || !strings.Contains(string(details.Data), `"test":true`) || details.Direction == "" {
				t.Errorf("%s: %s, %v", kind, of[d.EventID].Body, err)
			}
		}
		if all := events(t, b.s, b.v); len(all) != 0 {
			t.Errorf("%d tests stand in the feed", len(all))
		}
		jobs := b.claim()
		if len(jobs) != len(store.EventTypes) || jobs[0].Trigger != store.TriggerTest {
			t.Fatalf("claimed %d", len(jobs))
		}
		b.end(store.Failed, nil, jobs[:4]...)
		b.end(store.Failed, nil, jobs[4:]...)
		p, err := b.s.Endpoint(t.Context(), b.v.BusinessID, b.p.ID)
		if err != nil || p.FailingSince != nil || *p.DisabledReason != "disabled by the business" {
			t.Errorf("after failed tests: %+v, %v", p, err)
		}
		_, err = b.s.Redeliver(t.Context(), b.v, jobs[0].DeliveryID)
		b.refused("a resend of a test", err, "test_delivery")
		_, err = b.s.SendTest(t.Context(), newBusiness(t, b.s), b.p.ID, store.CallEnded)
		b.refused("a test of another business's endpoint", err, "webhook_not_found")
		for range 3 {
			if _, err := b.s.Prune(t.Context(), store.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		if left := deliveries(t, b.s, b.v); len(left) != 0 {
			t.Errorf("%d tests are left after their time", len(left))
		}
	})
}

// TestEndpointHealth: an endpoint whose deliveries fail for good is disabled once that has gone on for long enough without one
// success. Retries say nothing, a success begins anew, and so does enabling.
func TestEndpointHealth(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		const grace = time.Hour
		b := newBench(t, open, func(c *store.Config) { c.EndpointGrace = grace })
		health := func() *store.Endpoint {
			t.Helper()
			p, err := b.s.Endpoint(t.Context(), b.v.BusinessID, b.p.ID)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		pass := func() {
			t.Helper()
			if err := b.s.FailedSince(t.Context(), grace); err != nil {
				t.Fatal(err)
			}
		}
		later := store.Now().Add(time.Hour)
		b.end(store.Retrying, &later, b.event())
		if p := health(); p.FailingSince != nil {
			t.Errorf("a retry is to come: %+v", p)
		}
		b.end(store.Failed, nil, b.event())
		first := health()
		if first.FailingSince == nil || first.Status != store.Enabled {
			t.Fatalf("after the first failure: %+v", first)
		}
		b.end(store.Failed, nil, b.event())
		if p := health(); *p.FailingSince != *first.FailingSince || p.Status != store.Enabled {
			t.Errorf("the second failure: %+v", p)
		}
		pass()
		b.end(store.Delivered, nil, b.event())
		if p := health(); p.FailingSince != nil {
			t.Errorf("after a success: %+v", p)
		}
		b.end(store.Failed, nil, b.event())
		pass()
		waits := b.event()
		if err := b.s.Release(t.Context(), []*store.Job{waits}); err != nil {
			t.Fatal(err)
		}
		jobs := b.claim()
		finish(t, b.s, begin(t, b.s, b.v, ""))
		b.end(store.Failed, nil, jobs...)
		p := health()
		if p.Status != store.Disabled || p.DisabledReason == nil || !strings.Contains(*p.DisabledReason, "http_500") {
			t.Errorf("after the grace: %+v", p)
		}
		for _, d := range deliveries(t, b.s, b.v) {
			if d.NextAttemptAt != nil {
				t.Errorf("something waits for a disabled endpoint: %+v", d)
			}
		}
		if _, err := b.s.UpdateEndpoint(t.Context(), b.v, b.p.ID, store.EndpointInput{Status: ptr(store.Enabled)}); err != nil {
			t.Fatal(err)
		}
		b.end(store.Failed, nil, b.event())
		if p := health(); p.Status != store.Enabled || p.DisabledReason != nil || p.FailingSince == nil {
			t.Errorf("enabled again, and failed once: %+v", p)
		}
	})
}

// TestANewAddressBeginsAnew: what the old address of an endpoint did, or still answers, does not disable it at its new one.
func TestANewAddressBeginsAnew(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		const grace = time.Hour
		b := newBench(t, open, func(c *store.Config) { c.EndpointGrace = grace })
		b.end(store.Failed, nil, b.event())
		if err := b.s.FailedSince(t.Context(), grace); err != nil {
			t.Fatal(err)
		}
		old := b.event()
		p, err := b.s.UpdateEndpoint(t.Context(), b.v, b.p.ID, store.EndpointInput{URL: ptr("https://example.com/new")})
		if err != nil || p.FailingSince != nil {
			t.Errorf("moved: %+v, %v", p, err)
		}
		gone := func(job *store.Job) *store.Endpoint {
			t.Helper()
			_, _, err := b.s.Record(t.Context(), []*store.Outcome{{Job: job, Status: store.Failed, Disable: "gone", Attempt: &store.Attempt{
				DeliveryID: job.DeliveryID, Number: 1, Trigger: job.Trigger, StartedAt: store.Now(), Error: ptr("http_410"),
			}}})
			if err != nil {
				t.Fatal(err)
			}
			p, err := b.s.Endpoint(t.Context(), b.v.BusinessID, b.p.ID)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		waits := b.event()
		if p := gone(old); p.Status != store.Enabled {
			t.Errorf("the old address is gone: %+v", p)
		}
		b.status(waits.DeliveryID, store.Pending, 0)
		if p := gone(waits); p.Status != store.Disabled || *p.DisabledReason != "gone" {
			t.Errorf("the new address is gone: %+v", p)
		}
	})
}

// TestReplayMeetsChanges changes an endpoint under its replay: of other types, it gets no more of those before; disabled, or
// deleted, it gets nothing more, and what the replay had made due is as it was.
func TestReplayMeetsChanges(t *testing.T) {
	t.Parallel()
	const window = 4
	for name, change := range map[string]func(b *bench) error{
		"other types": func(b *bench) error {
			_, err := b.s.UpdateEndpoint(t.Context(), b.v, b.p.ID, store.EndpointInput{Events: []store.EventType{store.CallEnded}})
			return err
		},
		"disabled": func(b *bench) error {
			_, err := b.s.UpdateEndpoint(t.Context(), b.v, b.p.ID, store.EndpointInput{Status: ptr(store.Disabled)})
			return err
		},
		"deleted": func(b *bench) error { return b.s.DeleteEndpoint(t.Context(), b.v, b.p.ID) },
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, open opener) {
				b := newBench(t, open, nil)
				since := store.Now()
				for range 10 {
					b.end(store.Failed, nil, b.event())
				}
				replay, err := b.s.ReplayEvents(t.Context(), b.v, store.ReplayInput{EndpointID: b.p.ID, Since: since})
				if err != nil || replay.Total != 10 {
					t.Fatalf("%s: %+v, %v", name, replay, err)
				}
				advance := func() {
					t.Helper()
					if _, err := b.s.AdvanceReplays(t.Context(), []store.Hold{b.hold()}, window); err != nil {
						t.Fatal(err)
					}
				}
				advance()
				jobs := b.claim()
				b.end(store.Delivered, nil, jobs[:2]...)
				if err := change(b); err != nil {
					t.Fatal(err)
				}
				sent, status := 2, store.ReplayStopped
				if name == "other types" { // what was due by then is sent
					sent, status = window, store.ReplayFinished
					b.end(store.Delivered, nil, jobs[2:]...)
				} else if n := b.end(store.Failed, nil, jobs[2:3]...); n != 1 {
					t.Errorf("%s: an attempt in flight is not on record", name)
				} else {
					sent++
				}
				for range 3 {
					advance()
					if more := b.claim(); len(more) != 0 {
						t.Errorf("%s: %d more are sent", name, len(more))
					}
				}
				done, err := b.s.Replay(t.Context(), b.v.BusinessID, replay.ID)
				if err != nil || done.Status != status || done.Sent != sent || done.FinishedAt == nil {
					t.Errorf("%s: %+v, %v", name, done, err)
				}
				of := map[store.DeliveryStatus]int{}
				for _, d := range deliveries(t, b.s, b.v) {
					of[d.Status]++
					if d.NextAttemptAt != nil {
						t.Errorf("%s: something waits: %+v", name, d)
					}
				}
				if of[store.Failed]+of[store.Delivered] != 10 {
					t.Errorf("%s: %v", name, of)
				}
			})
		})
	}
}
