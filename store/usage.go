package store

import (
	"context"
	"fmt"
	"time"
)

// Price is what a model costs, in millionths of the operator's currency for a million tokens: 0.40 is 400,000. A token so
// costs a whole number of millionths of a millionth, which is what Run.Cost counts in. Costs are exact, and their sums too;
// an int64 holds nine million of the currency a run.
type Price struct {
	Input  int64
	Output int64
}

// costUnit is how many units of Run.Cost make one of the currency.
const costUnit = 1_000_000 * 1_000_000

// cost is what the steps of a run cost at the prices of the moment; nil if no model of them has one.
func (s *Store) cost(steps []RunStep) *int64 {
	var sum *int64
	for _, step := range steps {
		price, ok := s.cfg.Price(step.Model)
		if !ok {
			continue
		}
		if sum == nil {
			sum = new(int64)
		}
		*sum += price.Input*int64(step.Usage.InputTokens) + price.Output*int64(step.Usage.OutputTokens)
	}
	return sum
}

// Usage is what a business used in a span of time: language models by their runs' tokens, and apart from them the messages
// on its channels. A chat is a run, and its messages travel on no channel.
type Usage struct {
	LLM             []LLMUsage
	ChannelMessages []ChannelMessageUsage
}

// LLMUsage is the usage of one model: of the runs that it answered, failed ones and running ones too.
type LLMUsage struct {
	Model        string
	Runs         int
	InputTokens  int
	OutputTokens int
	Cost         *float64 // at the prices when each run ended, of those that had one; nil if none had
}

// TotalTokens is the sum of both directions.
func (u LLMUsage) TotalTokens() int { return u.InputTokens + u.OutputTokens }

// ChannelMessageUsage counts the messages of conversations on one channel in one direction.
type ChannelMessageUsage struct {
	Channel   Channel
	Direction Direction
	Count     int
}

const (
	maxUsageSpan = 366 * 24 * time.Hour
	// clockSlack is how far the instant in an id, by the clock of the replica that made it, may be from the instant of its row,
	// by the database's. An index by id narrows a search down to so much; the row's own instant decides.
	clockSlack = time.Hour
)

// Usage sums up what a business used from one instant, inclusive, to another, exclusive: at most 366 days, and as far back
// as Config.Retention reaches. What began in that time counts.
func (s *Store) Usage(ctx context.Context, business string, from, to Time) (*Usage, error) {
	switch span := to.Sub(from); {
	case to <= from:
		return nil, valueError("to must be later than from").Under("to").Err()
	case span > maxUsageSpan:
		return nil, valueError("from and to may be 366 days apart").Under("to").Err()
	}
	within := func(prefix string) []any {
		return []any{business, firstID(prefix, from.Add(-clockSlack)), firstID(prefix, to.Add(clockSlack)), from, to}
	}
	usage := &Usage{LLM: []LLMUsage{}, ChannelMessages: []ChannelMessageUsage{}}
	var models []struct {
		Model        string `bun:"model"`
		Runs         int    `bun:"runs"`
		InputTokens  int    `bun:"input_tokens"`
		OutputTokens int    `bun:"output_tokens"`
		Whole        *int64 `bun:"whole"` // of the cost, and what is left of it: their sums cannot overflow
		Rest         *int64 `bun:"rest"`
	}
	err := s.read.NewRaw(`SELECT model, COUNT(*) AS runs, CAST(SUM(input_tokens) AS BIGINT) AS input_tokens,
		CAST(SUM(output_tokens) AS BIGINT) AS output_tokens, CAST(SUM(cost / 1000000) AS BIGINT) AS whole, CAST(SUM(cost % 1000000) AS BIGINT) AS rest
		FROM runs WHERE business_id = ? AND id >= ? AND id < ? AND started_at >= ? AND started_at < ? GROUP BY model ORDER BY model`,
		within("run")...).Scan(ctx, &models)
	if err != nil {
		return nil, fmt.Errorf("sum up the runs of %s: %w", business, err)
	}
	for _, m := range models {
		llm := LLMUsage{Model: m.Model, Runs: m.Runs, InputTokens: m.InputTokens, OutputTokens: m.OutputTokens}
		if m.Whole != nil && m.Rest != nil {
			cost := (float64(*m.Whole)*1_000_000 + float64(*m.Rest)) / costUnit
			llm.Cost = &cost
		}
		usage.LLM = append(usage.LLM, llm)
	}
	err = s.read.NewRaw(`SELECT channel, direction, COUNT(*) AS count FROM messages
		WHERE business_id = ? AND conversation_id IS NOT NULL AND id >= ? AND id < ? AND created_at >= ? AND created_at < ?
		GROUP BY channel, direction ORDER BY channel, direction`, within("msg")...).Scan(ctx, &usage.ChannelMessages)
	if err != nil {
		return nil, fmt.Errorf("count the channel messages of %s: %w", business, err)
	}
	return usage, nil
}
