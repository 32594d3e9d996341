package agent

import (
	"context"
	"maps"
	"slices"
	"strings"

	"parley/store"
)

// TestInput is a turn that is only tried out.
type TestInput struct {
	ChatInput
	Results map[string]string // by tool: what it is taken to answer
}

const maxUnknown = 100 // names in Results that are told to be none of a tool

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
// and no tool is called; its MCP servers are asked at most for their lists. A tool without a result fails; a handoff is answered as
// ever. Its refusals are those of Chat, and one of results for what is no tool of the agent.
func (r *Runner) Test(ctx context.Context, v *store.Viewer, in TestInput) (*TestReply, error) {
	if err := v.RequireChat(); err != nil {
		return nil, err
	}
	if err := in.Faults().Err(); err != nil {
		return nil, err
	}
	agent, err := r.cfg.Store.Agent(ctx, v.BusinessID, in.AgentID)
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
	listed, done := r.mcp.bind(ctx, agent)
	defer done()
	tools := unique(append((&toolbox{}).bind(agent), listed...))
	for i := range tools {
		tools[i].call = in.answer(tools[i].Tool)
	}
	if err := in.unknown(agent, tools).Err(); err != nil {
		return nil, err
	}
	course := course{
		thinker: thinker{choices: choices, log: r.cfg.Log.With("test", in.AgentID), asked: r.cfg.Asked}, agent: agent, failed: map[string]bool{}, tools: tools,
	}
	shown, err := course.run(ctx, Request{
		Prompt: prompt, Channel: in.Channel,
		Messages: []Message{{Author: store.AuthorLead, Text: strings.TrimSpace(in.Message)}},
	})
	if err != nil {
		r.cfg.Log.Warn("a test of an agent failed", "agent", in.AgentID, "error", brief(err))
		_, told := r.outcome(err)
		return nil, told
	}
	return &TestReply{
		Reply: shown.Text, Model: course.steps[len(course.steps)-1].Model, Usage: store.SumUsage(course.steps),
		Handoff: store.HandoffOf(course.steps), Rendering: rendering(in.Channel, shown), Steps: course.steps,
	}, nil
}

// answer takes the tool's place.
func (in *TestInput) answer(tool Tool) func(context.Context, Call) Result {
	return func(_ context.Context, call Call) Result {
		if wrong := checkArguments(tool.Parameters, call.Arguments); wrong != "" {
			return Result{CallID: call.ID, Content: wrong, Failed: true}
		}
		content, ok := in.Results[tool.Name]
		if !ok {
			return Result{CallID: call.ID, Content: "The test gives no result for this tool.", Failed: true}
		}
		return Result{CallID: call.ID, Content: clean([]byte(content))}
	}
}

// unknown are the faults of results for what is none of the tools, placed as REST names the field. An MCP server that could not be
// listed may have a tool of any name below its own: as in a chat, the agent does without it.
func (in *TestInput) unknown(agent *store.Agent, tools []boundTool) store.Faults {
	var f store.Faults
	for _, name := range slices.Sorted(maps.Keys(in.Results)) {
		known := slices.ContainsFunc(tools, func(t boundTool) bool { return t.Name == name })
		away := slices.ContainsFunc(agent.McpServers, func(s store.McpServer) bool {
			below := func(name string) bool { return strings.HasPrefix(name, s.Name+"_") }
			return below(name) && !slices.ContainsFunc(tools, func(t boundTool) bool { return below(t.Name) })
		})
		if known || away {
			continue
		}
		if f = append(f, store.Faults{store.ValueError("the agent calls no tool of this name")}.Under("tools", cut(name, 100))...); len(f) == maxUnknown {
			break
		}
	}
	return f
}
