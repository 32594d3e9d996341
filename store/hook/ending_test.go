package hook_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"parley/store"
)

// backlog gives an endpoint more deliveries that wait than one commit ends, and before them one that was tried once. It returns
// how many there are in all, and a hold on its shard.
func backlog(t *testing.T, s *store.Store, v *store.Viewer, p *store.Endpoint) (int, store.Hold) {
	t.Helper()
	finish(t, s, begin(t, s, v, ""))
	hold := takeAll(t, s, "replica")[store.ShardOf(v.BusinessID)]
	jobs, err := s.Claim(t.Context(), []store.Wanted{{EndpointID: p.ID, Limit: 1, UpTo: 1 << 40, Hold: hold}}, time.Minute)
	if err != nil || len(jobs) == 0 {
		t.Fatal(jobs, err)
	}
	later, reset := store.Now().Add(time.Hour), "connection_reset"
	_, _, err = s.Record(t.Context(), []*store.Outcome{{Job: jobs[0], Status: store.Retrying, Next: &later, Attempt: &store.Attempt{
		DeliveryID: jobs[0].DeliveryID, Number: 1, Trigger: store.TriggerAutomatic, StartedAt: store.Now(), Error: &reset,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	const more = 2*store.EndedAtOnce + 7
	if err := s.Multiply(t.Context(), p.ID, more); err != nil {
		t.Fatal(err)
	}
	return more + 1, hold
}

// shown counts an endpoint's deliveries by their status, as each of the reads tells it, and says which have more to come.
func shown(t *testing.T, s *store.Store, v *store.Viewer, endpoint string) map[store.DeliveryStatus]int {
	t.Helper()
	all := map[store.DeliveryStatus]int{}
	for _, status := range store.DeliveryStatuses {
		page := store.PageInput{First: 100}
		for more := true; more; {
			c, err := s.Deliveries(t.Context(), v.BusinessID, store.DeliveryFilter{EndpointID: &endpoint, Status: &status}, page)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range c.Nodes() {
				over := d.Status != store.Pending && d.Status != store.Retrying
				if d.Status != status || over && (d.NextAttemptAt != nil || d.Leased) {
					t.Fatalf("a delivery that is %s is shown as %+v", status, d)
				}
				all[status]++
			}
			page.After, more = c.PageInfo.EndCursor, c.PageInfo.HasNextPage
		}
	}
	return all
}

// TestWhatWaitsEndsWithItsEndpoint: however much waits for an endpoint, as soon as that is disabled or deleted all of it is shown
// as ended, and nothing more of it is given to the worker to be sent; the rows follow in pieces, whoever was to write them.
func TestWhatWaitsEndsWithItsEndpoint(t *testing.T) {
	ways := map[string]func(s *store.Store, v *store.Viewer, p *store.Endpoint, hold store.Hold) error{
		"disabled": func(s *store.Store, v *store.Viewer, p *store.Endpoint, _ store.Hold) error {
			_, err := s.UpdateEndpoint(context.Background(), v, p.ID, store.EndpointInput{Status: ptr(store.Disabled)})
			return err
		},
		"deleted": func(s *store.Store, v *store.Viewer, p *store.Endpoint, _ store.Hold) error {
			return s.DeleteEndpoint(context.Background(), v, p.ID)
		},
		"disabled by its receiver": func(s *store.Store, _ *store.Viewer, p *store.Endpoint, hold store.Hold) error {
			jobs, err := s.Claim(context.Background(), []store.Wanted{{EndpointID: p.ID, Limit: 1, UpTo: 1 << 40, Hold: hold}}, time.Minute)
			if err != nil || len(jobs) == 0 {
				return fmt.Errorf("claimed %v, %w", jobs, err)
			}
			gone := "gone"
			_, disabled, err := s.Record(context.Background(), []*store.Outcome{{Job: jobs[0], Status: store.Failed, Disable: "410", Attempt: &store.Attempt{
				DeliveryID: jobs[0].DeliveryID, Number: 1, Trigger: store.TriggerAutomatic, StartedAt: store.Now(), Error: &gone,
			}}})
			if err != nil || len(disabled) != 1 {
				return fmt.Errorf("disabled %v, %w", disabled, err)
			}
			return nil
		},
	}
	for name, off := range ways {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, open opener) {
				var mu sync.Mutex
				told := map[string]bool{} // of their end, for whoever watches live
				s := open(t, func(c *store.Config) {
					c.DeliveriesEnded = func(_ string, ids ...string) {
						mu.Lock()
						defer mu.Unlock()
						for _, id := range ids {
							told[id] = true
						}
					}
				})
				v := newBusiness(t, s)
				p, other := newEndpoint(t, s, v, store.RunFinished), newEndpoint(t, s, v, store.RunFinished)
				all, hold := backlog(t, s, v, p)
				if got := shown(t, s, v, p.ID); got[store.Pending] != all-1 || got[store.Retrying] != 1 {
					t.Fatalf("before: %v", got)
				}
				if err := off(s, v, p, hold); err != nil {
					t.Fatal(err)
				}
				failed := 1
				if name == "disabled by its receiver" {
					failed = 2
				}
				check := func(when string) {
					t.Helper()
					if got := shown(t, s, v, p.ID); got[store.Skipped] != all-failed || got[store.Failed] != failed || len(got) != 2 {
						t.Errorf("%s: %v, %d waited", when, got, all)
					}
				}
				check("in the same commit")
				if left, err := s.Waiting(t.Context(), p.ID); err != nil || left == 0 {
					t.Fatalf("%d wait in SQL, %v: the commit had all of them to write", left, err)
				}
				jobs, err := s.Claim(t.Context(), []store.Wanted{{EndpointID: p.ID, Limit: 3, UpTo: 1 << 40, Hold: hold}}, time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				for _, j := range jobs {
					if j.EndpointStatus != store.Disabled {
						t.Errorf("a job for an endpoint that is %s has the status %s", name, j.EndpointStatus)
					}
				}
				check("while it is claimed")

				ctx, stop := context.WithCancel(t.Context()) // as a server that starts after a crash does
				ran := make(chan error, 1)
				go func() { ran <- s.RunEndings(ctx) }()
				for left := 1; left > 0; {
					if left, err = s.Waiting(t.Context(), p.ID); err != nil {
						t.Fatal(err)
					}
				}
				stop()
				if err := <-ran; err != nil {
					t.Error(err)
				}
				check("in the end")
				mu.Lock()
				if unsaid := all - len(told); unsaid != 0 && (name != "disabled by its receiver" || unsaid != 1) { // of that one its outcome tells
					t.Errorf("of %d deliveries that ended %d were not told of", all, unsaid)
				}
				mu.Unlock()
				if got := shown(t, s, v, other.ID); got[store.Pending] != 1 || len(got) != 1 {
					t.Errorf("another endpoint's: %v", got)
				}
			})
		})
	}
}

// TestEnablingWaitsForTheEnd: an endpoint is enabled only when all that waited for it is ended: none of that comes back to life.
func TestEnablingWaitsForTheEnd(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		p := newEndpoint(t, s, v, store.RunFinished)
		all, _ := backlog(t, s, v, p)
		set := func(ctx context.Context, status store.EndpointStatus) error {
			_, err := s.UpdateEndpoint(ctx, v, p.ID, store.EndpointInput{Status: &status})
			return err
		}
		if err := set(t.Context(), store.Disabled); err != nil {
			t.Fatal(err)
		}
		impatient, cancel := context.WithCancel(t.Context())
		cancel()
		if err := set(impatient, store.Enabled); !errors.Is(err, context.Canceled) {
			t.Fatalf("enabled while deliveries wait that are over: %v", err)
		}
		test, err := s.SendTest(t.Context(), v, p.ID, store.RunFinished) // a test is sent all the same
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- s.RunEndings(ctx) }()
		if err := set(t.Context(), store.Enabled); err != nil {
			t.Fatal(err)
		}
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		if got := shown(t, s, v, p.ID); got[store.Skipped] != all-1 || got[store.Failed] != 1 || got[store.Pending] != 1 {
			t.Errorf("once enabled: %v", got)
		}
		if d, err := s.Delivery(t.Context(), v.BusinessID, test.ID); err != nil || d.Status != store.Pending {
			t.Errorf("the test is %+v, %v", d, err)
		}
	})
}

// TestTestsEndWithADeletedEndpoint: a test waits for a disabled endpoint, and ends with a deleted one, however much else waits.
func TestTestsEndWithADeletedEndpoint(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		p := newEndpoint(t, s, v, store.RunFinished)
		_, hold := backlog(t, s, v, p)
		test, err := s.SendTest(t.Context(), v, p.ID, store.RunFinished)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteEndpoint(t.Context(), v, p.ID); err != nil {
			t.Fatal(err)
		}
		jobs, err := s.Claim(t.Context(), []store.Wanted{{EndpointID: p.ID, Limit: 1000, UpTo: 0, Hold: hold}}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			if j.DeliveryID == test.ID {
				t.Error("the test of a deleted endpoint is given to the worker")
			}
		}
		if d, err := s.Delivery(t.Context(), v.BusinessID, test.ID); err != nil || d.Status != store.Skipped {
			t.Errorf("the test is %+v, %v", d, err)
		}
	})
}
