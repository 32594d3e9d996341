package store

import (
	"context"

	"parley/lru"
)

// The agents of turns are kept as they were read: one with its knowledge is up to 1 MiB of JSON.
// What is kept counts only with the version that SQL has, which the first commit of each turn looks
// at.
const (
	keptAgents   = 16 << 20 // bytes
	keptOwn      = 4 << 20  // of one business, while others need room
	besidesAgent = 2 << 10  // of an agent beside its settings
)

func newAgentCache() *lru.Cache[string, *Agent] { return lru.New[string, *Agent](keptAgents, keptOwn) }

func agentKey(business, id string) string { return business + "/" + id }

// AgentOfTurn reads an agent for a turn, or takes it as it was read last: BeginTurn finds out if it
// has changed since. What it returns is shared, and not to be changed.
func (s *Store) AgentOfTurn(ctx context.Context, business, id string) (*Agent, error) {
	if agent, ok := s.agents.Get(agentKey(business, id)); ok {
		return agent, nil
	}
	agent, err := s.Agent(ctx, business, id)
	if err != nil {
		return nil, err
	}
	settings, err := encode(agent)
	if err != nil {
		return nil, err
	}
	s.agents.Put(business, agentKey(business, id), agent, len(settings)+besidesAgent)
	return agent, nil
}

// ErrAgentChanged says that a turn could not begin with the agent as it was read: AgentAgain reads it.
var ErrAgentChanged = refuse(CodeConflict, "agent_changed", "the agent was changed at this moment: try again")

// AgentAgain reads an agent of AgentOfTurn again.
func (s *Store) AgentAgain(ctx context.Context, agent *Agent) (*Agent, error) {
	s.forgetAgent(agent.BusinessID, agent.ID)
	return s.AgentOfTurn(ctx, agent.BusinessID, agent.ID)
}

func (s *Store) forgetAgent(business, id string) { s.agents.Delete(agentKey(business, id)) }
