package stream_test

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the database of production

	"parley/e2e/servers"
	"parley/egress"
	"parley/store"
	"parley/store/hook"
	"parley/stream"
)

// world is a store whose committed events a test hands to a hub as it likes.
type world struct {
	t        *testing.T
	database string // its URL
	store    *store.Store
	hooks    *hook.Hooks
	viewer   *store.Viewer
	pages    *stream.Pages
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
		URL: database, SessionTTL: time.Hour, Sealer: sealer,
		Committed: func(events []*store.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.committed = append(w.committed, events...)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.hooks = hook.New(hook.Config{Store: w.store, NewSecret: egress.NewSecret})
	made, err := w.store.CreateBusiness(t.Context(), store.BusinessInput{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if w.viewer, err = w.store.Authenticate(t.Context(), store.KindAccessToken, made.Token); err != nil {
		t.Fatal(err)
	}
	w.pages = stream.NewPages(w.store)
	cfg.Store, cfg.Hooks, cfg.Pages = w.store, w.hooks, w.pages
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
	slow := w.subscribe(&start, &store.EventFilter{Types: []store.EventType{store.MessageCreated}}) // else it may have pages that quick has read
	pg.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if events, err := slow.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("with PostgreSQL away it read %d events, %v", len(events), err)
	}
	pg.Up()
	w.expect(slow, 1, n)
}

// goBack has the database lose what was committed after a number, as a failover may.
func (w *world) goBack(seq int64) {
	w.t.Helper()
	kind, dsn := "sqlite", store.SQLitePath(w.database)
	if store.IsPostgres(w.database) {
		kind, dsn = "pgx", w.database
	}
	db, err := sql.Open(kind, dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for _, statement := range []string{"DELETE FROM events WHERE seq > %d", "UPDATE businesses SET seq = %d"} {
		if _, err := db.ExecContext(w.t.Context(), fmt.Sprintf(statement, seq)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestLostCommitsEndSubscriptions has a database go back behind what a subscriber was given: it is told so, whether the numbers stay
// behind, are given away at once, or are given away and nobody rings. Whoever begins anew goes on with what there is.
func TestLostCommitsEndSubscriptions(t *testing.T) {
	t.Parallel()
	for kind, url := range map[string]func(*testing.T) string{
		"SQLite":     func(t *testing.T) string { return "file:" + filepath.Join(t.TempDir(), "parley.db") },
		"PostgreSQL": func(t *testing.T) string { return servers.Database(t) },
	} {
		for name, after := range map[string]func(w *world){
			"behind":              func(*world) {},
			"given away":          func(w *world) { w.hub.Offer(w.happen(5)) },
			"given away silently": func(w *world) { w.happen(5) },
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorldOn(t, url(t), stream.HubConfig{})
				s := w.subscribe(nil, nil)
				w.hub.Offer(w.happen(10))
				w.expect(s, 1, 10)
				gone, err := w.pages.Events(t.Context(), w.viewer.BusinessID, []int64{8, 9, 10})
				if err != nil || len(gone) != 3 {
					t.Fatalf("%d events, %v", len(gone), err)
				}
				lost := map[string]bool{}
				for _, e := range gone {
					lost[e.ID] = true
				}
				w.goBack(7)
				after(w)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				for err := error(nil); err == nil; {
					var events []*store.Event
					if events, err = s.Next(ctx); len(events) > 0 {
						t.Errorf("it is given %d after 10", events[0].Seq)
					} else if !errors.Is(err, store.ErrCursorExpired) {
						t.Fatalf("it ends with %v", err)
					}
				}
				from := int64(0) // of which pages were read
				s = w.subscribe(&from, nil)
				w.happen(3)
				w.expect(s, 1, 10)
				events, err := w.pages.Events(t.Context(), w.viewer.BusinessID, []int64{8, 9, 10})
				if err != nil || len(events) != 3 {
					t.Fatalf("%d events, %v", len(events), err)
				}
				for _, e := range events {
					if lost[e.ID] {
						t.Errorf("a page has the lost event %d", e.Seq)
					}
				}
			})
		}
	}
}

// TestARepeatedBellEndsNothing offers what was given already.
func TestARepeatedBellEndsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, stream.HubConfig{})
	s := w.subscribe(nil, nil)
	entries := w.happen(10)
	for range 3 {
		w.hub.Offer(entries)
	}
	w.expect(s, 1, 10)
	w.hub.Offer(entries)
	w.hub.Offer(w.happen(1))
	w.expect(s, 11, 11)
}

// TestManyResumeAtOnce lets many viewers catch up at once.
func TestManyResumeAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, stream.HubConfig{NoPoll: true})
	const n = 700
	w.happen(n)
	var all sync.WaitGroup
	for i := range 50 {
		from := int64(i)
		s := w.subscribe(&from, nil)
		all.Go(func() { w.expect(s, from+1, n) })
	}
	all.Wait()
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
