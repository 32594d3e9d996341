package provider

import (
	"unicode/utf8"

	"parley/agent"
	"parley/store"
)

const (
	maxTokens = 1 << 30 // of a usage that is believed
	perToken  = 4       // characters, where the server does not count: OpenAI's rule of thumb for English
)

// usage is what the server counted, or an estimate if it did not, or counted nonsense.
func (c *Call) usage(a *Answer, reply agent.Reply) store.TokenUsage {
	if a.In >= 0 && a.Out >= 0 && a.In+a.Out > 0 && a.In <= maxTokens && a.Out <= maxTokens {
		return store.TokenUsage{InputTokens: int(a.In), OutputTokens: int(a.Out), Source: store.UsageProvider}
	}
	count := func(texts ...string) (n int) {
		for _, text := range texts {
			n += utf8.RuneCountInString(text)
		}
		return n
	}
	calls := func(calls []agent.Call) (n int) {
		for _, call := range calls {
			n += count(call.Name, string(call.Arguments))
		}
		return n
	}
	sent := count(c.request.System())
	for _, m := range c.request.Messages {
		sent += count(m.Text)
	}
	for _, t := range c.request.Tools {
		sent += count(t.Name, t.Description, string(t.Parameters))
	}
	for _, s := range c.request.Steps {
		sent += count(s.Text) + calls(s.Calls)
		for _, r := range s.Results {
			sent += count(r.Fenced())
		}
	}
	return store.TokenUsage{InputTokens: tokens(sent), OutputTokens: tokens(count(reply.Text) + calls(reply.Calls)), Source: store.UsageEstimated}
}

func tokens(characters int) int { return (characters + perToken - 1) / perToken }
