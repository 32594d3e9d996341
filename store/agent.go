package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/uptrace/bun"
)

// Agent is a conversational agent of a business: what it is told (prompt, knowledge), what thinks for it (model), and how
// it answers on each channel.
type Agent struct {
	bun.BaseModel `bun:"table:agents,alias:agent"`

	ID              string            `bun:"id,pk"`
	BusinessID      string            `bun:"business_id"`
	Name            string            `bun:"name"`
	Prompt          string            `bun:"prompt"`
	Model           Model             `bun:"model,type:text"`
	Knowledge       []Knowledge       `bun:"knowledge,type:text"`
	Tools           []Tool            `bun:"tools,type:text"`
	McpServers      []McpServer       `bun:"mcp_servers,type:text"`
	ChannelProfiles []ChannelProfile  `bun:"channel_profiles,type:text"`
	OnConcurrent    ConcurrencyPolicy `bun:"on_concurrent"`
	Handoff         bool              `bun:"handoff"` // its model may ask for a person
	Version         int64             `bun:"version"` // counts the updates: what is derived from an agent is cached under (ID, Version)
	CreatedAt       Time              `bun:"created_at"`
	UpdatedAt       Time              `bun:"updated_at"`
	DeletedAt       *Time             `bun:"deleted_at"`

	// WebhookURL is the address of the agent's implicit endpoint; nil without one.
	WebhookURL *string `bun:"webhook_url,scanonly"`
}

// Knowledge is a snippet that an agent may answer from.
type Knowledge struct {
	Title string `json:"title"`
	Text  string `json:"text"`
}

// ChannelProfile is what an agent is told for one channel besides its prompt.
type ChannelProfile struct {
	Channel      Channel `json:"channel"`
	Instructions *string `json:"instructions,omitempty"`
	MaxLength    *int    `json:"max_length,omitempty"` // of a reply, in characters
}

// Model is the language model of an agent. What is absent is the provider's default.
type Model struct {
	Provider        ModelProvider `json:"provider"`
	Name            *string       `json:"name,omitempty"`
	BaseURL         *string       `json:"base_url,omitempty"`
	SealedKey       []byte        `json:"sealed_key,omitempty"` // the business's own API key, encrypted
	Temperature     *float64      `json:"temperature,omitempty"`
	MaxOutputTokens *int          `json:"max_output_tokens,omitempty"`
	TimeoutSeconds  *int          `json:"timeout_seconds,omitempty"`
	Fallback        *Model        `json:"fallback,omitempty"` // answers when this one fails; its key is bound to the agent, too
}

// HasAPIKey says whether the business gave a key of its own. The key itself is never shown.
func (m Model) HasAPIKey() bool { return len(m.SealedKey) > 0 }

// AgentInput changes an agent: what is nil stays as it is.
type AgentInput struct {
	Name            *string
	Prompt          *string
	Model           *ModelInput
	Knowledge       []Knowledge      // nil: stays; empty: none
	Tools           []ToolInput      // nil: stay; empty: none
	McpServers      []McpServerInput // nil: stay; empty: none
	ChannelProfiles []ChannelProfile // nil: stays; empty: none
	WebhookURL      OptionalString
	OnConcurrent    *ConcurrencyPolicy
	Handoff         *bool
}

// OptionalString tells absent (stays) from null (removed).
type OptionalString struct {
	Set   bool
	Value *string
}

// ModelInput sets an agent's model. An absent APIKey is kept as long as provider and address stay the same.
type ModelInput struct {
	Provider        ModelProvider
	Name            *string
	BaseURL         *string
	APIKey          *string
	Temperature     *float64
	MaxOutputTokens *int
	TimeoutSeconds  *int
	Fallback        *ModelInput
}

// Bounds of an agent's settings, in characters where not said otherwise.
const (
	maxName      = 200
	maxPrompt    = 100_000
	maxKnowledge = 1000 // snippets
	maxSnippet   = 20_000
	maxAgentSize = 1 << 20 // bytes of knowledge in all
)

