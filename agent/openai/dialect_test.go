package openai_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"parley/agent"
	"parley/agent/modeltest"
	"parley/agent/openai"
)

var dialect = modeltest.Dialect{
	New:    func(cfg openai.Config) agent.Model { return openai.New(cfg) },
	Prefix: "openai/", Path: "/chat/completions", Headers: []string{"Authorization"},
	Key: func(h http.Header) string { return strings.TrimPrefix(h.Get("Authorization"), "Bearer ") },
	Stream: func(a modeltest.Answer) []string {
		chunk := func(choices ...any) string {
			if choices == nil {
				choices = []any{}
			}
			out := object{"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": a.Model, "choices": choices, "usage": nil}
			if len(choices) == 0 {
				out["usage"] = used(a)
			}
			return "data: " + modeltest.Encode(out) + "\n\n"
		}
		delta := func(delta object) string { return chunk(object{"index": 0, "delta": delta, "finish_reason": nil}) }
		events := []string{delta(object{"role": "assistant", "content": "", "refusal": nil})}
		for _, text := range a.Deltas {
			events = append(events, delta(object{"content": text}))
		}
		for i, call := range a.Calls {
			events = append(events, delta(object{"tool_calls": []any{object{"index": i, "id": call.ID, "type": "function", "function": object{"name": call.Name, "arguments": ""}}}}))
			for _, piece := range call.Pieces {
				events = append(events, delta(object{"tool_calls": []any{object{"index": i, "function": object{"arguments": piece}}}}))
			}
		}
		if reason := stops[a.Stop]; reason != nil {
			events = append(events, chunk(object{"index": 0, "delta": object{}, "finish_reason": reason}))
		}
		if used(a) != nil {
			events = append(events, chunk())
		}
		return append(events, "data: [DONE]\n\n")
	},
	Whole: func(a modeltest.Answer) string {
		message := object{"role": "assistant", "content": strings.Join(a.Deltas, "")}
		var calls []any
		for _, call := range a.Calls {
			calls = append(calls, object{"id": call.ID, "type": "function", "function": object{"name": call.Name, "arguments": strings.Join(call.Pieces, "")}})
		}
		if calls != nil {
			message["tool_calls"] = calls
		}
		return modeltest.Encode(object{
			"id": "c1", "object": "chat.completion", "created": 1, "model": a.Model, "usage": used(a),
			"choices": []any{object{"index": 0, "message": message, "finish_reason": stops[a.Stop]}},
		})
	},
	Error: `data: {"error":{"message":"overloaded","type":"server_error","code":503}}` + "\n\n",
	Read: func(body string) (told modeltest.Told) {
		var req struct {
			Stream        bool
			StreamOptions struct {
				IncludeUsage bool `json:"include_usage"`
			} `json:"stream_options"`
			Tools    []struct{ Function struct{ Name string } }
			Messages []struct{ Role, Content string }
		}
		if err := json.Unmarshal([]byte(body), &req); err != nil {
			return told
		}
		told.Stream = req.Stream && req.StreamOptions.IncludeUsage
		for _, tool := range req.Tools {
			told.Tools = append(told.Tools, tool.Function.Name)
		}
		for _, m := range req.Messages {
			if m.Role == "tool" {
				told.Results = append(told.Results, m.Content)
			}
		}
		return told
	},
}

type object map[string]any

var stops = map[modeltest.Stop]any{modeltest.Done: "stop", modeltest.Called: "tool_calls", modeltest.Limit: "length", modeltest.Declined: "content_filter"}

func used(a modeltest.Answer) any {
	if a.In == 0 && a.Out == 0 {
		return nil
	}
	return object{"prompt_tokens": a.In, "completion_tokens": a.Out}
}

func TestContract(t *testing.T) { modeltest.RunOverHTTP(t, dialect) }

func FuzzAnswer(f *testing.F) { modeltest.Fuzz(f, dialect) }
