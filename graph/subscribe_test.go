package graph_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"parley/agent"
	"parley/graph"
	"parley/store"
)

// held is a model that answers when it is let go, and counts how often it was asked.
type held struct {
	asked  atomic.Int64
	let    chan struct{}
	answer func() (agent.Reply, error)
}

func (m *held) Generate(ctx context.Context, req agent.Request) (agent.Reply, error) {
	m.asked.Add(1)
	select {
	case <-m.let:
		reply, err := m.answer()
		if err == nil {
			req.Text(reply.Text)
		}
		return reply, err
	case <-ctx.Done():
		return agent.Reply{}, ctx.Err()
	}
}

// TestAJoinedChatIsOneTurn has a subscription begin a turn and go away, and others with its key join that turn, on its server and
// on another. They end as the turn ends: if it fails none of them begins another one. Who comes afterwards does.
func TestAJoinedChatIsOneTurn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func() (agent.Reply, error)
		want   string
		asked  int64 // the model, when one more has come afterwards
	}{
		"answers": {func() (agent.Reply, error) { return agent.Reply{Text: "At nine.", Model: "m"}, nil }, `"reply":{"reply":"At nine."}`, 1},
		"fails": {func() (agent.Reply, error) {
			return agent.Reply{}, fmt.Errorf("%w: %w", agent.ErrModelFailed, agent.ErrModelRefused)
		}, "MODEL_FAILED", 2},
		"is too late": {func() (agent.Reply, error) {
			return agent.Reply{}, fmt.Errorf("%w: %w", agent.ErrModelTimeout, errors.New("slow"))
		}, "MODEL_TIMEOUT", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				model := &held{let: make(chan struct{}), answer: c.answer}
				s, v := openStore(t)
				here, elsewhere := chats(t, s, v, model), chats(t, s, v, model)
				ctx, goAway := context.WithCancel(t.Context())
				first := here(ctx)
				synctest.Wait()
				goAway()
				first()
				joined := []func() string{here(t.Context()), here(t.Context()), elsewhere(t.Context()), elsewhere(t.Context())}
				synctest.Wait()
				close(model.let)
				for i, end := range joined {
					if said := end(); !strings.Contains(said, c.want) {
						t.Errorf("%d was told %s", i, said)
					}
				}
				if n := model.asked.Load(); n != 1 {
					t.Errorf("the model was asked %d times", n)
				}
				if said := elsewhere(t.Context())(); !strings.Contains(said, c.want) || model.asked.Load() != c.asked {
					t.Errorf("afterwards: asked %d times, told %s", model.asked.Load(), said)
				}
			})
		})
	}
}

// TestAJoinedChatWhoseTurnNeverBegan: a subscription that joined one which went away while it waited in line gets the turn.
func TestAJoinedChatWhoseTurnNeverBegan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		model := &held{let: make(chan struct{}), answer: func() (agent.Reply, error) { return agent.Reply{Text: "At nine.", Model: "m"}, nil }}
		s, v := openStore(t)
		turn, err := s.BeginTurn(t.Context(), store.TurnInput{BusinessID: v.BusinessID, AgentID: "bo", Channel: store.SMS, Text: "Hello", Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		here := chats(t, s, v, model, turn.SessionID)
		ctx, goAway := context.WithCancel(t.Context())
		first := here(ctx)
		synctest.Wait()
		second := here(t.Context())
		synctest.Wait()
		goAway()
		first()
		close(model.let)
		if _, err := s.FinishTurn(t.Context(), turn, "Hi", store.RunStep{Model: "m", Usage: store.TokenUsage{Source: store.UsageNone}}); err != nil {
			t.Fatal(err)
		}
		if said := second(); !strings.Contains(said, `"reply":{"reply":"At nine."}`) || model.asked.Load() != 1 {
			t.Errorf("asked %d times, told %s", model.asked.Load(), said)
		}
	})
}

// openStore makes a store with an agent "bo", and who may chat with it.
func openStore(t *testing.T) (*store.Store, *store.Viewer) {
	t.Helper()
	sealer, err := store.NewSealer(base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Config{URL: "file:" + t.TempDir() + "/parley.db", Sealer: sealer, Exclusive: true, SessionTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	made, err := s.CreateBusiness(t.Context(), store.BusinessInput{Name: "biz", Agent: &store.Agent{
		ID: "bo", Name: "Bo", OnConcurrent: store.Enqueue, Knowledge: []store.Knowledge{}, ChannelProfiles: []store.ChannelProfile{},
		Model: store.Model{Provider: store.ProviderEmbedded},
	}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.Authenticate(t.Context(), store.KindAccessToken, made.Token)
	if err != nil {
		t.Fatal(err)
	}
	return s, v
}

// chats is a server. Each call begins the same subscription, in a session if one is named; end waits for what it was told.
func chats(t *testing.T, s *store.Store, v *store.Viewer, model agent.Model, session ...string) func(ctx context.Context) (end func() string) {
	t.Helper()
	runner := agent.NewRunner(agent.Config{
		Store: s, History: agent.NewLocalHistory(1 << 20), TurnTimeout: time.Minute, Models: map[store.ModelProvider]agent.Model{store.ProviderEmbedded: model},
	})
	h := graph.NewHandler(graph.HandlerConfig{
		Resolver: &graph.Resolver{Store: s, Runner: runner}, Log: slog.New(slog.DiscardHandler), Introspection: func(*store.Viewer) bool { return false },
	})
	t.Cleanup(func() {
		runner.Drain(context.Background())
		if err := h.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	in := ""
	if len(session) > 0 {
		in = fmt.Sprintf(`sessionId: \"%s\"`, session[0])
	}
	body := `{"query":"subscription { chat(input: {agentId: \"bo\", message: \"When do you open?\", channel: SMS, idempotencyKey: \"k\" ` + in + `}) { text reply { reply } } }"}`
	return func(ctx context.Context) func() string {
		r := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "text/event-stream")
		w := httptest.NewRecorder()
		var served sync.WaitGroup
		served.Go(func() { h.ServeHTTP(w, r.WithContext(store.WithViewer(ctx, v, nil))) })
		return func() string {
			served.Wait()
			return w.Body.String()
		}
	}
}
