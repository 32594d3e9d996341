package store_test

import (
	"context"
	"database/sql"
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/store"
)

func TestMain(m *testing.M) {
	code := m.Run()
	servers.StopShared()
	os.Exit(code)
}

// opener opens a store of the test's own.
type opener func(t *testing.T, change func(*store.Config)) *store.Store

// onBoth runs a contract test on SQLite and on PostgreSQL.
func onBoth(t *testing.T, test func(t *testing.T, open opener)) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, open)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		url := servers.Database(t)
		test(t, func(t *testing.T, change func(*store.Config)) *store.Store {
			return open(t, func(c *store.Config) {
				c.URL = url
				if change != nil {
					change(c)
				}
			})
		})
	})
}

// secretKey is what stores on PostgreSQL are sealed with.
var secretKey = base64.StdEncoding.EncodeToString(make([]byte, 32))

// open makes a store in a folder of its own.
func open(t *testing.T, change func(*store.Config)) *store.Store {
	t.Helper()
	sealer, err := store.NewSealer(secretKey)
	if err != nil {
		t.Fatal(err)
	}
	cfg := store.Config{
		URL: "file:" + filepath.Join(t.TempDir(), "parley.db"), SessionTTL: time.Hour, Sealer: sealer,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// until waits for something that no bell tells of.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// newBusiness makes a business with an agent "demo", and its viewer.
func newBusiness(t *testing.T, s *store.Store) *store.Viewer {
	t.Helper()
	made, err := s.CreateBusiness(t.Context(), store.BusinessInput{Name: "test", Agent: &store.Agent{
		ID: "demo", Name: "Demo", OnConcurrent: store.Enqueue, Knowledge: []store.Knowledge{{Title: "T", Text: "A fact."}},
		ChannelProfiles: []store.ChannelProfile{}, Model: store.Model{Provider: store.ProviderEmbedded},
	}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.Authenticate(t.Context(), store.KindAccessToken, made.Token)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func begin(t *testing.T, s *store.Store, v *store.Viewer, session string) *store.Turn {
	t.Helper()
	turn, err := s.BeginTurn(t.Context(), turnInput(v, session))
	if err != nil {
		t.Fatal(err)
	}
	return turn
}

func turnInput(v *store.Viewer, session string) store.TurnInput {
	return store.TurnInput{
		BusinessID: v.BusinessID, AgentID: "demo", Model: "embedded", SessionID: session, Channel: store.WhatsApp, Text: "Hello",
		Lease: time.Minute,
	}
}

func finish(t *testing.T, s *store.Store, turn *store.Turn) *store.Message {
	t.Helper()
	reply, err := s.FinishTurn(t.Context(), turn, "Hi", store.RunStep{Model: "embedded/extractive-1", Usage: store.TokenUsage{Source: store.UsageNone}})
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func events(t *testing.T, s *store.Store, v *store.Viewer) []*store.Event {
	t.Helper()
	extent, err := s.Extent(context.Background(), v.BusinessID)
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.EventsAfter(t.Context(), v.BusinessID, 0, extent.Last, nil, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func ptr[T any](v T) *T { return &v }

// dial opens a database beside the stores, as any client could.
func dial(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", url+"?_pragma=busy_timeout(5000)")
	if store.IsPostgres(url) {
		db, err = sql.Open("pgx", url)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
