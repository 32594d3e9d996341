package openai

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"parley/agent/provider"
)

// read gathers what the server says, to its end or to what is wrong with it.
func read(stream *ssestream.Stream[openai.ChatCompletionChunk], call *provider.Call, answer *provider.Answer) error {
	defer func() { _ = stream.Close() }()
	g := gatherer{answer: answer, at: map[int64]int{}}
	for stream.Next() {
		if err := g.chunk(stream.Current()); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if call.Whole == nil {
		return g.end()
	}
	var whole openai.ChatCompletion
	if err := json.Unmarshal(call.Whole, &whole); err != nil {
		return err
	}
	if err := g.whole(whole); err != nil {
		return err
	}
	return g.end()
}

type gatherer struct {
	answer  *provider.Answer
	at      map[int64]int // the call that is being told under an index
	refusal string
}

func (g *gatherer) chunk(chunk openai.ChatCompletionChunk) error {
	g.count(chunk.Model, chunk.Usage, chunk.JSON.Usage.Valid())
	for _, choice := range chunk.Choices {
		if choice.Index != 0 {
			continue // one was asked for
		}
		g.answer.Say(choice.Delta.Content)
		g.refuse(choice.Delta.Refusal)
		for _, part := range choice.Delta.ToolCalls {
			i, begun := g.at[part.Index]
			// Some servers tell all calls under index 0: another id is another call.
			if !begun || part.ID != "" && g.answer.ID(i) != "" && part.ID != g.answer.ID(i) {
				i = g.answer.Begin()
				g.at[part.Index] = i
			}
			g.answer.Continue(i, part.ID, part.Function.Name, part.Function.Arguments)
		}
		if err := g.stop(choice.FinishReason); err != nil {
			return err
		}
	}
	return nil
}

// whole is a chunk that holds everything.
func (g *gatherer) whole(answer openai.ChatCompletion) error {
	g.count(answer.Model, answer.Usage, answer.JSON.Usage.Valid())
	if len(answer.Choices) == 0 {
		return errors.New("the answer has no choices")
	}
	choice := answer.Choices[0]
	g.answer.Say(choice.Message.Content)
	g.refuse(choice.Message.Refusal)
	for _, call := range choice.Message.ToolCalls {
		g.answer.Continue(g.answer.Begin(), call.ID, call.Function.Name, call.Function.Arguments)
	}
	return g.stop(choice.FinishReason)
}

func (g *gatherer) count(model string, usage openai.CompletionUsage, counted bool) {
	if model != "" {
		g.answer.Model = model
	}
	if counted { // once, at the end, or again and again with all so far
		g.answer.In, g.answer.Out = usage.PromptTokens, usage.CompletionTokens
	}
}

// refuse takes the words of a model that would not answer: they are no reply.
func (g *gatherer) refuse(delta string) {
	if len(g.refusal) < maxRefusal {
		g.refusal += delta
	}
}

const maxRefusal = 512 // bytes of them that the log is told

func (g *gatherer) stop(reason string) error {
	switch reason {
	case "":
		return nil
	case "content_filter":
		g.answer.Stopped = ""
		return fmt.Errorf("%w: content_filter", provider.ErrDeclined)
	case "length":
		g.answer.Truncated = true
	}
	g.answer.Stopped = reason
	return nil
}

func (g *gatherer) end() error {
	if g.refusal != "" {
		g.answer.Stopped = ""
		return fmt.Errorf("%w: %s", provider.ErrDeclined, g.refusal)
	}
	return nil
}
