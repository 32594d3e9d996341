package anthropic

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/respjson"
	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	"parley/agent/provider"
)

// read gathers what the server says, to its end or to what is wrong with it.
func read(stream *ssestream.Stream[anthropic.MessageStreamEventUnion], call *provider.Call, answer *provider.Answer) error {
	defer func() { _ = stream.Close() }()
	g := gatherer{answer: answer, at: map[int64]int{}, input: -1}
	for !g.done && stream.Next() {
		if err := g.event(stream.Current()); err != nil {
			return err
		}
	}
	var told *anthropic.Error
	if err := stream.Err(); errors.As(err, &told) {
		return fmt.Errorf("an error event: %s", told.RawJSON()) // the SDK's own words repeat the address
	} else if err != nil {
		return err
	}
	if call.Whole == nil {
		return nil
	}
	var whole anthropic.Message
	if err := json.Unmarshal(call.Whole, &whole); err != nil {
		return err
	}
	return g.whole(whole)
}

type gatherer struct {
	answer *provider.Answer
	at     map[int64]int // the call that is the content block of an index
	done   bool

	input, written, cached int64 // tokens; input is -1 as long as there is no word of it
}

func (g *gatherer) event(event anthropic.MessageStreamEventUnion) error {
	switch event.Type {
	case "message_start":
		g.start(event.Message)
	case "content_block_start":
		switch block := event.ContentBlock; block.Type {
		case "text":
			g.answer.Say(block.Text)
		case "tool_use":
			g.at[event.Index] = g.answer.Begin()
			arguments := block.JSON.Input.Raw()
			if arguments == "{}" || arguments == respjson.Null {
				arguments = "" // they come piece by piece
			}
			g.answer.Continue(g.at[event.Index], block.ID, block.Name, arguments)
		}
	case "content_block_delta":
		switch event.Delta.Type {
		case "text_delta":
			g.answer.Say(event.Delta.Text)
		case "input_json_delta":
			i, begun := g.at[event.Index]
			if !begun {
				return errors.New("a call goes on that has not begun")
			}
			g.answer.Continue(i, "", "", event.Delta.PartialJSON)
		}
	case "message_delta":
		usage := event.Usage
		g.count(usage.JSON.InputTokens, &g.input, usage.InputTokens)
		g.count(usage.JSON.CacheCreationInputTokens, &g.written, usage.CacheCreationInputTokens)
		g.count(usage.JSON.CacheReadInputTokens, &g.cached, usage.CacheReadInputTokens)
		g.count(usage.JSON.OutputTokens, &g.answer.Out, usage.OutputTokens)
		return g.stop(event.Delta.StopReason)
	case "message_stop":
		g.done = true
	}
	return nil
}

// whole is a message that is not streamed.
func (g *gatherer) whole(message anthropic.Message) error {
	g.start(message)
	for _, block := range message.Content {
		switch block.Type {
		case "text":
			g.answer.Say(block.Text)
		case "tool_use":
			g.answer.Continue(g.answer.Begin(), block.ID, block.Name, string(block.Input))
		}
	}
	return g.stop(message.StopReason)
}

func (g *gatherer) start(message anthropic.Message) {
	g.answer.Model = message.Model
	usage := message.Usage
	g.count(usage.JSON.InputTokens, &g.input, usage.InputTokens)
	g.count(usage.JSON.CacheCreationInputTokens, &g.written, usage.CacheCreationInputTokens)
	g.count(usage.JSON.CacheReadInputTokens, &g.cached, usage.CacheReadInputTokens)
	g.count(usage.JSON.OutputTokens, &g.answer.Out, usage.OutputTokens)
}

// count takes a number of tokens if the server gave one: each is all so far, and the last one holds.
func (g *gatherer) count(field respjson.Field, of *int64, n int64) {
	if !field.Valid() {
		return
	}
	*of = n
	g.answer.In = -1
	if min(g.input, g.written, g.cached) >= 0 && max(g.input, g.written, g.cached) < 1<<40 { // or the sum might wrap
		g.answer.In = g.input + g.written + g.cached
	}
}

func (g *gatherer) stop(reason anthropic.StopReason) error {
	switch reason {
	case "":
		return nil
	case anthropic.StopReasonRefusal:
		g.answer.Stopped = ""
		return fmt.Errorf("%w: refusal", provider.ErrDeclined)
	case anthropic.StopReasonMaxTokens, anthropic.StopReasonModelContextWindowExceeded:
		g.answer.Truncated = true
	}
	g.answer.Stopped = string(reason)
	return nil
}
