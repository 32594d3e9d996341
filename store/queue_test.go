package store_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"parley/egress"
	"parley/store"
	"parley/store/hook"
)

// TestWritesAreShared: a business has written more than is taken of it. Another one's write is
// taken, and is part of the next batch.
func TestWritesAreShared(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		release := s.Hold()
		var mu sync.Mutex // guards done
		done := map[string]int{}
		before := -1
		write := func(business string) error {
			return s.Write(&store.Write{Business: business, Read: func(*store.Tx) {}, Apply: func(context.Context, *store.Tx) error {
				mu.Lock()
				defer mu.Unlock()
				if done[business]++; business == "b" {
					before = done["a"]
				}
				return nil
			}})
		}
		var writing sync.WaitGroup
		refused := make(chan struct{}, store.QueuedWrites)
		for range store.QueuedWrites {
			writing.Go(func() {
				if err := write("a"); errors.Is(err, store.ErrOverloaded) {
					refused <- struct{}{}
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		for range store.QueuedWrites / 2 {
			<-refused
		}
		waits := s.Waiting()
		writing.Go(func() {
			if err := write("b"); err != nil {
				t.Errorf("the other business: %v", err)
			}
		})
		for s.Waiting() == waits {
			runtime.Gosched()
		}
		release()
		writing.Wait()
		if done["a"] != store.QueuedWrites/2 || before < 0 || before > store.BatchWrites {
			t.Errorf("%d of a's writes were done, and %d of them before b's", done["a"], before)
		}
	})
}

// TestRowsAreShared: each event of one business makes a hundred deliveries. As soon as that is
// known, another one's turn does not wait for more than two of its batches, and their rows.
func TestRowsAreShared(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		var mu sync.Mutex        // guards committed
		var committed [][]string // whose events each batch had
		s := open(t, func(c *store.Config) {
			c.Committed = func(events []*store.Event) {
				mu.Lock()
				defer mu.Unlock()
				var batch []string
				for _, e := range events {
					batch = append(batch, e.BusinessID)
				}
				committed = append(committed, batch)
			}
		})
		hooks := hook.New(hook.Config{Store: s, MaxEndpoints: 200, NewSecret: egress.NewSecret})
		a, b := newBusiness(t, s), newBusiness(t, s)
		const endpoints, turns = 100, 60
		for range endpoints {
			_, _, err := hooks.CreateEndpoint(t.Context(), a, hook.EndpointInput{URL: ptr("https://example.com/hook"), Events: []store.EventType{store.MessageCreated}})
			if err != nil {
				t.Fatal(err)
			}
		}
		begin := func(v *store.Viewer) {
			if _, err := s.BeginTurn(t.Context(), turnInput(v, "")); err != nil {
				t.Error(err)
			}
		}
		begin(a)
		committed = nil
		release := s.Hold()
		var writing sync.WaitGroup
		for range turns {
			writing.Go(func() { begin(a) })
		}
		for s.Waiting() < turns {
			runtime.Gosched()
		}
		writing.Go(func() { begin(b) })
		for s.Waiting() < turns+1 {
			runtime.Gosched()
		}
		release()
		writing.Wait()
		made := 0
		for _, batch := range committed {
			made += endpoints * len(batch)
			if slices.Contains(batch, b.BusinessID) {
				break
			}
		}
		if made > 2*store.BatchRows {
			t.Errorf("some %d deliveries were made until the other business's turn had begun", made)
		}
	})
}

// TestOneBatchEndsARunOnce: one batch has both a turn's end and its failure.
func TestOneBatchEndsARunOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		turn, err := s.BeginTurn(t.Context(), turnInput(v, ""))
		if err != nil {
			t.Fatal(err)
		}
		release := s.Hold()
		var ending sync.WaitGroup
		var errs [2]error
		ending.Go(func() { _, errs[0] = s.FinishTurn(t.Context(), turn, "Hi", store.RunStep{Model: "m"}) })
		ending.Go(func() { errs[1] = s.FailTurn(t.Context(), turn.Run, "model_error") })
		for s.Waiting() < 2 {
			runtime.Gosched()
		}
		release()
		ending.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("the turn's end: %v; its failure: %v", errs[0], errs[1])
		}
		events, err := s.EventsAfter(t.Context(), v.BusinessID, 0, 100, nil, 100)
		if err != nil {
			t.Fatal(err)
		}
		ends := 0
		for _, e := range events {
			if e.Type == store.RunFinished || e.Type == store.RunFailed {
				ends++
			}
		}
		if ends != 1 {
			t.Errorf("%d events tell of the run's end", ends)
		}
	})
}
