package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"parley/agent/render"
	"parley/store"
)

// enter begins a turn with its agent filled in. The agent may have changed since it was read: what was refused is then tried once
// more with the agent as it is.
func (r *Runner) enter(caller context.Context, agent *store.Agent, in ChatInput, place *place, deadline time.Time) (
	filled *store.Agent, prompt string, choices []choice, turn *store.Turn, err error,
) {
	for again := false; ; again = true {
		filled, prompt, err = fillAgent(agent, in)
		if err == nil {
			choices, err = r.choices(filled)
		}
		begins := err == nil
		if begins {
			turn, err = r.begin(caller, filled, in, place, deadline)
		}
		if err == nil || again || begins && !errors.Is(err, store.ErrAgentChanged) {
			return filled, prompt, choices, turn, err
		}
		now, reading := r.cfg.Store.AgentAgain(caller, agent)
		if reading != nil || now.Version == agent.Version {
			return nil, "", nil, nil, cmp.Or(reading, err)
		}
		agent = now
	}
}

// turn runs a turn from its first commit to its second. caller is looked at only until the first.
func (r *Runner) turn(caller context.Context, agent *store.Agent, in ChatInput, told *told, place *place, deadline time.Time) (*ChatReply, error) {
	defer place.leave()
	agent, prompt, choices, turn, err := r.enter(caller, agent, in, place, deadline)
	if err != nil {
		return nil, err
	}
	defer r.keep(turn.Run.ID)()
	course := course{
		thinker: thinker{choices: choices, log: r.cfg.Log.With("run", turn.Run.ID), asked: r.cfg.Asked},
		agent:   agent, told: told, failed: map[string]bool{},
	}
	began := time.Now()
	reply, err := r.play(turn, in, prompt, &course)
	r.ended(began, course.thinker.took, course.used, err)
	return reply, err
}