// validate finds every fault of the input.
func (in *AgentInput) validate(cfg Config) Faults {
	var f Faults
	if in.Name != nil {
		f = append(f, text(*in.Name, 1, maxName).Under("name")...)
	}
	if in.Prompt != nil {
		f = append(f, append(text(*in.Prompt, 0, maxPrompt), cfg.CheckPrompt(*in.Prompt)...).Under("prompt")...)
	}
	size := 0
	if len(in.Knowledge) > maxKnowledge {
		f = append(f, tooLong(len(in.Knowledge), maxKnowledge).Under("knowledge")...)
	}
	for i, k := range first(in.Knowledge, maxKnowledge) {
		f = append(f, text(k.Title, 0, maxName).Under("knowledge", i, "title")...)
		f = append(f, text(k.Text, 1, maxSnippet).Under("knowledge", i, "text")...)
		size += len(k.Title) + len(k.Text)
	}
	if size > maxAgentSize {
		f = append(f, valueError("an agent's knowledge may be 1 MiB in all").Under("knowledge")...)
	}
	f = append(f, validateTools(in.Tools, cfg)...)
	f = append(f, validateServers(in.McpServers, cfg)...)
	if len(in.ChannelProfiles) > len(Channels) {
		f = append(f, tooLong(len(in.ChannelProfiles), len(Channels)).Under("channelProfiles")...)
	}
	seen := map[Channel]bool{}
	for i, p := range first(in.ChannelProfiles, len(Channels)) {
		if seen[p.Channel] {
			f = append(f, valueError("there is a profile of this channel already").Under("channelProfiles", i, "channel")...)
		}
		seen[p.Channel] = true
		if p.Instructions != nil {
			f = append(f, append(text(*p.Instructions, 0, maxPrompt), cfg.CheckPrompt(*p.Instructions)...).Under("channelProfiles", i, "instructions")...)
		}
		if p.MaxLength != nil && *p.MaxLength < 1 {
			f = append(f, atLeast(1).Under("channelProfiles", i, "maxLength")...)
		}
	}
	if in.WebhookURL.Value != nil {
		f = append(f, cfg.CheckURL(*in.WebhookURL.Value).Under("webhookUrl")...)
	}
	if m := in.Model; m != nil {
		f = append(f, m.validate(cfg).Under("model")...)
	}
	return f
}

func (m *ModelInput) validate(cfg Config) Faults {
	var f Faults
	if m.Name != nil {
		f = append(f, text(*m.Name, 1, maxName).Under("name")...)
	}
	if m.BaseURL != nil {
		f = append(f, cfg.CheckModelURL(*m.BaseURL).Under("baseUrl")...)
	}
	if m.APIKey != nil {
		f = append(f, text(*m.APIKey, 1, 4096).Under("apiKey")...)
	}
	if t := m.Temperature; t != nil && (*t < 0 || *t > 2) {
		f = append(f, valueError("must be between 0 and 2").Under("temperature")...)
	}
	if n := m.MaxOutputTokens; n != nil && *n < 1 {
		f = append(f, atLeast(1).Under("maxOutputTokens")...)
	}
	if n := m.TimeoutSeconds; n != nil && *n < 1 {
		f = append(f, atLeast(1).Under("timeoutSeconds")...)
	}
	if b := m.Fallback; b != nil {
		last := *b
		if b.Fallback != nil { // and is not looked into: there may be thousands
			f = append(f, valueError("a fallback has no fallback of its own").Under("fallback", "fallback")...)
			last.Fallback = nil
		}
		f = append(f, last.validate(cfg).Under("fallback")...)
	}
	return f
}

// first are the elements of a list that it may have: those beyond are one fault together.
func first[E any](list []E, most int) []E { return list[:min(len(list), most)] }

