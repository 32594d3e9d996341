package store_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"parley/store"
)

// TestReadersAreShared: while one business's callers read for as long as they like, with more reads than there are readers, another
// business reads, and anybody is authenticated; and a read ends with its caller's deadline, one that waits for its turn too.
func TestReadersAreShared(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		made := make([]*store.NewBusiness, 2)
		viewers := make([]*store.Viewer, 2)
		for i := range made {
			var err error
			if made[i], err = s.CreateBusiness(t.Context(), store.BusinessInput{Name: "B"}); err != nil {
				t.Fatal(err)
			}
			if viewers[i], err = s.Authenticate(t.Context(), store.KindAccessToken, made[i].Token); err != nil {
				t.Fatal(err)
			}
		}
		a, end := context.WithCancel(store.WithViewer(t.Context(), viewers[0], nil))
		b, cancel := context.WithTimeout(store.WithViewer(t.Context(), viewers[1], nil), time.Minute)
		defer cancel()
		var reading sync.WaitGroup
		for range 40 {
			reading.Go(func() {
				if err := s.ReadForEver(a); err == nil {
					t.Error("a read without an end has ended well")
				}
			})
		}
		defer reading.Wait()
		defer end()
		until(t, "all read or wait", func() bool { return s.Reading(viewers[0].BusinessID, 40) })
		for range 10 {
			if _, err := s.Agents(b, viewers[1].BusinessID, store.PageInput{First: 10}); err != nil {
				t.Fatalf("the other business's list: %v", err)
			}
			if _, err := s.Authenticate(b, store.KindAccessToken, made[0].Token); err != nil {
				t.Fatalf("authenticate: %v", err)
			}
		}
		brief, stop := context.WithTimeout(a, 50*time.Millisecond)
		defer stop()
		_, err := s.Agents(brief, viewers[0].BusinessID, store.PageInput{First: 10})
		if refusal, ok := store.AsError(err); !ok || refusal.Code != store.CodeUnavailable {
			t.Errorf("a read that has waited for too long: %v", err)
		}
	})
}
