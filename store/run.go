package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/uptrace/bun"
)

// TokenUsage is what a run cost in tokens, and who counted.
type TokenUsage struct {
	InputTokens  int         `bun:"input_tokens" json:"input_tokens"`
	OutputTokens int         `bun:"output_tokens" json:"output_tokens"`
	Source       UsageSource `bun:"usage_source" json:"source"`
}

// TotalTokens is the sum of both directions.
func (u TokenUsage) TotalTokens() int { return u.InputTokens + u.OutputTokens }

// Run is one turn of an agent: thinking, and the reply. It ends exactly once.
type Run struct {
	bun.BaseModel `bun:"table:runs,alias:run"`

	ID             string    `bun:"id,pk"`
	BusinessID     string    `bun:"business_id"`
	AgentID        string    `bun:"agent_id"`
	SessionID      *string   `bun:"session_id"`
	ConversationID *string   `bun:"conversation_id"`
	Channel        Channel   `bun:"channel"`
	Status         RunStatus `bun:"status"`
	Model          string    `bun:"model"`
	TokenUsage
	Cost       *int64    `bun:"cost"` // see Price; nil: its models had no price when it ended
	Steps      []RunStep `bun:"steps,type:text"`
	ErrorClass *string   `bun:"error_class"`
	MessageID  string    `bun:"message_id"` // what it answers
	ReplyID    *string   `bun:"reply_id"`
	Fence      int64     `bun:"fence"`       // of the session's lock: whoever holds a newer one has taken the session over
	OwnedUntil Time      `bun:"owned_until"` // a run still running after this was left behind by a crash
	StartedAt  Time      `bun:"started_at"`
	FinishedAt *Time     `bun:"finished_at"`
}

// RunStep is one call of the model in a run, with the tools that it called.
type RunStep struct {
	Model     string     `json:"model"`
	Text      string     `json:"text"` // what it said, which in the last step is the reply
	ToolCalls []ToolCall `json:"tool_calls"`
	Usage     TokenUsage `json:"usage"`
	Handoff   *Handoff   `json:"handoff,omitempty"` // what a call of HandoffTool asked for
}

// ToolCall is one call of a tool: what it was called with, and what came of it, cut to a few KiB.
type ToolCall struct {
	Name       string `json:"name"`
	Arguments  string `json:"arguments"` // as the model wrote them: JSON, if it can write JSON
	Result     string `json:"result"`
	Failed     bool   `json:"failed"`
	DurationMs int    `json:"duration_ms"`
}

// SumUsage is the usage of all steps: as sure as the least sure of them.
func SumUsage(steps []RunStep) TokenUsage {
	sum := TokenUsage{Source: UsageNone}
	for _, step := range steps {
		sum.InputTokens += step.Usage.InputTokens
		sum.OutputTokens += step.Usage.OutputTokens
		switch {
		case sum.Source == UsageEstimated || step.Usage.Source == UsageNone:
		case step.Usage.Source == UsageEstimated, sum.Source == UsageNone:
			sum.Source = step.Usage.Source
		}
	}
	return sum
}

// Error classes of a failed run.
const (
	RunModelFailed  = "model_failed"
	RunModelTimeout = "model_timeout"
	RunInterrupted  = "interrupted" // by a shutdown or a crash
)

// end notes how the run ended.
func (r *Run) end(status RunStatus, steps []RunStep, at Time) {
	r.Status, r.Steps, r.FinishedAt = status, append([]RunStep{}, steps...), &at
	if n := len(steps); n > 0 {
		r.Model, r.TokenUsage = steps[n-1].Model, SumUsage(steps)
	}
}

