package hook_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"parley/store"
	"parley/store/hook"
)

func (b *bench) replay(in hook.ReplayInput) *hook.Replay {
	b.t.Helper()
	r, err := b.h.ReplayEvents(b.t.Context(), b.v, in)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// advance goes on with the replays.
func (b *bench) advance(window int) {
	b.t.Helper()
	lanes, err := b.h.AdvanceReplays(b.t.Context(), []hook.Hold{b.hold()}, window)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, l := range lanes {
		if l.Shard != b.shard() || l.BusinessID != b.v.BusinessID || l.NextDue == 0 {
			b.t.Errorf("due is %+v", l)
		}
	}
}

func (b *bench) replayed(id string) *hook.Replay {
	b.t.Helper()
	r, err := b.h.Replay(b.t.Context(), b.v.BusinessID, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// TestReplayWalksAlongTheSequence has a replay of a few deliveries at a time, given to another holder half way.
func TestReplayWalksAlongTheSequence(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		const window = 4
		since := b.s.Now()
		for i := range 12 { // every third is delivered
			status := store.Failed
			if i%3 == 0 {
				status = store.Delivered
			}
			b.end(status, nil, b.event())
		}
		replay := b.replay(hook.ReplayInput{EndpointID: b.p.ID, Since: since})
		if replay.Total != 8 || replay.Status != store.ReplayRunning {
			t.Fatalf("%+v", replay)
		}
		_, err := b.h.ReplayEvents(t.Context(), b.v, hook.ReplayInput{EndpointID: b.p.ID, Since: since})
		b.refused("a second replay", err, "replay_running")
		b.advance(window)
		if n := len(b.due(b.p.ID)); n != window {
			t.Errorf("%d are due at first", n)
		}
		b.advance(window)
		jobs := b.waits()
		if len(jobs) != window || jobs[0].Trigger != store.TriggerReplay || jobs[0].ReplayID == nil || jobs[0].Base != 1 || jobs[0].InTurn() {
			t.Fatalf("due are %d: %+v", len(jobs), jobs)
		}
		b.refused("a resend of what a replay sends", b.resend(jobs[0].ID()), "delivery_busy")
		b.end(store.Delivered, nil, jobs[:3]...)
		// The holder dies, and the next one goes on.
		lost := b.hold()
		b.takenOver("another")
		if lanes, err := b.h.AdvanceReplays(t.Context(), []hook.Hold{lost}, window); err != nil || len(lanes) != 0 {
			t.Errorf("a lost holder went on: %v, %v", lanes, err)
		}
		soon := b.s.Now().Add(-time.Second)
		sent := 3
		var order []int64
		for range 20 {
			b.advance(window)
			jobs := b.waits()
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
		if !slices.IsSorted(order) {
			t.Errorf("out of order: %v", order)
		}
		if done := b.replayed(replay.ID); done.Status != store.ReplayFinished || done.Total != 8 || done.Sent != 8 || done.FinishedAt == nil {
			t.Errorf("in the end: %+v", done)
		}
		for _, d := range b.deliveries() {
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
		since := b.s.Now()
		b.end(store.Delivered, nil, b.event())
		b.end(store.Failed, nil, b.event())
		young := newEndpoint(t, b.h, b.v, store.RunFinished)
		waits := b.event()
		run := func(endpoint string, all bool, until *store.Time) *hook.Replay {
			t.Helper()
			return b.replay(hook.ReplayInput{EndpointID: endpoint, Since: since, Until: until, FailedOnly: ptr(!all)})
		}
		if r := run(young.ID, false, nil); r.Total != 0 || r.Status != store.ReplayFinished || r.FinishedAt == nil {
			t.Errorf("nothing failed at a young endpoint: %+v", r)
		}
		if r := run(young.ID, true, nil); r.Total != 2 {
			t.Errorf("two are older than the endpoint, one waits: %+v", r)
		}
		b.advance(10)
		if due, next := b.due(young.ID), b.next(young.ID); len(due) != 2 || len(next) != 1 || due[0].Trigger != store.TriggerReplay || due[0].Base != 0 {
			t.Fatalf("due are %+v, and next %+v", due, next)
		}
		if r := run(b.p.ID, true, nil); r.Total != 2 {
			t.Errorf("one was delivered, one failed, one waits: %+v", r)
		}
		b.end(store.Delivered, nil, waits)
		if err := b.h.DeleteEndpoint(t.Context(), b.v, b.p.ID); err != nil {
			t.Fatal(err)
		}
		of, err := b.h.ReplaysOf(t.Context(), []string{b.p.ID, young.ID})
		if all := of[b.p.ID]; err != nil || len(all) != 1 || all[0].Status != store.ReplayStopped || len(of[young.ID]) != 2 || of[young.ID][0].Total != 2 {
			t.Errorf("the replays: %+v, %v", of, err)
		}
		_, err = b.h.ReplayEvents(t.Context(), b.v, hook.ReplayInput{EndpointID: b.p.ID, Since: since})
		b.refused("to a deleted endpoint", err, "webhook_not_found")
		b.set(young.ID, store.Disabled)
		_, err = b.h.ReplayEvents(t.Context(), b.v, hook.ReplayInput{EndpointID: young.ID, Since: since})
		b.refused("to a disabled endpoint", err, "endpoint_disabled")
		_, err = b.h.ReplayEvents(t.Context(), b.v, hook.ReplayInput{EndpointID: young.ID, Since: since, Until: &since})
		b.refused("of no time", err, "validation_error")
		_, err = b.h.Replay(t.Context(), newBusiness(t, b.s).BusinessID, of[b.p.ID][0].ID)
		b.refused("of another business", err, "replay_not_found")
	})
}

// TestReplayMeetsTheRule: what is over though its row waits has been skipped, or failed: a replay sends it, once the endpoint is enabled.
func TestReplayMeetsTheRule(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		since := b.s.Now()
		b.turns(3)
		later := b.s.Now().Add(time.Hour)
		b.end(store.Retrying, &later, b.next(b.p.ID)[0])
		b.set(b.p.ID, store.Disabled)
		b.set(b.p.ID, store.Enabled)
		b.turns(1)
		for _, failedOnly := range []bool{true, false} {
			r := b.replay(hook.ReplayInput{EndpointID: b.p.ID, Since: since, FailedOnly: &failedOnly})
			if r.Total != 3 {
				t.Errorf("failed only: %v: %+v", failedOnly, r)
			}
			b.advance(10)
			jobs := b.due(b.p.ID)
			if len(jobs) != 3 || jobs[0].Attempts != jobs[0].Base || len(b.next(b.p.ID)) != 1 {
				t.Fatalf("failed only: %v: due are %+v", failedOnly, jobs)
			}
			b.end(store.Delivered, nil, jobs...)
			b.advance(10)
			b.advance(10)
			if r := b.replayed(r.ID); r.Status != store.ReplayFinished || r.Sent != 3 {
				t.Errorf("failed only: %v: %+v", failedOnly, r)
			}
		}
		if err := b.h.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := b.shown(b.p.ID); got[store.Delivered] != 3 || got[store.Pending] != 1 {
			t.Errorf("in the end: %v", got)
		}
	})
}

// TestReplayKeepsItsOrder: however few are read at once, a replay's deliveries are due in their sequence: those that are as old as their
// events, those that the replay made, and those of its next step; for the next holder too.
func TestReplayKeepsItsOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		since := b.s.Now()
		b.turns(3) // of these there are no deliveries to the endpoint that is replayed to
		young := newEndpoint(t, b.h, b.v, store.RunFinished)
		b.turns(5)
		b.end(store.Delivered, nil, b.next(young.ID)...)
		b.replay(hook.ReplayInput{EndpointID: young.ID, Since: since, FailedOnly: ptr(false)})
		var got []int64
		for i := range 12 {
			b.advance(3)
			jobs := b.due(young.ID)
			jobs = jobs[:min(2, len(jobs))]
			for _, j := range jobs {
				got = append(got, j.Seq)
			}
			b.end(store.Delivered, nil, jobs...)
			if i == 2 {
				b.takenOver("another")
			}
		}
		if want := []int64{3, 6, 9, 12, 15, 18, 21, 24}; !slices.Equal(got, want) {
			t.Errorf("%v came, want %v", got, want)
		}
	})
}

