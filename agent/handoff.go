package agent

import (
	"context"
	"encoding/json"
	"strings"

	"parley/store"
)

// HandoffSentence is what the user is told of a handoff, if the model has no words for it.
const HandoffSentence = "I'm passing you on to a person."

const (
	maxReason  = 500  // characters that are kept of a handoff's reason
	maxSummary = 4000 // and of its summary
)

// handoffTool is offered to the models of agents with Handoff. Its texts have no lengths in the schema: a model that writes
// too much has asked for a person all the same.
var handoffTool = Tool{
	Name: store.HandoffTool,
	Description: "Passes the user on to a person of the business. Call it when the user asks for a person, or needs what you cannot give." +
		" Tell the user in the same answer that a person will take over, and promise no time.",
	Parameters: store.JSONObject(`{"type":"object","properties":{` +
		`"reason":{"type":"string","minLength":1,"description":"Why a person is needed, in one sentence."},` +
		`"summary":{"type":"string","description":"What the person needs to know of what was said so far."}},` +
		`"required":["reason"],"additionalProperties":false}`),
	Triggers: []string{
		"human", "a person", "real person", "someone real", "an agent", "live agent", "representative", "a colleague",
		"talk to someone", "speak to someone", "speak with someone",
	},
}

// handsOff is the tool as this turn calls it: it takes the wish down, and nothing else happens before the turn's second commit.
func (t *course) handsOff() boundTool {
	return boundTool{handoffTool, func(_ context.Context, call Call) Result {
		if wrong := checkArguments(handoffTool.Parameters, call.Arguments); wrong != "" {
			return Result{CallID: call.ID, Content: wrong, Failed: true}
		}
		var asked store.Handoff
		if err := json.Unmarshal(call.Arguments, &asked); err != nil {
			return Result{CallID: call.ID, Content: "The arguments are not JSON.", Failed: true}
		}
		asked.Reason = within(withoutNUL(asked.Reason), maxReason)
		if asked.Summary != nil {
			*asked.Summary = within(withoutNUL(*asked.Summary), maxSummary)
		}
		if !t.handedOff() {
			t.steps[len(t.steps)-1].Handoff = &asked
		}
		return Result{CallID: call.ID, Content: "A person is asked to take over. Tell the user so, in the user's language, and nothing else."}
	}}
}

func (t *course) handedOff() bool { return store.HandoffOf(t.steps) != nil }

// within is s, cut to so many characters.
func within(s string, most int) string {
	runes := []rune(strings.TrimSpace(s))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}