// play takes a turn that has begun to its second commit.
func (r *Runner) play(turn *store.Turn, in ChatInput, prompt string, course *course) (*ChatReply, error) {
	agent := course.agent
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.TurnTimeout)
	defer cancel()
	messages, err := r.recall(ctx, turn, in.SessionID == nil)
	if err != nil {
		return nil, r.fail(turn, fmt.Errorf("%w: %w", errHistory, err))
	}
	messages = recent(append(messages[:len(messages):len(messages)], Message{Author: store.AuthorLead, Text: turn.Message.Text}))
	tools, done := r.mcp.bind(ctx, agent)
	defer done()
	course.tools = unique(append((&toolbox{r.cfg.Tools, r.cfg.Store}).bind(agent), tools...))
	shown, err := course.run(ctx, Request{Prompt: prompt, Channel: in.Channel, Messages: messages})
	if err != nil {
		return nil, r.fail(turn, err, course.steps...)
	}
	text := shown.Text
	turn.Rendering = rendering(in.Channel, shown)
	var message *store.Message
	err = r.insist(ctx, func() (err error) {
		message, err = r.cfg.Store.FinishTurn(ctx, turn, text, course.steps...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("finish run %s: %w", turn.Run.ID, err)
	}
	messages = recent(append(messages, Message{Author: store.AuthorAgent, Text: text}))
	r.cfg.History.Remember(ctx, agent.BusinessID, turn.SessionID, message.Sequence+1, messages) // the run's own event comes after its reply
	return &ChatReply{
		Reply: text, SessionID: turn.SessionID, MessageID: message.ID, RunID: turn.Run.ID, Channel: in.Channel,
		Status: store.RunStatusFinished, Model: course.steps[len(course.steps)-1].Model, Usage: store.SumUsage(course.steps),
		Handoff: store.HandoffOf(course.steps), Rendering: turn.Rendering,
	}, nil
}

// rendering is what there is to say of how the channel shows a reply, besides its text.
func rendering(channel store.Channel, shown render.Rendered) *store.Rendering {
	out := &store.Rendering{Truncated: shown.Truncated}
	switch channel {
	case store.SMS:
		out.Segments, out.Encoding = &shown.Segments, &shown.Encoding
	case store.Gmail, store.Outlook:
		out.HTML = &shown.HTML
	default:
		if !shown.Truncated {
			return nil
		}
	}
	return out
}

// What a turn may come to. At any of these bounds the model is asked once more, to answer with what it has.
const (
	maxSteps      = 8       // calls of the model
	maxCalls      = 16      // calls of tools
	maxTurnTokens = 200_000 // used in all
	keptResult    = 4 << 10 // bytes of a call's arguments and of its result that the run records
)

// course is what a turn comes to between its two commits: steps of the model, and the tools that it calls.
type course struct {
	thinker thinker
	agent   *store.Agent
	tools   []boundTool
	told    *told

	steps  []store.RunStep
	calls  int
	used   time.Duration   // by the tools
	failed map[string]bool // calls that failed, by name and arguments
	stuck  bool            // one of those was made again
}

// boundTool is a tool, and what calls it.
type boundTool struct {
	Tool
	call func(ctx context.Context, call Call) Result
}

// run has the model think until it answers, and returns the answer as the channel shows it.
func (t *course) run(ctx context.Context, req Request) (render.Rendered, error) {
	channel, maxLength := req.Channel, 0
	for _, p := range t.agent.ChannelProfiles {
		if p.Channel == channel && p.MaxLength != nil {
			maxLength = *p.MaxLength
		}
	}
	if t.agent.Handoff {
		t.tools = append(t.tools, t.handsOff())
	}
	for _, tool := range t.tools {
		req.Tools = append(req.Tools, tool.Tool)
	}
	var voice *voice
	if t.told != nil {
		voice = newVoice(channel, maxLength, t.told.add)
		req.Text = voice.hear
	}
	var said []string
	owed := false // words of a handoff
	truncated := false
	for {
		req.NoCalls = t.spent()
		reply, err := t.thinker.step(ctx, req)
		if err != nil && t.handedOff() && !errors.Is(ctx.Err(), context.Canceled) {
			break // the wish for a person stands, whatever has become of the model
		}
		if err != nil {
			return render.Rendered{}, err
		}
		t.steps = append(t.steps, store.RunStep{Model: reply.Model, Text: cut(reply.Text, render.MaxInput), ToolCalls: []store.ToolCall{}, Usage: reply.Usage})
		if strings.TrimSpace(reply.Text) != "" {
			said = append(said, reply.Text)
			owed, truncated = false, reply.Truncated
		}
		if len(reply.Calls) == 0 || req.NoCalls {
			break
		}
		if voice != nil {
			voice.next()
		}
		// Each call has a result, and a record: of those that will not be made one is kept, for the model to be told so.
		reply.Calls = reply.Calls[:min(len(reply.Calls), max(0, maxCalls-t.calls)+1)]
		req.Steps = append(req.Steps, Step{Text: reply.Text, Calls: reply.Calls, Results: t.use(ctx, reply.Calls)})
		if t.handedOff() {
			if owed = strings.TrimSpace(reply.Text) == ""; !owed {
				break
			}
			continue // for the words, in the user's language
		}
		if ctx.Err() != nil {
			return render.Rendered{}, fmt.Errorf("%w: while it used tools", ErrModelTimeout)
		}
	}
	if owed {
		said = append(said, HandoffSentence)
		if voice != nil {
			voice.next()
			voice.hear(HandoffSentence)
		}
	}
	if len(said) == 0 {
		return render.Rendered{}, fmt.Errorf("%w: it called tools, and said nothing", ErrModelFailed)
	}
	var shown render.Rendered
	if voice != nil {
		shown = voice.end()
	} else {
		shown = render.Render(channel, strings.Join(said, "\n\n"), maxLength)
	}
	shown.Truncated = shown.Truncated || truncated
	return shown, nil
}

// spent says whether the turn has come to one of its bounds.
func (t *course) spent() bool {
	usage := store.SumUsage(t.steps)
	return t.stuck || t.handedOff() || len(t.steps) >= maxSteps-1 || t.calls >= maxCalls || usage.TotalTokens() >= maxTurnTokens
}

// use makes a step's calls, one after the other, and records them.
func (t *course) use(ctx context.Context, calls []Call) []Result {
	results := make([]Result, len(calls))
	record := &t.steps[len(t.steps)-1]
	for i, call := range calls {
		began := time.Now()
		results[i] = t.useOne(ctx, call)
		t.used += time.Since(began)
		record.ToolCalls = append(record.ToolCalls, store.ToolCall{
			Name: cut(call.Name, 100), Arguments: cut(string(call.Arguments), keptResult), Result: cut(results[i].Content, keptResult),
			Failed: results[i].Failed, DurationMs: int(time.Since(began).Milliseconds()),
		})
	}
	return results
}

func (t *course) useOne(ctx context.Context, call Call) Result {
	failed := func(sentence string) Result { return Result{CallID: call.ID, Content: sentence, Failed: true} }
	if t.calls++; t.calls > maxCalls {
		return failed("No more tools can be called in this turn.")
	}
	key := call.Name + " " + canonical(call.Arguments)
	if t.failed[key] {
		t.stuck = true
		return failed("This very call has failed before.")
	}
	i := slices.IndexFunc(t.tools, func(tool boundTool) bool { return tool.Name == call.Name })
	if i < 0 {
		t.failed[key] = true
		return failed("There is no such tool.")
	}
	result := t.tools[i].call(ctx, call)
	if result.Failed {
		t.failed[key] = true
	}
	return result
}

// canonical writes JSON in one way, so that the same arguments look the same.
func canonical(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return string(raw)
	}
	return string(b)
}

