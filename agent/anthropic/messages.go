package anthropic

import (
	"fmt"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"parley/agent"
	"parley/agent/provider"
	"parley/store"
)

// begun stands in for the lead where a session, or what is left of it, begins with the agent: the first message must be the
// user's.
const begun = "(The conversation goes on from here.)"

// conversation is messages of alternating roles.
type conversation []anthropic.MessageParam

// add says something in a role. What is empty is left out: the API refuses it.
func (c *conversation) add(role anthropic.MessageParamRole, blocks ...anthropic.ContentBlockParamUnion) {
	if len(blocks) == 0 {
		return
	}
	if last := len(*c) - 1; last >= 0 && (*c)[last].Role == role {
		(*c)[last].Content = append((*c)[last].Content, blocks...)
		return
	}
	*c = append(*c, anthropic.MessageParam{Role: role, Content: blocks})
}

// messages is the session and the turn's steps as the Messages API puts them.
func messages(req agent.Request) []anthropic.MessageParam {
	const user, assistant = anthropic.MessageParamRoleUser, anthropic.MessageParamRoleAssistant
	var out conversation
	for i, m := range req.Messages {
		role := assistant
		if m.Author == store.AuthorLead {
			role = user
		} else if i == 0 {
			out.add(user, anthropic.NewTextBlock(begun))
		}
		out.add(role, text(m.Text)...)
	}
	for n, step := range req.Steps {
		said, ids := text(step.Text), map[string]string{}
		for i, call := range step.Calls {
			ids[call.ID] = fmt.Sprintf("call_%d_%d", n+1, i+1)
			said = append(said, anthropic.NewToolUseBlock(ids[call.ID], provider.Arguments(call.Arguments), call.Name))
		}
		out.add(assistant, said...)
		var results []anthropic.ContentBlockParamUnion
		for _, result := range step.Results {
			results = append(results, anthropic.NewToolResultBlock(ids[result.CallID], result.Fenced(), result.Failed))
		}
		out.add(user, results...)
	}
	return out
}

func text(s string) []anthropic.ContentBlockParamUnion {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	return []anthropic.ContentBlockParamUnion{anthropic.NewTextBlock(s)}
}

func tools(tools []agent.Tool) []anthropic.ToolUnionParam {
	var out []anthropic.ToolUnionParam
	for _, t := range tools {
		tool := &anthropic.ToolParam{Name: t.Name, InputSchema: param.Override[anthropic.ToolInputSchemaParam](provider.Schema(t.Parameters))}
		if t.Description != "" {
			tool.Description = anthropic.String(t.Description)
		}
		out = append(out, anthropic.ToolUnionParam{OfTool: tool})
	}
	return out
}
