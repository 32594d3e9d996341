package agent_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"parley/agent"
	"parley/store"
)

// told is a model that keeps what it was told, and answers so.
type told struct {
	answer func() (agent.Reply, error)
	got    []agent.Request
}

func (m *told) Generate(_ context.Context, req agent.Request) (agent.Reply, error) {
	m.got = append(m.got, req)
	return m.answer()
}

func newStore(t *testing.T) (*store.Store, *store.Sealer) {
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
	return s, sealer
}

// newBo makes an agent "bo" on the embedded provider, and returns who may chat with it.
func newBo(t *testing.T, s *store.Store, policy store.ConcurrencyPolicy) *store.Viewer {
	t.Helper()
	made, err := s.CreateBusiness(t.Context(), store.BusinessInput{Name: "biz", Agent: &store.Agent{
		ID: "bo", Name: "Bo", OnConcurrent: policy, Knowledge: []store.Knowledge{}, ChannelProfiles: []store.ChannelProfile{},
		Model: store.Model{Provider: store.ProviderEmbedded},
	}})
	if err != nil {
		t.Fatal(err)
	}
	viewer, err := s.Authenticate(t.Context(), store.KindAPIKey, made.APIKey)
	if err != nil {
		t.Fatal(err)
	}
	return viewer
}

