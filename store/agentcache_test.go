package store_test

import (
	"strings"
	"testing"

	"parley/store"
)

// TestAgentsOfTurnsAreShared: one business has turns with more agents than are kept. Another one's
// agent stays, and is not read again; none is kept beyond a change.
func TestAgentsOfTurnsAreShared(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		a, b := newBusiness(t, s), newBusiness(t, s)
		ofTurn := func(v *store.Viewer, id string) *store.Agent {
			agent, err := s.AgentOfTurn(t.Context(), v.BusinessID, id)
			if err != nil {
				t.Fatal(err)
			}
			return agent
		}
		kept := ofTurn(b, "demo")
		const agents, snippets = 40, 50 // half a megabyte each
		knowledge := make([]store.Knowledge, snippets)
		for i := range knowledge {
			knowledge[i] = store.Knowledge{Title: "T", Text: strings.Repeat("x", 10_000)}
		}
		var first *store.Agent
		for i := range agents {
			made, err := s.CreateAgent(t.Context(), a, store.AgentInput{Name: ptr("large"), Knowledge: knowledge})
			if err != nil {
				t.Fatal(err)
			}
			if agent := ofTurn(a, made.ID); i == 0 {
				first = agent
			}
		}
		if ofTurn(b, "demo") != kept {
			t.Error("the other business's agent was read again")
		}
		if ofTurn(a, first.ID) == first {
			t.Error("all of the large agents are kept")
		}
		if _, err := s.UpdateAgent(t.Context(), b, "demo", store.AgentInput{Name: ptr("new")}); err != nil {
			t.Fatal(err)
		}
		if again, err := s.AgentAgain(t.Context(), kept); err != nil || again.Name != "new" {
			t.Errorf("after a change: %v, %v", again, err)
		}
	})
}
