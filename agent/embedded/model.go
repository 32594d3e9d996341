package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"parley/agent"
	"parley/store"
)

// Name is what the model calls itself.
const Name = "embedded/extractive-1"

// cacheBytes is about what the indexes of agents may hold in memory: some 600 agents as large as the demo one, or five of the
// largest. Of one business those are as many as long as there is room, and otherwise one of the largest.
const cacheBytes = 64 << 20

// Config is what a Model is made with.
type Config struct {
	Latency time.Duration // how long it waits before it answers: for tests and demos
}

// Model is embedded/extractive-1. It is safe for concurrent use.
type Model struct {
	latency time.Duration
	indexes cache
}

// New makes a model.
func New(cfg Config) *Model {
	return &Model{latency: cfg.Latency, indexes: newCache(cacheBytes)}
}

// Generate implements agent.Model. It fails only when ctx ends.
func (m *Model) Generate(ctx context.Context, req agent.Request) (agent.Reply, error) {
	if err := wait(ctx, m.latency); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return agent.Reply{}, fmt.Errorf("%w: %w", agent.ErrModelTimeout, err)
		}
		return agent.Reply{}, err
	}
	reply := agent.Reply{Calls: calls(req), Model: Name, Usage: store.TokenUsage{Source: store.UsageNone}}
	switch {
	case slices.ContainsFunc(reply.Calls, func(c agent.Call) bool { return c.Name == store.HandoffTool }):
		reply.Text = HandedOff
	case len(reply.Calls) > 0:
		return reply, nil
	default:
		if reply.Text = found(req); reply.Text == "" {
			reply.Text = m.answer(req)
		}
	}
	if req.Text != nil {
		req.Text(reply.Text)
	}
	return reply, nil
}

// wait returns after d, or at once with ctx's error when that ends first.
func wait(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// answer finds what to say to the last message.
func (m *Model) answer(req agent.Request) string {
	limit := maxLength(req)
	if len(req.Messages) == 0 {
		return dontKnow(limit)
	}
	earlier, last := req.Messages[:len(req.Messages)-1], req.Messages[len(req.Messages)-1]
	said := firstWords(last.Text, mostWords)
	if polite, ok := courtesy(said); ok && fits(polite, limit) {
		return polite
	}
	x := m.indexes.index(req.Agent)
	for _, q := range x.readings(said, earlier) {
		if text := x.answer(q, limit); text != "" {
			return text
		}
	}
	return dontKnow(limit)
}

// maxLength is how long the reply may be on the request's channel, in characters; 0 for any length.
func maxLength(req agent.Request) int {
	for _, p := range req.Agent.ChannelProfiles {
		if p.Channel == req.Channel && p.MaxLength != nil {
			return *p.MaxLength
		}
	}
	return 0
}

func fits(text string, limit int) bool { return limit == 0 || utf8.RuneCountInString(text) <= limit }

// dontKnow is the longer of its two templates that fits, the shorter one if none does: a reply must not be empty.
func dontKnow(limit int) string {
	if fits(DontKnow, limit) {
		return DontKnow
	}
	return DontKnowShort
}