// CreateAgent makes an agent. A name is required; the model is the embedded one unless said otherwise.
func (s *Store) CreateAgent(ctx context.Context, v *Viewer, in AgentInput) (*Agent, error) {
	faults := in.validate(s.cfg)
	if in.Name == nil {
		faults = append(missing().Under("name"), faults...)
	}
	if err := faults.Under("input").Err(); err != nil {
		return nil, err
	}
	agent := &Agent{
		ID: NewID("agt"), BusinessID: v.BusinessID, Model: Model{Provider: ProviderEmbedded}, Knowledge: []Knowledge{}, Tools: []Tool{},
		McpServers:      []McpServer{},
		ChannelProfiles: []ChannelProfile{}, OnConcurrent: Enqueue,
	}
	err := s.Change(v.BusinessID, 4096, func(ctx context.Context, t *Tx) error {
		made := *agent
		made.CreatedAt = t.Now
		if err := s.roomForAgent(ctx, t, v.BusinessID); err != nil {
			return err
		}
		if err := s.applyAgent(&made, in, t.Now); err != nil {
			return err
		}
		if _, err := t.NewInsert().Model(&made).Returning("NULL").Exec(ctx); err != nil {
			return fmt.Errorf("insert agent: %w", err)
		}
		return s.setAgentURL(ctx, t, &made, in.WebhookURL)
	})
	if err != nil {
		return nil, err
	}
	return s.Agent(ctx, v.BusinessID, agent.ID)
}

// roomForAgent refuses where the business has as many agents as it may. It takes roomForEndpoint's lock, for the same reason, and not
// one of its own: two batches that took two locks in different orders would wait for each other.
func (s *Store) roomForAgent(ctx context.Context, t *Tx, business string) error {
	if t.remote {
		if _, err := t.NewRaw("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", "endpoints of "+business).Exec(ctx); err != nil {
			return fmt.Errorf("lock the agents of %s: %w", business, err)
		}
	}
	n, err := t.NewSelect().Model((*Agent)(nil)).Where("business_id = ? AND deleted_at IS NULL", business).Count(ctx)
	if err != nil {
		return fmt.Errorf("count the agents of %s: %w", business, err)
	}
	if int(n) >= s.cfg.MaxAgents {
		return refuse(CodeInvalid, "limit_reached", fmt.Sprintf("a business may have %d agents: delete one first", s.cfg.MaxAgents))
	}
	return nil
}

