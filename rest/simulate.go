package rest

import (
	"encoding/json"
	"net/http"

	"parley/agent"
	"parley/store"
)

// testReply is the answer of a test: a chat's, without anything that would be stored.
type testReply struct {
	Simulated bool             `json:"simulated"`
	Reply     string           `json:"reply"`
	Channel   store.Channel    `json:"channel"`
	Model     string           `json:"model"`
	Usage     usage            `json:"usage"`
	Handoff   *store.Handoff   `json:"handoff,omitempty"`
	Rendering *store.Rendering `json:"rendering,omitempty"`
	Steps     []testStep       `json:"steps"`
}

type testStep struct {
	Model     string           `json:"model"`
	Text      string           `json:"text"`
	ToolCalls []store.ToolCall `json:"tool_calls"`
}

// test is POST /agents/{agent_id}/test: a chat whose tools answer what the member `tools` says, by name.
func (a *API) test(w http.ResponseWriter, r *http.Request) error {
	v, b, err := readTurn(w, r)
	if err != nil {
		return err
	}
	in := agent.TestInput{ChatInput: a.chatInput(r, b), Results: map[string]string{}}
	if tools := b.object("tools"); tools != nil {
		if tools.HasNUL() {
			b.fault(store.ValueError("U+0000 is not allowed"), b.fields["tools"], "tools")
		}
		var results map[string]json.RawMessage
		if err := json.Unmarshal(*tools, &results); err != nil {
			return err
		}
		for name, raw := range results {
			text := string(raw)
			if json.Unmarshal(raw, &text) != nil {
				text = string(raw) // not a text: as JSON has it
			}
			in.Results[name] = text
		}
	}
	if err := b.check(in.Faults()); err != nil {
		return err
	}
	reply, err := a.Runner.Test(r.Context(), v, in)
	if err != nil {
		return underBody(err)
	}
	out := testReply{
		Simulated: true, Reply: reply.Reply, Channel: in.Channel, Model: reply.Model, Steps: make([]testStep, len(reply.Steps)),
		Usage:   usage{reply.Usage.InputTokens, reply.Usage.OutputTokens, reply.Usage.TotalTokens(), reply.Usage.Source},
		Handoff: reply.Handoff, Rendering: reply.Rendering,
	}
	for i, s := range reply.Steps {
		out.Steps[i] = testStep{s.Model, s.Text, s.ToolCalls}
	}
	write(w, http.StatusOK, out)
	return nil
}
