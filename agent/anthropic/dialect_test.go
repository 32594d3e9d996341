package anthropic_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"parley/agent"
	"parley/agent/anthropic"
	"parley/agent/modeltest"
)

var dialect = modeltest.Dialect{
	New:    func(cfg anthropic.Config) agent.Model { return anthropic.New(cfg) },
	Prefix: "anthropic/", Path: "/v1/messages", Headers: []string{"X-Api-Key", "Anthropic-Version"},
	Key: func(h http.Header) string { return h.Get("X-Api-Key") + h.Get("Authorization") },
	Stream: func(a modeltest.Answer) []string {
		event := func(kind string, data object) string {
			data["type"] = kind
			return "event: " + kind + "\ndata: " + modeltest.Encode(data) + "\n\n"
		}
		// What was begun is counted at the beginning, partly from the cache, and what was written at the end.
		usage, used := object{}, object{}
		if a.In != 0 || a.Out != 0 {
			usage = object{"input_tokens": a.In - 5, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 1}
			used = object{"output_tokens": a.Out}
		}
		message := object{"id": "m1", "type": "message", "role": "assistant", "model": a.Model, "content": []any{}, "stop_reason": nil, "usage": usage}
		events := []string{event("message_start", object{"message": message})}
		index := 0
		if len(a.Deltas) > 0 {
			events[0] += event("content_block_start", object{"index": 0, "content_block": object{"type": "text", "text": ""}}) + event("ping", object{})
			index++
		}
		for _, text := range a.Deltas {
			events = append(events, event("content_block_delta", object{"index": 0, "delta": object{"type": "text_delta", "text": text}}))
		}
		for _, call := range a.Calls {
			events = append(events, event("content_block_start", object{"index": index, "content_block": object{"type": "tool_use", "id": call.ID, "name": call.Name, "input": object{}}}))
			for _, piece := range call.Pieces {
				events = append(events, event("content_block_delta", object{"index": index, "delta": object{"type": "input_json_delta", "partial_json": piece}}))
			}
			events = append(events, event("content_block_stop", object{"index": index}))
			index++
		}
		if reason := stops[a.Stop]; reason != nil {
			events = append(events, event("message_delta", object{"delta": object{"stop_reason": reason, "stop_sequence": nil}, "usage": used}))
		}
		return append(events, event("message_stop", object{}))
	},
	Whole: func(a modeltest.Answer) string {
		content := []any{}
		if len(a.Deltas) > 0 {
			content = append(content, object{"type": "text", "text": strings.Join(a.Deltas, "")})
		}
		for _, call := range a.Calls {
			input := json.RawMessage(strings.Join(call.Pieces, ""))
			if len(input) == 0 {
				input = json.RawMessage("{}")
			}
			content = append(content, object{"type": "tool_use", "id": call.ID, "name": call.Name, "input": input})
		}
		usage := object{}
		if a.In != 0 || a.Out != 0 {
			usage = object{"input_tokens": a.In, "output_tokens": a.Out}
		}
		return modeltest.Encode(object{
			"id": "m1", "type": "message", "role": "assistant", "model": a.Model, "content": content, "stop_reason": stops[a.Stop], "usage": usage,
		})
	},
	Error: "event: error\n" + `data: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}` + "\n\n",
	Read: func(body string) (told modeltest.Told) {
		var req struct {
			Stream   bool
			Tools    []struct{ Name string }
			Messages []struct {
				Content []struct {
					Type    string
					Content []struct{ Text string }
				}
			}
		}
		if err := json.Unmarshal([]byte(body), &req); err != nil {
			return told
		}
		told.Stream = req.Stream
		for _, tool := range req.Tools {
			told.Tools = append(told.Tools, tool.Name)
		}
		for _, m := range req.Messages {
			for _, block := range m.Content {
				for _, text := range block.Content {
					told.Results = append(told.Results, text.Text)
				}
			}
		}
		return told
	},
}

type object map[string]any

var stops = map[modeltest.Stop]any{modeltest.Done: "end_turn", modeltest.Called: "tool_use", modeltest.Limit: "max_tokens", modeltest.Declined: "refusal"}

func TestContract(t *testing.T) { modeltest.RunOverHTTP(t, dialect) }

func FuzzAnswer(f *testing.F) { modeltest.Fuzz(f, dialect) }
