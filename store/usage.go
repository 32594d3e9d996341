package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"
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

// LLMUsage is the usage of the runs that one model ended, failed ones and running ones too. A run is counted whole, with the model
// of its last step, for the sums of hours know no steps; its cost is that of each step at its own model's price.
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

// Usage sums up what a business used from one instant, inclusive, to another, exclusive: at most 366 days. What began in that
// time counts. What is older than Config.Retention is known by the hour alone, which counts where it begins.
func (s *Store) Usage(ctx context.Context, business string, from, to Time) (*Usage, error) {
	switch span := to.Sub(from); {
	case to <= from:
		return nil, valueError("to must be later than from").Under("to").Err()
	case span > maxUsageSpan:
		return nil, valueError("from and to may be 366 days apart").Under("to").Err()
	}
	within := func(prefix, kind string) []any {
		first, last := FirstID(prefix, from.Add(-clockSlack)), FirstID(prefix, to.Add(clockSlack))
		return []any{business, first, last, from, to, business, kind, from, to}
	}
	usage := &Usage{LLM: []LLMUsage{}, ChannelMessages: []ChannelMessageUsage{}}
	var models []struct {
		Model        string `bun:"name"`
		Runs         int    `bun:"runs"`
		InputTokens  int    `bun:"input_tokens"`
		OutputTokens int    `bun:"output_tokens"`
		Whole        *int64 `bun:"whole"` // of the cost, and what is left of it: their sums cannot overflow
		Rest         *int64 `bun:"rest"`
	}
	err := s.read.NewRaw(`SELECT name, CAST(SUM(n) AS BIGINT) AS runs, CAST(SUM(input_tokens) AS BIGINT) AS input_tokens,
		CAST(SUM(output_tokens) AS BIGINT) AS output_tokens, CAST(SUM(whole) AS BIGINT) AS whole, CAST(SUM(rest) AS BIGINT) AS rest FROM (
			SELECT model AS name, 1 AS n, input_tokens, output_tokens, cost / 1000000 AS whole, cost % 1000000 AS rest FROM runs
				WHERE business_id = ? AND id >= ? AND id < ? AND started_at >= ? AND started_at < ?
			UNION ALL SELECT name, count, input_tokens, output_tokens, whole, rest FROM usage_hours
				WHERE business_id = ? AND kind = ? AND hour >= ? AND hour < ?
		) AS used GROUP BY name ORDER BY name`, within("run", usedByRuns)...).Scan(ctx, &models)
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
	err = s.read.NewRaw(`SELECT channel, direction, CAST(SUM(n) AS BIGINT) AS count FROM (
			SELECT channel, direction, 1 AS n FROM messages
				WHERE business_id = ? AND conversation_id IS NOT NULL AND id >= ? AND id < ? AND created_at >= ? AND created_at < ?
			UNION ALL SELECT name, direction, count FROM usage_hours WHERE business_id = ? AND kind = ? AND hour >= ? AND hour < ?
		) AS used GROUP BY channel, direction ORDER BY channel, direction`, within("msg", usedByMessages)...).Scan(ctx, &usage.ChannelMessages)
	if err != nil {
		return nil, fmt.Errorf("count the channel messages of %s: %w", business, err)
	}
	return usage, nil
}

// The kinds of rows in usage_hours: what runs used, by model, and messages, by channel and direction.
const (
	usedByRuns     = "run"
	usedByMessages = "message"
)

// keptUsage is how long the sums of hours are kept: for this year and the last one.
const keptUsage = 2 * maxUsageSpan

const addUsageSQL = ` ON CONFLICT (business_id, hour, kind, name, direction) DO UPDATE SET count = usage_hours.count + EXCLUDED.count,
	input_tokens = usage_hours.input_tokens + EXCLUDED.input_tokens, output_tokens = usage_hours.output_tokens + EXCLUDED.output_tokens,
	whole = COALESCE(usage_hours.whole + EXCLUDED.whole, usage_hours.whole, EXCLUDED.whole),
	rest = COALESCE(usage_hours.rest + EXCLUDED.rest, usage_hours.rest, EXCLUDED.rest)`

// pruneRuns removes a batch of old runs, and adds what they used to the sums of their hours. On PostgreSQL it locks them first:
// two servers that prune at once must not both add them.
func pruneRuns(ctx context.Context, t *Tx, before Time) (int, error) {
	q := t.ForUpdate().Model((*Run)(nil)).Where("id < ? AND status <> ?", FirstID("run", before), RunRunning)
	return pruneUsed(ctx, t, q, "runs", `INSERT INTO usage_hours (business_id, hour, kind, name, direction, count, input_tokens, output_tokens, whole, rest)
		SELECT business_id, started_at - started_at % 3600000000, 'run', model, '', COUNT(*), SUM(input_tokens), SUM(output_tokens),
			SUM(cost / 1000000), SUM(cost % 1000000)
		FROM runs WHERE id IN (?) GROUP BY business_id, started_at - started_at % 3600000000, model`+addUsageSQL)
}

// pruneMessages removes a batch of old messages, and counts those of conversations, as pruneRuns does.
func pruneMessages(ctx context.Context, t *Tx, before Time) (int, error) {
	q := t.ForUpdate().Model((*Message)(nil)).Where("id < ?", FirstID("msg", before))
	return pruneUsed(ctx, t, q, "messages", `INSERT INTO usage_hours (business_id, hour, kind, name, direction, count, input_tokens, output_tokens)
		SELECT business_id, created_at - created_at % 3600000000, 'message', channel, direction, COUNT(*), 0, 0
		FROM messages WHERE id IN (?) AND conversation_id IS NOT NULL
		GROUP BY business_id, created_at - created_at % 3600000000, channel, direction`+addUsageSQL)
}

func pruneUsed(ctx context.Context, t *Tx, q *bun.SelectQuery, table, add string) (int, error) {
	var ids []string
	if err := q.Column("id").Order("id").Limit(prunedAtOnce).Scan(ctx, &ids); err != nil {
		return 0, fmt.Errorf("read which %s are too old: %w", table, err)
	}
	if len(ids) == 0 {
		return 0, nil
	}
	for _, query := range []string{add, "DELETE FROM " + table + " WHERE id IN (?)"} {
		if _, err := t.NewRaw(query, bun.List(ids)).Exec(ctx); err != nil {
			return 0, fmt.Errorf("remove %d %s: %w", len(ids), table, err)
		}
	}
	return len(ids), nil
}