// modelName is what a run says of its model before the model has answered.
func modelName(agent *store.Agent) string {
	name := string(agent.Model.Provider)
	if agent.Model.Name != nil {
		name += "/" + *agent.Model.Name
	}
	return name
}

// recall is what was said in the session before this turn.
func (r *Runner) recall(ctx context.Context, turn *store.Turn, fresh bool) ([]Message, error) {
	if fresh {
		return nil, nil
	}
	if messages, ok := r.cfg.History.Recall(ctx, turn.SessionID, turn.History); ok {
		return messages, nil
	}
	kept, err := r.cfg.Store.History(ctx, turn.SessionID, historyLength)
	if err != nil {
		return nil, err
	}
	messages := make([]Message, len(kept))
	for i, m := range kept {
		messages[i] = Message{Author: m.Author, Text: m.Text}
	}
	return messages, nil
}

// fail ends the run and says what the caller is told. The cause is logged here, and not shown.
func (r *Runner) fail(turn *store.Turn, cause error, steps ...store.RunStep) error {
	class, told := r.outcome(cause)
	r.cfg.Log.Warn("a run failed", "run", turn.Run.ID, "agent", turn.Run.AgentID, "class", class, "error", brief(cause))
	err := r.insist(context.Background(), func() error { return r.cfg.Store.FailTurn(context.Background(), turn.Run, class, steps...) })
	if err != nil {
		return fmt.Errorf("fail run %s: %w", turn.Run.ID, err)
	}
	return told
}

// brief is what the log is told of a failure: not the words of a model's server, which may repeat
// what was said.
func brief(err error) string {
	var failure interface{ Brief() string }
	if errors.As(err, &failure) {
		return failure.Brief()
	}
	return err.Error()
}

// outcome is the class of a failed run, and what its caller is told.
func (r *Runner) outcome(cause error) (class string, told error) {
	switch {
	case errors.Is(context.Cause(r.ctx), errInterrupted):
		return store.RunInterrupted, store.ErrShuttingDown
	case errors.Is(cause, errHistory):
		return store.RunInterrupted, store.ErrUnavailable
	case errors.Is(cause, ErrModelTimeout) || errors.Is(cause, context.DeadlineExceeded):
		class = store.RunModelTimeout
	default:
		class = store.RunModelFailed
	}
	return class, failure(class)
}

// failure is what is told of a run that failed.
func failure(class string) error {
	switch class {
	case store.RunModelFailed:
		return store.Refuse(store.CodeModelFailed, "model_failed", "the agent's model failed: send the message again")
	case store.RunModelTimeout:
		return store.Refuse(store.CodeModelTimeout, "model_timeout", "the agent's model gave nothing in time: send the message again")
	}
	return store.ErrUnavailable // a shutdown or a crash has interrupted it
}
