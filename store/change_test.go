package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"parley/store"
)

// changes reads which deliveries changed, in small pages.
func (b *bench) changes(from store.Time) []string {
	b.t.Helper()
	var ids []string
	var at store.DeliveryChange
	for {
		page, err := b.s.DeliveriesChanged(b.t.Context(), b.v.BusinessID, from, at, 7)
		if err != nil {
			b.t.Fatal(err)
		}
		for _, c := range page {
			ids, at = append(ids, c.DeliveryID), c
		}
		if len(page) < 7 {
			slices.Sort(ids)
			return ids
		}
	}
}

// failed claims what is due and has it fail.
func (b *bench) failed() []*store.Job {
	jobs := b.claim()
	b.end(store.Failed, nil, jobs...)
	return jobs
}

// TestEveryChangeIsFound changes deliveries in each of the ways that there are, when they are young and when they were made long
// ago. What is young costs no note.
func TestEveryChangeIsFound(t *testing.T) {
	disable := func(b *bench) error {
		_, err := b.s.UpdateEndpoint(b.t.Context(), b.v, b.p.ID, store.EndpointInput{Status: ptr(store.Disabled)})
		return err
	}
	for name, way := range map[string]struct {
		backlog int // deliveries besides
		change  func(b *bench) error
	}{
		"made": {0, func(*bench) error { return nil }},
		"an outcome": {0, func(b *bench) error {
			b.end(store.Delivered, nil, b.claim()...)
			return nil
		}},
		"sent again": {0, func(b *bench) error {
			for _, j := range b.failed() {
				if _, err := b.s.Redeliver(b.t.Context(), b.v, j.DeliveryID); err != nil {
					return err
				}
			}
			return nil
		}},
		"replayed": {0, func(b *bench) error {
			b.failed()
			if _, err := b.s.ReplayEvents(b.t.Context(), b.v, store.ReplayInput{EndpointID: b.p.ID}); err != nil {
				return err
			}
			due, err := b.s.AdvanceReplays(b.t.Context(), []store.Hold{b.hold()}, 100)
			if err == nil && len(due[b.v.BusinessID]) != 3 {
				b.t.Errorf("the replay made %v due", due)
			}
			return err
		}},
		"its endpoint disabled": {0, disable},
		"ended in pieces": {store.EndedAtOnce, func(b *bench) error {
			if err := disable(b); err != nil {
				return err
			}
			return b.s.EndWaiting(b.t.Context())
		}},
	} {
		for _, old := range []bool{false, true} {
			if old && name == "made" {
				continue
			}
			t.Run(fmt.Sprint(name, ", old: ", old), func(t *testing.T) {
				onBoth(t, func(t *testing.T, open opener) {
					b := newBench(t, open, nil)
					from := b.s.Now()
					for range 3 {
						finish(t, b.s, begin(t, b.s, b.v, ""))
					}
					if way.backlog > 0 {
						if err := b.s.Multiply(t.Context(), b.p.ID, way.backlog); err != nil {
							t.Fatal(err)
						}
					}
					if old {
						if err := b.s.Age(t.Context()); err != nil {
							t.Fatal(err)
						}
						from = b.s.Now()
						if got := b.changes(from); len(got) != 0 {
							t.Fatalf("before anything changed: %v", got)
						}
					}
					if err := way.change(b); err != nil {
						t.Fatal(err)
					}
					if got := slices.Compact(b.changes(from)); len(got) != 3+way.backlog {
						t.Errorf("%d deliveries have changed, found %v", 3+way.backlog, got)
					}
					if n, err := b.s.Noted(t.Context()); err != nil || (n > 0) != old {
						t.Errorf("%d changes are noted, %v", n, err)
					}
				})
			})
		}
	}
}

// TestChangesAreForgotten removes the notes of changes when they are an hour old. Who asks for such is told so.
func TestChangesAreForgotten(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		finish(t, b.s, begin(t, b.s, b.v, ""))
		noted := func() int {
			n, err := b.s.Noted(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		prune := func() {
			if _, err := b.s.Prune(t.Context(), store.Now().Add(-24*time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.s.Age(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.failed()
		if prune(); noted() != 1 {
			t.Fatalf("%d changes are noted", noted())
		}
		if err := b.s.NotedBefore(t.Context(), 61*time.Minute); err != nil {
			t.Fatal(err)
		}
		if prune(); noted() != 0 {
			t.Errorf("%d changes of more than an hour ago are noted", noted())
		}
		_, err := b.s.DeliveriesChanged(t.Context(), b.v.BusinessID, b.s.Now().Add(-61*time.Minute), store.DeliveryChange{}, 2)
		b.refused("changes since more than an hour ago", err, "changes_forgotten")
	})
}
