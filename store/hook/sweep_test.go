package hook_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"parley/store"
	"parley/store/hook"
)

// backlog gives an endpoint that wants run.finished more deliveries that wait than one commit ends, and before them one that was
// tried once. It returns how many there are in all.
func (b *bench) backlog(p *hook.Endpoint) int {
	b.t.Helper()
	b.turns(1)
	later := b.s.Now().Add(time.Hour)
	b.end(store.Retrying, &later, b.next(p.ID)...)
	const more = 2000
	b.multiply(p.ID, more)
	return more + 1
}

// shown counts an endpoint's deliveries by their status, as lists with that filter tell it.
func (b *bench) shown(endpoint string) map[store.DeliveryStatus]int {
	b.t.Helper()
	all := map[store.DeliveryStatus]int{}
	for _, status := range store.DeliveryStatuses {
		for _, d := range deliveries(b.t, b.h, b.v, hook.DeliveryFilter{EndpointID: &endpoint, Status: &status}, 100) {
			waits := d.Status == store.Pending || d.Status == store.Retrying
			if d.Status != status || waits != (d.NextAttemptAt() != nil) {
				b.t.Fatalf("a delivery that is %s is shown as %+v, next %v", status, d, d.NextAttemptAt())
			}
			all[status]++
		}
	}
	return all
}

// TestWhatWaitsEndsWithItsEndpoint: however much waits for an endpoint, as soon as that is disabled or deleted all of it is shown
// as ended, and nothing more of it is given to the worker to be sent; the rows follow in pieces, whoever was to write them.
func TestWhatWaitsEndsWithItsEndpoint(t *testing.T) {
	ways := map[string]func(b *bench) error{
		"disabled": func(b *bench) error {
			_, err := b.h.UpdateEndpoint(context.Background(), b.v, b.p.ID, hook.EndpointInput{Status: ptr(store.Disabled)})
			return err
		},
		"deleted": func(b *bench) error { return b.h.DeleteEndpoint(context.Background(), b.v, b.p.ID) },
		"disabled by its receiver": func(b *bench) error {
			o := b.outcome(b.next(b.p.ID)[0], store.Failed, nil)
			o.Disable, o.Attempt.Error = "410", ptr("gone")
			if recorded := b.record(o); len(recorded.Disabled) != 1 {
				return fmt.Errorf("recorded %+v", recorded)
			}
			return nil
		},
	}
	for name, off := range ways {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, open opener) {
				var mu sync.Mutex // guards told
				told := 0         // of their end, for whoever watches live
				b := newBench(t, open, func(c *config) {
					c.hook.DeliveriesChanged = func(_ string, ids ...string) {
						mu.Lock()
						defer mu.Unlock()
						told = max(told, len(ids))
					}
				})
				other := newEndpoint(t, b.h, b.v, store.RunFinished)
				all := b.backlog(b.p)
				if got := b.shown(b.p.ID); got[store.Pending] != all-1 || got[store.Retrying] != 1 {
					t.Fatalf("before: %v", got)
				}
				if err := off(b); err != nil {
					t.Fatal(err)
				}
				failed := 1
				if name == "disabled by its receiver" {
					failed = 2
				}
				check := func(when string) {
					t.Helper()
					if got := b.shown(b.p.ID); got[store.Skipped] != all-failed || got[store.Failed] != failed || len(got) != 2 {
						t.Errorf("%s: %v, %d waited", when, got, all)
					}
					later, err := b.h.Due(t.Context(), b.shard(), b.p.ID, b.s.Now().Add(2*time.Hour), 10)
					if jobs := append(b.next(b.p.ID), later...); err != nil || len(jobs) != 0 {
						t.Errorf("%s %+v are to be sent, %v", when, jobs, err)
					}
				}
				check("in the same commit")
				waiting := func() int { return b.rows("deliveries WHERE endpoint_id = ? AND due IS NOT NULL", b.p.ID) }
				if waiting() < all-failed {
					t.Fatalf("%d wait in SQL: the commit had all of them to write", waiting())
				}
				ctx, stop := context.WithCancel(t.Context()) // as a server that starts after a crash does
				var running sync.WaitGroup
				running.Go(func() {
					if err := b.h.RunSweeper(ctx); err != nil {
						t.Error(err)
					}
				})
				for n := waiting(); n > 0; n = waiting() {
					if n > all {
						t.Fatal(n)
					}
				}
				stop()
				running.Wait()
				check("in the end")
				mu.Lock()
				if told < 100 { // of as many as that a live list says "query again"
					t.Errorf("of %d deliveries that ended %d were told of", all, told)
				}
				mu.Unlock()
				if got := b.shown(other.ID); got[store.Pending] != 1 || len(got) != 1 {
					t.Errorf("another endpoint's: %v", got)
				}
			})
		})
	}
}

