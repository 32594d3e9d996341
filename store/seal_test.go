package store_test

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"parley/egress"
	"parley/store"
	"parley/store/hook"
)

// key is a secret key made of one byte.
func key(b byte) string { return base64.StdEncoding.EncodeToString(slices.Repeat([]byte{b}, 32)) }

func sealer(t *testing.T, key string, others ...string) *store.Sealer {
	t.Helper()
	s, err := store.NewSealer(key, others...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSecretKeyIsChanged: a start with a new key, and the old one beside it, seals everything anew; after that the new one
// alone opens it, and the old one nothing.
func TestSecretKeyIsChanged(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		var url string
		s := open(t, func(c *store.Config) { c.Sealer, url = sealer(t, key(1)), c.URL })
		hooks := func(s *store.Store) *hook.Hooks {
			return hook.New(hook.Config{Store: s, MaxEndpoints: 1000, NewSecret: egress.NewSecret})
		}
		h := hooks(s)
		v := newBusiness(t, s)
		const n = 130 // more than a batch
		secrets := map[string]string{}
		in := hook.EndpointInput{URL: ptr("https://example.com"), Events: store.EventTypes}
		var mu sync.Mutex // guards secrets
		var making sync.WaitGroup
		for range n { // at once: they share commits
			making.Go(func() {
				p, secret, err := h.CreateEndpoint(t.Context(), v, in)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				secrets[p.ID] = secret
			})
		}
		making.Wait()
		agent, err := s.CreateAgent(t.Context(), v, store.AgentInput{
			Name: ptr("a"), Model: &store.ModelInput{
				Provider: store.ProviderOpenAI, APIKey: ptr("first"), Fallback: &store.ModelInput{Provider: store.ProviderAnthropic, APIKey: ptr("second")},
			},
			Tools:      []store.ToolInput{{Name: "t", Description: "d", Parameters: store.JSONObject(`{}`), URL: "https://example.com", Headers: ptr(store.JSONObject(`{"X":"third"}`))}},
			McpServers: []store.McpServerInput{{Name: "m", URL: "https://example.com", Headers: ptr(store.JSONObject(`{"X":"fourth"}`))}},
		})
		if err != nil {
			t.Fatal(err)
		}
		check := func(s *store.Store) {
			t.Helper()
			h := hooks(s)
			read, err := h.EndpointsByID(t.Context(), v.BusinessID, slices.Collect(maps.Keys(secrets)))
			if err != nil || len(read) != n {
				t.Fatalf("%d endpoints, %v", len(read), err)
			}
			for id, p := range read {
				if got, err := h.SigningSecrets(id, p.Secrets, store.Now()); err != nil || len(got) != 1 || got[0] != secrets[id] {
					t.Fatalf("endpoint %s: %v", id, err)
				}
			}
			a, err := s.Agent(t.Context(), v.BusinessID, agent.ID)
			if err != nil {
				t.Fatal(err)
			}
			fallback := *a
			fallback.Model = *a.Model.Fallback
			first, err1 := s.ModelKey(a)
			second, err2 := s.ModelKey(&fallback)
			third, err3 := s.ToolHeaders(a, &a.Tools[0])
			fourth, err4 := s.McpHeaders(a, &a.McpServers[0])
			if first != "first" || second != "second" || third["X"] != "third" || fourth["X"] != "fourth" {
				t.Errorf("an agent's secrets: %v %v %v %v", err1, err2, err3, err4)
			}
		}
		reopen := func(with *store.Sealer) (*store.Store, error) {
			return store.Open(t.Context(), store.Config{URL: url, Sealer: with})
		}
		for _, wrong := range []*store.Sealer{sealer(t, key(2)), sealer(t, key(2), key(3))} {
			if other, err := reopen(wrong); err == nil || !strings.Contains(err.Error(), "not the one that this database was made with") {
				t.Errorf("a wrong key: %v", err)
				_ = other.Close()
			}
		}
		for _, step := range []*store.Sealer{sealer(t, key(1), key(2)), sealer(t, key(2), key(1)), sealer(t, key(2))} {
			other, err := reopen(step)
			if err != nil {
				t.Fatal(err)
			}
			check(other)
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if other, err := reopen(sealer(t, key(1))); err == nil {
			t.Error("the old key still opens the database")
			_ = other.Close()
		}
	})
}
