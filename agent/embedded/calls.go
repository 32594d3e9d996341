package embedded

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"parley/agent"
	"parley/store"
)

const maxFound = 2000 // characters of tools' results: what a person reads in a chat

// calls are the tools that the last message triggers, and that this turn has not called yet.
func calls(req agent.Request) []agent.Call {
	if req.NoCalls || len(req.Tools) == 0 || len(req.Messages) == 0 {
		return nil
	}
	called := map[string]bool{}
	for _, step := range req.Steps {
		for _, call := range step.Calls {
			called[call.Name] = true
		}
	}
	message := req.Messages[len(req.Messages)-1].Text
	said := words(message)
	if _, polite := courtesy(firstWords(message, mostWords)); polite {
		called[store.HandoffTool] = true // who asks whether this is a human asks for no other one
	}
	var out []agent.Call
	for _, tool := range req.Tools {
		if called[tool.Name] || !slices.ContainsFunc(tool.Triggers, func(trigger string) bool { return holds(said, words(trigger)) }) {
			continue
		}
		arguments, ok := fill(tool, message)
		if !ok {
			continue
		}
		called[tool.Name] = true
		out = append(out, agent.Call{ID: fmt.Sprintf("call_%d_%d", len(req.Steps)+1, len(out)+1), Name: tool.Name, Arguments: arguments})
	}
	return out
}

// holds says whether the words of the trigger stand in what was said, one after the other.
func holds(said, trigger []string) bool {
	for i := 0; len(trigger) > 0 && i+len(trigger) <= len(said); i++ {
		if slices.Equal(said[i:i+len(trigger)], trigger) {
			return true
		}
	}
	return false
}

// fill makes a tool's arguments: none, or the message, where the only thing that must be given is a text of any kind. All
// else would have to be made up.
func fill(tool agent.Tool, message string) (json.RawMessage, bool) {
	var schema struct {
		Required   []string                              `json:"required"`
		Properties map[string]map[string]json.RawMessage `json:"properties"`
	}
	if len(tool.Parameters) > 0 && json.Unmarshal(tool.Parameters, &schema) != nil {
		return nil, false
	}
	switch len(schema.Required) {
	case 0:
		return json.RawMessage("{}"), true
	case 1:
		name := schema.Required[0]
		for keyword, value := range schema.Properties[name] {
			switch keyword {
			case "title", "description", "examples", "default", "minLength", "$comment":
			case "type":
				if string(value) != `"string"` {
					return nil, false
				}
			default: // enum, pattern, format, maxLength …: a message is none of these but by chance
				return nil, false
			}
		}
		if schema.Properties[name]["type"] == nil {
			return nil, false
		}
		arguments, err := json.Marshal(map[string]string{name: message})
		return arguments, err == nil
	}
	return nil, false
}

// found is the answer from what the turn's tools have brought; empty if none was called.
func found(req agent.Request) string {
	var results []agent.Result
	for _, step := range req.Steps {
		results = append(results, step.Results...)
	}
	if len(results) == 0 {
		return ""
	}
	limit := maxLength(req)
	if limit == 0 {
		limit = maxFound
	}
	limit = min(limit, maxFound)
	brought := slices.DeleteFunc(slices.Clone(results), func(r agent.Result) bool { return r.Failed })
	if len(brought) == 0 {
		return template(Failed, limit)
	}
	answer, length := Found, utf8.RuneCountInString(Found)
	for _, result := range brought {
		for line := range strings.Lines(strings.ToValidUTF8(result.Content, "\uFFFD")) {
			for _, s := range cut(strings.TrimSpace(line)) {
				switch length += 1 + utf8.RuneCountInString(s); {
				case length <= limit:
					answer += " " + s
				case answer == Found:
					return template(FoundTooMuch, limit)
				default:
					return answer
				}
			}
		}
	}
	if answer == Found {
		return template(FoundNothing, limit)
	}
	return answer
}

// template is the template if it fits, and else the shortest: a reply must not be empty.
func template(text string, limit int) string {
	if fits(text, limit) {
		return text
	}
	return DontKnowShort
}
