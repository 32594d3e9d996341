package hook_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"parley/store"
)

// TestResendMeetings has a resend meet a delivery in each of its states.
func TestResendMeetings(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		job := b.event()
		b.refused("it waits for its first turn, or is under way", b.resend(job.ID()), "delivery_busy")

		// A pending retry is taken over: what is made is one attempt, and nothing after it.
		later := b.s.Now().Add(time.Hour)
		b.end(store.Retrying, &later, job)
		retry := b.fresh(job)
		if err := b.resend(job.ID()); err != nil {
			t.Fatal(err)
		}
		b.refused("twice", b.resend(job.ID()), "delivery_busy")
		jobs := b.waits()
		if len(jobs) != 1 || jobs[0].Trigger != store.TriggerManual || jobs[0].Attempts != 1 || jobs[0].Base != 1 || jobs[0].InTurn() {
			t.Fatalf("to be sent are %+v", jobs)
		}
		b.end(store.Retrying, &later, retry) // it was under way after all
		b.status(job.ID(), store.Retrying, 2)
		if n := b.end(store.Failed, nil, jobs[0]); n != 1 {
			t.Errorf("%d counted", n)
		}
		b.status(job.ID(), store.Failed, 3)
		if jobs := b.waits(); len(jobs) != 0 {
			t.Errorf("to be sent are %+v", jobs)
		}

		// What was delivered stays so.
		if err := b.resend(job.ID()); err != nil {
			t.Fatal(err)
		}
		b.status(job.ID(), store.Retrying, 3)
		b.end(store.Delivered, nil, b.waits()...)
		if err := b.resend(job.ID()); err != nil {
			t.Fatal(err)
		}
		b.status(job.ID(), store.Delivered, 4)
		b.end(store.Failed, nil, b.waits()...)
		b.status(job.ID(), store.Delivered, 5)

		// Two at once are one.
		var accepted atomic.Int32
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if b.resend(job.ID()) == nil {
					accepted.Add(1)
				}
			})
		}
		both.Wait()
		if jobs := b.waits(); accepted.Load() != 1 || len(jobs) != 1 {
			t.Errorf("of two at once %d were accepted, and %d are to be sent", accepted.Load(), len(jobs))
		}

		// Disabling ends it; the delivery keeps what it was. Then it is refused.
		b.set(b.p.ID, store.Disabled)
		b.status(job.ID(), store.Delivered, 5)
		if jobs := b.waits(); len(jobs) != 0 {
			t.Errorf("a disabled endpoint gets %+v", jobs[0])
		}
		b.refused("a disabled endpoint", b.resend(job.ID()), "endpoint_disabled")
		b.turns(1)
		skipped := b.deliveries()[0]
		b.status(skipped.ID(), store.Skipped, 0)
		b.set(b.p.ID, store.Enabled)
		if err := b.resend(skipped.ID()); err != nil {
			t.Fatal(err)
		}
		b.status(skipped.ID(), store.Pending, 0)
		if fresh := b.next(b.p.ID); len(fresh) != 0 {
			t.Errorf("what is sent again stands among the fresh ones: %+v", fresh)
		}
		if err := b.h.DeleteEndpoint(t.Context(), b.v, b.p.ID); err != nil {
			t.Fatal(err)
		}
		b.status(skipped.ID(), store.Skipped, 0)
		b.refused("a deleted endpoint", b.resend(skipped.ID()), "endpoint_deleted")
		b.refused("of nobody", b.resend("dlv_x"), "delivery_not_found")
		_, err := b.h.Redeliver(t.Context(), newBusiness(t, b.s), skipped.ID())
		b.refused("of another business", err, "delivery_not_found")
	})
}

// TestARetryIsSentAgainWhenItIsNotDue: what may be under way is busy, from the instant on at which it is due.
func TestARetryIsSentAgainWhenItIsNotDue(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		b.turns(2)
		jobs := b.next(b.p.ID)
		past, later := b.s.Now().Add(-time.Second), b.s.Now().Add(time.Hour)
		b.end(store.Retrying, &past, jobs[0])
		b.end(store.Retrying, &later, jobs[1])
		b.refused("a retry that is due", b.resend(jobs[0].ID()), "delivery_busy")
		if err := b.resend(jobs[1].ID()); err != nil {
			t.Errorf("a retry that is due in an hour: %v", err)
		}
	})
}

// TestTestsCountForNothing: a test is a well-formed event beside the feed, goes to disabled endpoints too, and changes nothing
// of the endpoint's health.
func TestTestsCountForNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, func(c *config) { c.hook.EndpointGrace = time.Nanosecond })
		b.set(b.p.ID, store.Disabled)
		for _, kind := range store.EventTypes {
			d, err := b.h.SendTest(t.Context(), b.v, b.p.ID, kind)
			if err != nil {
				t.Fatal(err)
			}
			b.status(d.ID(), store.Pending, 0)
			of, err := b.s.EventsByID(t.Context(), []string{d.EventID})
			if err != nil || of[d.EventID] == nil {
				t.Fatalf("%s: no event, %v", kind, err)
			}
			parsed, err := store.ParseEvent(of[d.EventID].Body, 0)
			if err != nil || parsed.Type != kind || parsed.BusinessID != b.v.BusinessID || parsed.ID != d.EventID || parsed.AgentID == nil {
				t.Errorf("%s: %s, %v", kind, of[d.EventID].Body, err)
			}
			details, err := parsed.Details()
			if err != nil || !strings.Contains(string(details.Data), `"test":true`) || details.Direction == "" || of[d.EventID].Direction != details.Direction {
				t.Errorf("%s: %s, %v", kind, of[d.EventID].Body, err)
			}
		}
		if all := events(t, b.s, b.v); len(all) != 0 {
			t.Errorf("%d tests stand in the feed", len(all))
		}
		jobs := b.waits()
		if len(jobs) != len(store.EventTypes) || jobs[0].Trigger != store.TriggerTest {
			t.Fatalf("%d are to be sent", len(jobs))
		}
		b.end(store.Failed, nil, jobs[:4]...)
		b.end(store.Failed, nil, jobs[4:]...)
		for _, j := range jobs {
			b.status(j.ID(), store.Failed, 1)
			if a := b.attempts(j.ID()); a[0].Trigger != store.TriggerTest {
				t.Errorf("the attempt is %+v", a[0])
			}
		}
		if p := b.endpoint(b.p.ID); p.FailingSince != nil || *p.DisabledReason != "disabled by the business" {
			t.Errorf("after failed tests: %+v", p)
		}
		b.refused("a resend of a test", b.resend(jobs[0].ID()), "test_delivery")
		_, err := b.h.SendTest(t.Context(), newBusiness(t, b.s), b.p.ID, store.CallEnded)
		b.refused("a test of another business's endpoint", err, "webhook_not_found")
		for range 3 {
			if _, err := b.s.Prune(t.Context(), b.s.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		if left := b.deliveries(); len(left) != 0 || b.rows("test_events")+b.rows("attempts") != 0 {
			t.Errorf("%d tests are left after their time", len(left))
		}
	})
}