// TestReplayGoesOnBesideItsRetries: what a receiver refuses, and is tried again in an hour, holds the rest up for no time. The replay
// ends when all of it has.
func TestReplayGoesOnBesideItsRetries(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		const n, window = 12, 4
		since := b.s.Now()
		for range n {
			b.end(store.Failed, nil, b.event())
		}
		replay := b.replay(hook.ReplayInput{EndpointID: b.p.ID, Since: since})
		later := b.s.Now().Add(time.Hour)
		for i := range n/window + 1 {
			b.advance(window)
			jobs := b.waits()
			if want := min(window, n-i*window); len(jobs) != want {
				t.Fatalf("step %d: %d are due, want %d", i, len(jobs), want)
			}
			b.end(store.Retrying, &later, jobs...)
		}
		if r := b.replayed(replay.ID); r.Status != store.ReplayRunning || r.Sent != n {
			t.Errorf("with %d retries to come: %+v", n, r)
		}
	})
}

// TestTwoGoOnWithOneReplay: where two replicas take a shard for theirs at once, each step of a replay is made by one of them.
func TestTwoGoOnWithOneReplay(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		_, other := open(t, nil)
		since := b.s.Now()
		for range 9 {
			b.end(store.Failed, nil, b.event())
		}
		r := b.replay(hook.ReplayInput{EndpointID: b.p.ID, Since: since})
		for range 6 {
			var both sync.WaitGroup
			for _, h := range []*hook.Hooks{b.h, other} {
				both.Go(func() {
					if _, err := h.AdvanceReplays(t.Context(), []hook.Hold{b.hold()}, 4); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
			b.end(store.Delivered, nil, b.waits()...)
		}
		if r := b.replayed(r.ID); r.Status != store.ReplayFinished || r.Sent != 9 || r.Total != 9 {
			t.Errorf("%+v", r)
		}
		for _, d := range b.deliveries() {
			b.status(d.ID(), store.Delivered, 2)
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
			_, err := b.h.UpdateEndpoint(t.Context(), b.v, b.p.ID, hook.EndpointInput{Events: []store.EventType{store.CallEnded}})
			return err
		},
		"disabled": func(b *bench) error {
			_, err := b.h.UpdateEndpoint(t.Context(), b.v, b.p.ID, hook.EndpointInput{Status: ptr(store.Disabled)})
			return err
		},
		"deleted": func(b *bench) error { return b.h.DeleteEndpoint(t.Context(), b.v, b.p.ID) },
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, open opener) {
				b := newBench(t, open, nil)
				since := b.s.Now()
				for range 10 {
					b.end(store.Failed, nil, b.event())
				}
				replay := b.replay(hook.ReplayInput{EndpointID: b.p.ID, Since: since})
				if replay.Total != 10 {
					t.Fatalf("%+v", replay)
				}
				b.advance(window)
				jobs := b.waits()
				b.end(store.Delivered, nil, jobs[:2]...)
				if err := change(b); err != nil {
					t.Fatal(err)
				}
				sent, status := 2, store.ReplayStopped
				if name == "other types" { // what was due by then is sent
					sent, status = window, store.ReplayFinished
					b.end(store.Delivered, nil, jobs[2:]...)
				} else if n := b.end(store.Failed, nil, jobs[2:3]...); n != 1 {
					t.Errorf("an attempt in flight is not on record")
				} else {
					sent++
				}
				for range 3 {
					b.advance(window)
					if more := b.waits(); len(more) != 0 {
						t.Errorf("%d more are sent", len(more))
					}
				}
				if done := b.replayed(replay.ID); done.Status != status || done.Sent != sent || done.FinishedAt == nil {
					t.Errorf("%+v", done)
				}
				of := map[store.DeliveryStatus]int{}
				for _, d := range b.deliveries() {
					of[d.Status]++
					if d.NextAttemptAt() != nil {
						t.Errorf("something waits: %+v", d)
					}
				}
				if of[store.Failed]+of[store.Delivered] != 10 {
					t.Errorf("%v", of)
				}
			})
		})
	}
}