// TestAFallbackAnswersWithItsOwnSettingsAndKey also shows that keys at rest are opened for their own model alone.
func TestAFallbackAnswersWithItsOwnSettingsAndKey(t *testing.T) {
	t.Parallel()
	s, sealer := newStore(t)
	name := "spare"
	made, err := s.CreateBusiness(t.Context(), store.BusinessInput{Name: "biz", Agent: &store.Agent{
		ID: "bo", Name: "Bo", Prompt: "You are Bo.", OnConcurrent: store.Enqueue, Knowledge: []store.Knowledge{}, ChannelProfiles: []store.ChannelProfile{},
		Model: store.Model{
			Provider: store.ProviderOpenAI, SealedKey: sealer.Seal([]byte("sk-first"), "bo"),
			Fallback: &store.Model{Provider: store.ProviderAnthropic, Name: &name, SealedKey: sealer.Seal([]byte("sk-second"), "bo")},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	viewer, err := s.Authenticate(t.Context(), store.KindAPIKey, made.APIKey)
	if err != nil {
		t.Fatal(err)
	}
	first := &told{answer: func() (agent.Reply, error) {
		return agent.Reply{}, fmt.Errorf("%w: %w", agent.ErrModelFailed, agent.RetryAfter(time.Hour))
	}}
	second := &told{answer: func() (agent.Reply, error) { return agent.Reply{Text: "Hi", Model: "anthropic/spare"}, nil }}
	runner := agent.NewRunner(agent.Config{
		Store: s, History: agent.NewLocalHistory(1 << 20), TurnTimeout: time.Minute,
		Models: map[store.ModelProvider]agent.Model{store.ProviderOpenAI: first, store.ProviderAnthropic: second},
	})
	t.Cleanup(func() { runner.Drain(context.Background()) })
	reply, err := runner.Chat(t.Context(), viewer, agent.ChatInput{AgentID: "bo", Message: "Hello", Channel: store.SMS})
	if err != nil || reply.Reply != "Hi" || reply.Model != "anthropic/spare" {
		t.Fatalf("got %+v, %v", reply, err)
	}
	if len(first.got) != 1 || len(second.got) != 1 {
		t.Fatalf("asked %d and %d times", len(first.got), len(second.got))
	}
	one, two := first.got[0], second.got[0]
	if one.APIKey != "sk-first" || one.Agent.Model.Provider != store.ProviderOpenAI || one.Prompt != "You are Bo." {
		t.Errorf("the first was told %+v", one)
	}
	if two.APIKey != "sk-second" || two.Agent.Model.Name == nil || *two.Agent.Model.Name != "spare" || two.Prompt != "You are Bo." {
		t.Errorf("the second was told %+v", two)
	}
}

// TestALongSessionGoesOn with a server that refuses what is longer than its context: the oldest messages are dropped, whether the
// history comes from the cache or from SQL.
func TestALongSessionGoesOn(t *testing.T) {
	t.Parallel()
	for name, cache := range map[string]int{"cached": 8 << 20, "from SQL": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const turns, window = 14, 128_000 * 2 // bytes
			s, _ := newStore(t)
			made, err := s.CreateBusiness(t.Context(), store.BusinessInput{Name: "biz", Agent: &store.Agent{
				ID: "bo", Name: "Bo", OnConcurrent: store.Enqueue, Knowledge: []store.Knowledge{}, ChannelProfiles: []store.ChannelProfile{},
				Model: store.Model{Provider: store.ProviderOpenAI},
			}})
			if err != nil {
				t.Fatal(err)
			}
			viewer, err := s.Authenticate(t.Context(), store.KindAPIKey, made.APIKey)
			if err != nil {
				t.Fatal(err)
			}
			server := &told{}
			server.answer = func() (agent.Reply, error) {
				size := 0
				for _, m := range server.got[len(server.got)-1].Messages {
					size += len(m.Text)
				}
				if size > window {
					return agent.Reply{}, agent.ErrModelRefused
				}
				return agent.Reply{Text: fmt.Sprintf("That was the %d.", len(server.got)), Model: "m"}, nil
			}
			runner := agent.NewRunner(agent.Config{
				Store: s, History: agent.NewLocalHistory(cache), TurnTimeout: time.Minute,
				Models: map[store.ModelProvider]agent.Model{store.ProviderOpenAI: server},
			})
			t.Cleanup(func() { runner.Drain(context.Background()) })
			in := agent.ChatInput{AgentID: "bo", Channel: store.SMS}
			for n := 1; n <= turns; n++ {
				in.Message = strings.Repeat(fmt.Sprintf("%09d ", n), 3_000)
				if n == turns { // as long as one may be
					in.Message = strings.Repeat("🧶", 32_000)
				}
				reply, err := runner.Chat(t.Context(), viewer, in)
				if err != nil {
					t.Fatalf("turn %d: %v", n, err)
				}
				in.SessionID = &reply.SessionID
			}
			last := server.got[turns-1].Messages
			if len(last) < 3 || last[len(last)-1].Text != in.Message || last[len(last)-2].Text != fmt.Sprintf("That was the %d.", turns-1) {
				t.Errorf("in the end it was told %d messages", len(last))
			}
			if before := server.got[turns-2].Messages; len(before) != 12 {
				t.Errorf("of %d messages it was told the last %d before", 2*turns-3, len(before))
			}
		})
	}
}

// TestAWaitInLineIsBounded: whoever comes while a turn of the session runs waits so long and no longer, and nothing has happened.
func TestAWaitInLineIsBounded(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	viewer := newBo(t, s, store.Enqueue)
	asked, release := make(chan struct{}, 10), make(chan struct{})
	slow := &told{answer: func() (agent.Reply, error) {
		asked <- struct{}{}
		<-release
		return agent.Reply{Text: "Hi", Model: "m"}, nil
	}}
	runner := agent.NewRunner(agent.Config{
		Store: s, History: agent.NewLocalHistory(1 << 20), TurnTimeout: time.Minute, QueueWait: 50 * time.Millisecond,
		Models: map[store.ModelProvider]agent.Model{store.ProviderEmbedded: slow},
	})
	t.Cleanup(func() { runner.Drain(context.Background()) })
	in := agent.ChatInput{AgentID: "bo", Message: "Hello", Channel: store.SMS}
	go func() { release <- struct{}{} }()
	first, err := runner.Chat(t.Context(), viewer, in)
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	in.SessionID = &first.SessionID
	done := make(chan error, 1)
	go func() {
		_, err := runner.Chat(t.Context(), viewer, in)
		done <- err
	}()
	<-asked // it runs
	if _, err := runner.Chat(t.Context(), viewer, in); !errors.Is(err, store.ErrSessionBusy) {
		t.Errorf("after the wait: %v", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Errorf("the one that ran: %v", err)
	}
	if len(slow.got) != 2 || len(asked) != 0 {
		t.Errorf("the model was asked %d times", len(slow.got))
	}
}

// TestWhoeverRejectsServesOne has messages come at the same moment to an agent that rejects: one of them is served, and the others
// are refused while it runs. Whoever got its answer may send the next message at once.
func TestWhoeverRejectsServesOne(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	viewer := newBo(t, s, store.Reject)
	release := make(chan struct{}, 1)
	slow := &told{answer: func() (agent.Reply, error) {
		<-release
		return agent.Reply{Text: "Hi", Model: "m"}, nil
	}}
	runner := agent.NewRunner(agent.Config{
		Store: s, History: agent.NewLocalHistory(1 << 20), TurnTimeout: time.Minute,
		Models: map[store.ModelProvider]agent.Model{store.ProviderEmbedded: slow},
	})
	t.Cleanup(func() { runner.Drain(context.Background()) })
	t.Cleanup(func() { close(release) }) // whatever still runs ends
	in := agent.ChatInput{AgentID: "bo", Message: "Hello", Channel: store.SMS}
	release <- struct{}{}
	first, err := runner.Chat(t.Context(), viewer, in)
	if err != nil {
		t.Fatal(err)
	}
	in.SessionID = &first.SessionID
	for range 20 {
		const atOnce = 8
		start, came := make(chan struct{}), make(chan error, atOnce)
		for range atOnce {
			go func() {
				<-start
				_, err := runner.Chat(t.Context(), viewer, in)
				came <- err
			}()
		}
		close(start)
		for range atOnce - 1 {
			select {
			case err := <-came:
				if !errors.Is(err, store.ErrSessionBusy) {
					t.Fatalf("while a turn runs: %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("not all but one were refused")
			}
		}
		release <- struct{}{}
		if err := <-came; err != nil {
			t.Fatalf("the one that ran: %v", err)
		}
	}
	for range 100 {
		release <- struct{}{}
		if _, err := runner.Chat(t.Context(), viewer, in); err != nil {
			t.Fatalf("right after an answer: %v", err)
		}
	}
}
