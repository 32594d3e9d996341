package openai

import (
	"github.com/openai/openai-go/v3"

	"parley/agent"
	"parley/agent/provider"
	"parley/store"
)

// messages is the request as chat completions put it.
func messages(req agent.Request) []openai.ChatCompletionMessageParamUnion {
	out := make([]openai.ChatCompletionMessageParamUnion, 0, len(req.Messages)+1)
	if system := req.System(); system != "" {
		out = append(out, openai.SystemMessage(system))
	}
	for _, m := range req.Messages {
		if m.Author == store.AuthorLead {
			out = append(out, openai.UserMessage(m.Text))
		} else {
			out = append(out, openai.AssistantMessage(m.Text))
		}
	}
	for _, step := range req.Steps {
		said := new(openai.ChatCompletionAssistantMessageParam)
		if step.Text != "" || len(step.Calls) == 0 {
			said.Content.OfString = openai.String(step.Text)
		}
		for _, call := range step.Calls {
			function := openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: call.Name, Arguments: string(provider.Arguments(call.Arguments))}
			said.ToolCalls = append(said.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
				OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{ID: call.ID, Function: function},
			})
		}
		out = append(out, openai.ChatCompletionMessageParamUnion{OfAssistant: said})
		for _, result := range step.Results {
			content := result.Fenced()
			if result.Failed {
				content = "The call failed: " + content // chat completions have no other way to say so
			}
			out = append(out, openai.ToolMessage(content, result.CallID))
		}
	}
	return out
}

func tools(tools []agent.Tool) []openai.ChatCompletionToolUnionParam {
	var out []openai.ChatCompletionToolUnionParam
	for _, t := range tools {
		function := openai.FunctionDefinitionParam{Name: t.Name, Parameters: provider.Schema(t.Parameters)}
		if t.Description != "" {
			function.Description = openai.String(t.Description)
		}
		out = append(out, openai.ChatCompletionFunctionTool(function))
	}
	return out
}
