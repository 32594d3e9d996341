package agent

import (
	"context"
	"strings"

	"parley/store"
)

// TestInput is a turn that is only tried out.
type TestInput struct {
	ChatInput
	Results map[string]string // by tool: what it is taken to answer
}

// TestReply is what such a turn came to.
type TestReply struct {
	Reply     string
	Model     string
	Usage     store.TokenUsage
	Handoff   *store.Handoff
	Rendering *store.Rendering
	Steps     []store.RunStep
}

// Test has an agent answer as in Chat, with what its tools would bring given by the caller: nothing is stored, sent or billed,
// and no server of a tool is called, an MCP server either. A tool without a result fails; a handoff is answered as ever. Its refusals are those of Chat.
func (r *Runner) Test(ctx context.Context, v *store.Viewer, in TestInput) (*TestReply, error) {
	if err := v.RequireChat(); err != nil {
		return nil, err
	}
	if err := in.Faults().Err(); err != nil {
		return nil, err
	}
	agent, err := r.cfg.Store.AgentOfTurn(ctx, v.BusinessID, in.AgentID)
	if err != nil {
		return nil, err
	}
	agent, prompt, err := fillAgent(agent, in.ChatInput)
	if err != nil {
		return nil, err
	}
	choices, err := r.choices(agent)
	if err != nil {
		return nil, err
	}
	if !r.start() {
		return nil, store.ErrShuttingDown
	}
	defer r.turns.Done()
	ctx, cancel := context.WithTimeout(ctx, r.cfg.TurnTimeout)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	course := course{
		thinker: thinker{choices, r.cfg.Log.With("test", in.AgentID)}, agent: agent, failed: map[string]bool{},
		tools: bind(agent, func(_ context.Context, tool *store.Tool, call Call) Result {
			if wrong := checkArguments(tool.Parameters, call.Arguments); wrong != "" {
				return Result{CallID: call.ID, Content: wrong, Failed: true}
			}
			content, ok := in.Results[tool.Name]
			if !ok {
				return Result{CallID: call.ID, Content: "The test gives no result for this tool.", Failed: true}
			}
			return Result{CallID: call.ID, Content: clean([]byte(content))}
		}),
	}
	shown, err := course.run(ctx, Request{
		Prompt: prompt, Channel: in.Channel,
		Messages: []Message{{Author: store.AuthorLead, Text: strings.TrimSpace(in.Message)}},
	})
	if err != nil {
		r.cfg.Log.Warn("a test of an agent failed", "agent", in.AgentID, "error", err)
		_, told := r.outcome(err)
		return nil, told
	}
	return &TestReply{
		Reply: shown.Text, Model: course.steps[len(course.steps)-1].Model, Usage: store.SumUsage(course.steps),
		Handoff: store.HandoffOf(course.steps), Rendering: rendering(in.Channel, shown), Steps: course.steps,
	}, nil
}