// TestEnablingWaitsForNobody: an endpoint is enabled though much that waited for it is not swept yet: none of that comes back to life, and
// what comes from now on is sent. Tests are sent all the same.
func TestEnablingWaitsForNobody(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		all := b.backlog(b.p)
		b.set(b.p.ID, store.Disabled)
		test, err := b.h.SendTest(t.Context(), b.v, b.p.ID, store.RunFinished)
		if err != nil {
			t.Fatal(err)
		}
		b.set(b.p.ID, store.Enabled)
		b.turns(1)
		check := func(when string) {
			t.Helper()
			if got := b.shown(b.p.ID); got[store.Skipped] != all-1 || got[store.Failed] != 1 || got[store.Pending] != 2 || len(got) != 3 {
				t.Errorf("%s: %v", when, got)
			}
			if jobs := b.waits(); len(jobs) != 2 || jobs[1].ID() != test.ID() {
				t.Errorf("%s %+v are to be sent", when, jobs)
			}
		}
		check("once enabled")
		if err := b.h.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		check("swept")
		if n := b.rows("deliveries WHERE due IS NOT NULL"); n != 2 {
			t.Errorf("%d wait in SQL", n)
		}
	})
}

// TestALateBirthIsSwept: a commit that was under way when its endpoint was disabled, and made a delivery for it, makes one that is over.
// So the sweeper looks again until there can be none any more, and then no longer.
func TestALateBirthIsSwept(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		b.turns(1)
		b.set(b.p.ID, store.Disabled)
		sweep := func() {
			t.Helper()
			if err := b.h.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		sweep()
		execute(t, b.s, "UPDATE deliveries SET due = 0, status = 'pending'") // it is there only now
		late := b.deliveries()[0]
		b.status(late.ID(), store.Skipped, 0)
		if jobs := b.next(b.p.ID); len(jobs) != 0 {
			t.Errorf("%+v are to be sent", jobs)
		}
		sweep()
		b.status(late.ID(), store.Skipped, 0)
		if b.rows("deliveries WHERE due IS NOT NULL") != 0 || b.rows("endpoints WHERE unswept") != 1 {
			t.Error("it waits, or nobody looks for others")
		}
		execute(t, b.s, "UPDATE endpoints SET over_at = over_at - ?", time.Minute.Microseconds())
		sweep()
		if b.rows("endpoints WHERE unswept") != 0 {
			t.Error("nothing of it can come any more, and it is still looked for")
		}
	})
}

// TestTestsEndWithADeletedEndpoint: a test waits for a disabled endpoint, and ends with a deleted one, however much else waits.
func TestTestsEndWithADeletedEndpoint(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		b.backlog(b.p)
		test, err := b.h.SendTest(t.Context(), b.v, b.p.ID, store.RunFinished)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.h.DeleteEndpoint(t.Context(), b.v, b.p.ID); err != nil {
			t.Fatal(err)
		}
		if jobs := b.waits(); len(jobs) != 0 {
			t.Errorf("%d are to be sent to a deleted endpoint", len(jobs))
		}
		b.status(test.ID(), store.Skipped, 0)
		if err := b.h.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.status(test.ID(), store.Skipped, 0)
	})
}
