package stream_test

import (
	"context"
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/egress"
	"parley/store"
	"parley/stream"
)

// world is a store whose committed events a test hands to a hub as it likes.
type world struct {
	t        *testing.T
	database string // its URL
	store    *store.Store
	viewer   *store.Viewer
	hub      *stream.Hub

	mu        sync.Mutex
	committed []*store.Event
}

func newWorld(t *testing.T, cfg stream.HubConfig) *world {
	t.Helper()
	return newWorldOn(t, "file:"+filepath.Join(t.TempDir(), "parley.db"), cfg)
}

func newWorldOn(t *testing.T, database string, cfg stream.HubConfig) *world {
	t.Helper()
	w := &world{t: t, database: database}
	sealer, err := store.NewSealer(base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	w.store, err = store.Open(t.Context(), store.Config{
		URL: database, SessionTTL: time.Hour, NewSecret: egress.NewSecret, Sealer: sealer,
		Committed: func(events []*store.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.committed = append(w.committed, events...)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	made, err := w.store.CreateBusiness(t.Context(), store.BusinessInput{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if w.viewer, err = w.store.Authenticate(t.Context(), store.KindAccessToken, made.Token); err != nil {
		t.Fatal(err)
	}
	cfg.Store = w.store
	w.hub = stream.NewHub(cfg)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.hub.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// happen commits n events, and returns their entries.
func (w *world) happen(n int) []stream.Entry {
	w.t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			_, err := w.store.BeginTurn(w.t.Context(), store.TurnInput{
				BusinessID: w.viewer.BusinessID, AgentID: "a", Channel: store.SMS, Text: "Hello", Lease: time.Minute,
			})
			if err != nil {
				w.t.Error(err)
			}
		})
	}
	wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	entries := make([]stream.Entry, len(w.committed))
	for i, e := range w.committed {
		entries[i] = stream.Entry{BusinessID: e.BusinessID, Seq: e.Seq, EventID: e.ID, Body: e.Body}
	}
	w.committed = nil
	return entries
}

// expect reads the subscription until it has come to the event with the number last, and checks that each comes once and in order.
func (w *world) expect(s *stream.Subscription, first, last int64) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	for next := first; next <= last; {
		events, err := s.Next(ctx)
		if err != nil {
			w.t.Fatalf("waiting for %d: %v", next, err)
		}
		for _, e := range events {
			if e.Seq != next {
				w.t.Fatalf("%d came where %d was next", e.Seq, next)
			}
			next++
		}
	}
}

func (w *world) subscribe(after *int64, filter *store.EventFilter) *stream.Subscription {
	w.t.Helper()
	s, err := w.hub.Subscribe(w.t.Context(), w.viewer.BusinessID, after, filter)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return s
}

// TestFeedIsWholeWhateverTheStreamDoes offers entries twice, out of order, without their documents, and some not at all:
// every subscriber gets each event once, in order.
func TestFeedIsWholeWhateverTheStreamDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, stream.HubConfig{})
	early := w.subscribe(nil, nil)
	entries := w.happen(300)
	random := rand.New(rand.NewPCG(3, 4))
	offered := entries[:0:0]
	for _, e := range entries {
		switch random.IntN(4) {
		case 0: // lost
			continue
		case 1: // too large for the stream
			e.Body = nil
		case 2: // twice
			offered = append(offered, e)
		}
		offered = append(offered, e)
	}
	random.Shuffle(len(offered), func(i, j int) {
		if i-j < 20 && j-i < 20 {
			offered[i], offered[j] = offered[j], offered[i]
		}
	})
	for len(offered) > 0 {
		n := min(1+random.IntN(20), len(offered))
		w.hub.Offer(offered[:n])
		offered = offered[n:]
	}
	w.expect(early, 1, 300)
	start := int64(0)
	w.expect(w.subscribe(&start, nil), 1, 300)
	middle := int64(150)
	w.expect(w.subscribe(&middle, nil), 151, 300)
}

// TestSlowSubscriberIsNotSkippedOver lets more happen than the hub remembers before a subscriber reads on.
func TestSlowSubscriberIsNotSkippedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, stream.HubConfig{NoPoll: true})
	slow, quick := w.subscribe(nil, nil), w.subscribe(nil, nil)
	const n = 1500
	w.hub.Offer(w.happen(n))
	w.expect(quick, 1, n)
	w.hub.Offer(w.happen(1))
	w.expect(slow, 1, n+1)
	w.expect(quick, n+1, n+1)
}

// TestReaderWaitsForTheDatabase takes PostgreSQL from a reader that has yet to catch up: it waits, and goes on when PostgreSQL is back.
func TestReaderWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	pg := servers.NewPostgres(t)
	w := newWorldOn(t, pg.Database(t), stream.HubConfig{})
	quick := w.subscribe(nil, nil)
	const n = 1500 // more than the hub remembers
	w.hub.Offer(w.happen(n))
	w.expect(quick, 1, n)
	start := int64(0)
	slow := w.subscribe(&start, nil)
	pg.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if events, err := slow.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("with PostgreSQL away it read %d events, %v", len(events), err)
	}
	pg.Up()
	w.expect(slow, 1, n)
}

// TestFilterSelectsAlikeLiveAndFromSQL subscribes with a filter before and after the events.
func TestFilterSelectsAlikeLiveAndFromSQL(t *testing.T) {
	t.Parallel()
	w := newWorld(t, stream.HubConfig{})
	entries := w.happen(3)
	all, err := w.store.EventsAfter(t.Context(), w.viewer.BusinessID, 0, 3, nil, 10)
	if err != nil {
		t.Fatal(err)
	}
	filter := &store.EventFilter{SessionID: all[1].SessionID, Types: []store.EventType{store.MessageCreated}, Channels: []store.Channel{store.SMS, store.Voice}}
	start := int64(0)
	old := w.subscribe(&start, filter)
	w.hub.Offer(entries)
	events, err := old.Next(t.Context())
	if err != nil || len(events) != 1 || events[0].ID != all[1].ID {
		t.Errorf("from SQL: %v, %v", events, err)
	}
	none := &store.EventFilter{Types: []store.EventType{store.CallEnded}}
	live, empty := w.subscribe(nil, &store.EventFilter{Types: []store.EventType{store.MessageCreated}}), w.subscribe(nil, none)
	w.hub.Offer(w.happen(2))
	w.expect(live, 4, 5)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if events, err := empty.Next(ctx); err == nil {
		t.Errorf("a filter that selects nothing let through %v", events)
	}
}

func TestAFilterThatSelectsNothingTellsHowFarItHasLooked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, stream.HubConfig{TellEvery: time.Millisecond})
	s, err := w.hub.Subscribe(t.Context(), w.viewer.BusinessID, nil, &store.EventFilter{Types: []store.EventType{store.RunFailed}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 3 {
		entries := w.happen(2)
		w.hub.Offer(entries)
		last := int64(0)
		for _, e := range entries {
			last = max(last, e.Seq)
		}
		for s.At() < last {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			events, err := s.Next(ctx)
			cancel()
			if err != nil || len(events) > 0 {
				t.Fatalf("at %d of %d: %d events, %v", s.At(), last, len(events), err)
			}
		}
	}
}