// event makes the event of a run that has ended.
func (r *Run) event(sequence int64) (*Event, error) {
	kind := RunFinished
	if r.Status == RunStatusFailed {
		kind = RunFailed
	}
	type usage struct {
		InputTokens  int         `json:"input_tokens"`
		OutputTokens int         `json:"output_tokens"`
		TotalTokens  int         `json:"total_tokens"`
		Source       UsageSource `json:"source"`
	}
	// What tools were told and brought is in the run: it may be much, and not for every receiver.
	type toolCall struct {
		Name       string `json:"name"`
		Failed     bool   `json:"failed"`
		DurationMs int    `json:"duration_ms"`
	}
	calls := []toolCall{}
	for _, step := range r.Steps {
		for _, c := range step.ToolCalls {
			calls = append(calls, toolCall{c.Name, c.Failed, c.DurationMs})
		}
	}
	return newEvent(r.BusinessID, r.Channel, *r.FinishedAt, subject{
		Type: kind, Direction: Outbound, AgentID: &r.AgentID, ConversationID: r.ConversationID, SessionID: r.SessionID,
		RunID: &r.ID, MessageID: r.ReplyID, Sequence: sequence,
	}, struct {
		Status     RunStatus  `json:"status"`
		Model      string     `json:"model"`
		Usage      usage      `json:"usage"`
		ToolCalls  []toolCall `json:"tool_calls"`
		Handoff    *Handoff   `json:"handoff,omitempty"`
		DurationMs int64      `json:"duration_ms"`
		ErrorClass *string    `json:"error_class,omitempty"`
	}{
		r.Status, r.Model,
		usage{r.InputTokens, r.OutputTokens, r.TotalTokens(), r.Source},
		calls, r.Handoff(),
		r.FinishedAt.Sub(r.StartedAt).Milliseconds(), r.ErrorClass,
	})
}

// AbandonedRuns reads the runs that are still running past the time they were owned for: a crash left them.
func (s *Store) AbandonedRuns(ctx context.Context, limit int) ([]*Run, error) {
	var runs []*Run
	err := s.read.NewSelect().Model(&runs).Where("status = ? AND owned_until < ?", RunRunning, s.Now()).
		Order("owned_until").Limit(int64(limit)).Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read abandoned runs: %w", err)
	}
	return runs, nil
}

// DisownRuns takes the runs that are running from their owner. Only the one server of a SQLite file may: whatever runs
// when it starts was left behind.
func (s *Store) DisownRuns(ctx context.Context) error {
	if s.remote() {
		return nil
	}
	return s.Change("", 0, func(ctx context.Context, t *Tx) error {
		_, err := t.NewRaw("UPDATE runs SET owned_until = 0 WHERE status = ?", RunRunning).Exec(ctx)
		return err
	})
}

var errRunNotFound = refuse(CodeNotFound, "run_not_found", "there is no such run")

// Run reads a run of a business.
func (s *Store) Run(ctx context.Context, business, id string) (*Run, error) {
	run := new(Run)
	err := s.read.NewSelect().Model(run).Where("id = ? AND business_id = ?", id, business).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errRunNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read run %s: %w", id, err)
	}
	return run, nil
}

// RunFilter selects runs of a business.
type RunFilter struct {
	AgentID *string
	Status  *RunStatus
}

// Runs reads a page of a business's runs, newest first.
func (s *Store) Runs(ctx context.Context, business string, filter RunFilter, page PageInput) (*RunConnection, error) {
	var runs []*Run
	q := s.read.NewSelect().Model(&runs).Where("business_id = ?", business)
	if filter.AgentID != nil {
		q = q.Where("agent_id = ?", *filter.AgentID)
	}
	if filter.Status != nil {
		q = q.Where("status = ?", *filter.Status)
		if *filter.Status != RunStatusFinished {
			q = q.Where("status <> 'finished'") // as its index says
		}
	}
	q, err := page.keyset(q, "id", newestFirst)
	if err != nil {
		return nil, err
	}
	if err := q.Scan(ctx); err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	edges, info := pageOf(runs, page, func(r *Run) string { return r.ID })
	return &RunConnection{Edges: edges, PageInfo: info}, nil
}