// UpdateAgent changes an agent: what the input leaves out stays.
func (s *Store) UpdateAgent(ctx context.Context, v *Viewer, id string, in AgentInput) (*Agent, error) {
	if err := in.validate(s.cfg).Under("input").Err(); err != nil {
		return nil, err
	}
	err := s.Change(v.BusinessID, 4096, func(ctx context.Context, t *Tx) error {
		agent, err := agentIn(ctx, t.ForUpdate(), v.BusinessID, id)
		if err != nil {
			return err
		}
		if err := s.applyAgent(agent, in, t.Now); err != nil {
			return err
		}
		if err := s.setAgentURL(ctx, t, agent, in.WebhookURL); err != nil {
			return err
		}
		if _, err := t.NewUpdate().Model(agent).WherePK().Where("business_id = ?", v.BusinessID).Exec(ctx); err != nil {
			return fmt.Errorf("update agent %s: %w", id, err)
		}
		t.After(func() { s.forgetAgent(v.BusinessID, id) })
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.Agent(ctx, v.BusinessID, id)
}

// applyAgent puts the input's fields into agent.
func (s *Store) applyAgent(agent *Agent, in AgentInput, now Time) error {
	set(&agent.Name, in.Name)
	set(&agent.Prompt, in.Prompt)
	set(&agent.OnConcurrent, in.OnConcurrent)
	set(&agent.Handoff, in.Handoff)
	if in.Knowledge != nil {
		agent.Knowledge = in.Knowledge
	}
	if in.ChannelProfiles != nil {
		agent.ChannelProfiles = in.ChannelProfiles
	}
	if m := in.Model; m != nil {
		agent.Model = s.applyModel(agent, *m)
	}
	if in.Tools != nil {
		if err := s.applyTools(agent, in.Tools); err != nil {
			return err
		}
	}
	if in.McpServers != nil {
		if err := s.applyServers(agent, in.McpServers); err != nil {
			return err
		}
	}
	agent.Version++
	agent.UpdatedAt = now
	return nil
}

// applyModel makes the model of an input, with the keys that are kept of the one before.
func (s *Store) applyModel(agent *Agent, in ModelInput) Model {
	m := Model{
		Provider: in.Provider, Name: in.Name, BaseURL: in.BaseURL, Temperature: in.Temperature,
		MaxOutputTokens: in.MaxOutputTokens, TimeoutSeconds: in.TimeoutSeconds,
	}
	if in.APIKey != nil {
		m.SealedKey = s.sealer.Seal([]byte(*in.APIKey), agent.ID)
	} else {
		for kept := &agent.Model; kept != nil; kept = kept.Fallback {
			if kept.Provider == in.Provider && equal(kept.BaseURL, in.BaseURL) && m.SealedKey == nil {
				m.SealedKey = kept.SealedKey
			}
		}
	}
	if in.Fallback != nil {
		fallback := s.applyModel(agent, *in.Fallback)
		m.Fallback = &fallback
	}
	return m
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

func equal(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

// DeleteAgent removes an agent and its implicit endpoint. What happened with it stays on record.
func (s *Store) DeleteAgent(_ context.Context, v *Viewer, id string) error {
	return s.Change(v.BusinessID, 1024, func(ctx context.Context, t *Tx) error {
		agent, err := agentIn(ctx, t.ForUpdate(), v.BusinessID, id)
		if err != nil {
			return err
		}
		_, err = t.NewRaw("UPDATE agents SET deleted_at = ? WHERE business_id = ? AND id = ?", t.Now, v.BusinessID, id).Exec(ctx)
		if err != nil {
			return fmt.Errorf("delete agent %s: %w", id, err)
		}
		t.After(func() { s.forgetAgent(v.BusinessID, id) })
		return s.setAgentURL(ctx, t, agent, OptionalString{Set: true})
	})
}

func (s *Store) setAgentURL(ctx context.Context, t *Tx, agent *Agent, url OptionalString) error {
	if !url.Set || s.outbox == nil {
		return nil
	}
	return s.outbox.SetAgentURL(ctx, t, agent, url)
}

// ModelKey opens the business's own key for its agent's provider; empty without one.
func (s *Store) ModelKey(agent *Agent) (string, error) {
	if !agent.Model.HasAPIKey() {
		return "", nil
	}
	key, err := s.sealer.Open(agent.Model.SealedKey, agent.ID)
	if err != nil {
		return "", fmt.Errorf("open the model key of agent %s: %w", agent.ID, err)
	}
	return string(key), nil
}

// Agent reads an agent of a business, or refuses with ErrAgentNotFound.
func (s *Store) Agent(ctx context.Context, business, id string) (*Agent, error) {
	if !storable(id) { // it may be of a URL's path
		return nil, ErrAgentNotFound
	}
	return agentIn(ctx, s.read.NewSelect(), business, id)
}

const agentURL = `(SELECT url FROM endpoints WHERE endpoints.business_id = agent.business_id AND endpoints.agent_id = agent.id AND endpoints.deleted_at IS NULL) AS webhook_url`

func agentIn(ctx context.Context, q *bun.SelectQuery, business, id string) (*Agent, error) {
	agent := new(Agent)
	err := q.Model(agent).Column("agent.*").ColumnExpr(agentURL).
		Where("business_id = ? AND id = ? AND deleted_at IS NULL", business, id).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrAgentNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read agent %s: %w", id, err)
	}
	return agent, nil
}

// Agents reads a page of a business's agents, by id: for those that have no id of their own, in the order of their making.
func (s *Store) Agents(ctx context.Context, business string, page PageInput) (*AgentConnection, error) {
	var agents []*Agent
	q := s.read.NewSelect().Model(&agents).Column("agent.*").ColumnExpr(agentURL).
		Where("business_id = ? AND deleted_at IS NULL", business)
	q, err := page.keyset(q, "id", oldestFirst)
	if err != nil {
		return nil, err
	}
	if err := q.Scan(ctx); err != nil {
		return nil, fmt.Errorf("read agents: %w", err)
	}
	edges, info := pageOf(agents, page, func(a *Agent) string { return a.ID })
	return &AgentConnection{Edges: edges, PageInfo: info}, nil
}

// SetUntouchedModel sets the provider of an agent that nobody has changed since it was made.
func (s *Store) SetUntouchedModel(_ context.Context, id string, provider ModelProvider) error {
	return s.Change("", 256, func(ctx context.Context, t *Tx) error {
		_, err := t.NewUpdate().Model(&Agent{Model: Model{Provider: provider}}).Column("model").Where("id = ? AND version = 1", id).Exec(ctx)
		if err != nil {
			return fmt.Errorf("set the model of agent %s: %w", id, err)
		}
		return nil
	})
}
