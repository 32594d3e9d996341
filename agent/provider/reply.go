package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"parley/agent"
)

const maxModelName = 200 // characters, as for an agent's setting

// Answer is what a server says, gathered piece by piece.
type Answer struct {
	Model      string // as the server names it
	Stopped    string // why the model stopped, in the server's word; empty as long as it has not
	Truncated  bool
	In, Out    int64 // tokens, as the server counts them; -1 for none
	text       strings.Builder
	calls      []*call
	tellDeltas func(string)
}

type call struct {
	id, name  string
	arguments strings.Builder
}

// NewAnswer makes an empty one.
func (c *Call) NewAnswer() *Answer { return &Answer{In: -1, Out: -1, tellDeltas: c.request.Text} }

// Say takes more of the text.
func (a *Answer) Say(delta string) {
	if delta == "" {
		return
	}
	a.text.WriteString(delta)
	if a.tellDeltas != nil {
		a.tellDeltas(delta)
	}
}

// Begin takes another call, and returns what takes its pieces.
func (a *Answer) Begin() int {
	a.calls = append(a.calls, new(call))
	return len(a.calls) - 1
}

// Continue takes more of a call. An id and a name come once; servers that repeat them mean the same.
func (a *Answer) Continue(i int, id, name, arguments string) {
	c := a.calls[i]
	if c.id == "" {
		c.id = id
	}
	if name != c.name {
		c.name += name
	}
	c.arguments.WriteString(arguments)
}

// ID is what the server calls a call; empty as long as it has not said.
func (a *Answer) ID(i int) string { return a.calls[i].id }

// Reply takes the reply out of an answer in which everything has come that will. prefix is the provider's.
func (c *Call) Reply(a *Answer, prefix string) (agent.Reply, error) {
	switch {
	case a.Stopped == "":
		return agent.Reply{}, errors.New("the answer ends without saying why")
	case len(a.calls) == 0 && strings.TrimSpace(a.text.String()) == "":
		return agent.Reply{}, fmt.Errorf("the answer has no text, and stopped for %.40q", a.Stopped)
	}
	reply := agent.Reply{Text: a.text.String(), Truncated: a.Truncated, Model: prefix + c.Model}
	if named(a.Model) {
		reply.Model = prefix + a.Model
	}
	taken := map[string]bool{}
	for i, call := range a.calls {
		id := call.id
		for n := i + 1; id == "" || taken[id]; n++ { // some servers give none, or the same to all
			id = fmt.Sprintf("call_%d", n)
		}
		taken[id] = true
		arguments := call.arguments.String()
		if strings.TrimSpace(arguments) == "" {
			arguments = "{}" // how models call what takes nothing
		}
		reply.Calls = append(reply.Calls, agent.Call{ID: id, Name: call.name, Arguments: json.RawMessage(arguments)})
	}
	reply.Usage = c.usage(a, reply)
	return reply, nil
}

// named says whether a server's word for its model can be shown and stored.
func named(model string) bool {
	hidden := func(r rune) bool { return !unicode.IsGraphic(r) || r == utf8.RuneError }
	return model != "" && utf8.RuneCountInString(model) <= maxModelName && !strings.ContainsFunc(model, hidden)
}
