package store_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"parley/egress"
	"parley/store"
)

// open makes a store in a folder of its own.
func open(t *testing.T, change func(*store.Config)) *store.Store {
	t.Helper()
	cfg := store.Config{
		URL: "file:" + filepath.Join(t.TempDir(), "parley.db"), SessionTTL: time.Hour, FirstLease: 30 * time.Second, NewSecret: egress.NewSecret,
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
		Limit: time.Minute,
	}
}

func finish(t *testing.T, s *store.Store, turn *store.Turn) *store.Message {
	t.Helper()
	reply, err := s.FinishTurn(t.Context(), turn, "Hi", "embedded/extractive-1", store.TokenUsage{Source: store.UsageNone})
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
