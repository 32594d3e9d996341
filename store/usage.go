package store

import (
	"context"
	"fmt"
	"strings"
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
	// clockSlack is how far the instant in the id of a run, or of a conversation's message, may be from the instant of its row, which
	// is the database's: Tx.timely sees to it. So a span of ids holds all that is of a span of time, and what is older than twice that
	// by its id has been committed.
	clockSlack = 5 * time.Minute
	anHour     = Time(time.Hour / time.Microsecond)

	summedAtOnce = 2000 // rows of a kind a transaction
)

// timely is id, or, if its instant is too far from the transaction's, one of this moment: the replica's clock is off, or the write
// had to wait.
func (t *Tx) timely(prefix, id string) string {
	if id > FirstID(prefix, t.Now.Add(-clockSlack)) && id < FirstID(prefix, t.Now.Add(clockSlack)) {
		return id
	}
	now := FirstID(prefix, t.Now)
	return now[:len(prefix)+1+len("01234567-0123")] + id[len(prefix)+1+len("01234567-0123"):]
}

// Usage sums up what a business used from one instant, inclusive, to another, exclusive: at most 366 days. What began in that
// time counts. What is older than Config.Retention is known by the hour alone, which counts where it begins.
//
// It is the sum of whole hours, of rows that are in no sum yet, and of those in the hours that from and to divide.
func (s *Store) Usage(ctx context.Context, business string, from, to Time) (*Usage, error) {
	switch span := to.Sub(from); {
	case to <= from:
		return nil, valueError("to must be later than from").Under("to").Err()
	case span > maxUsageSpan:
		return nil, valueError("from and to may be 366 days apart").Under("to").Err()
	}
	now := s.Now()
	whole := to // hours that begin before it
	edges := [][2]Time{{from, min(to, from+(anHour-from%anHour)%anHour)}}
	if last := to - to%anHour; last >= from && last < to && to <= now && last >= now.Add(clockSlack-s.cfg.Retention) {
		whole, edges = last, append(edges, [2]Time{last, to})
	}
	// used is what kind used, as rows that sums can be made of.
	used := func(kind, prefix, columns, table, instant, sums string) *bun.RawQuery {
		query, args := "SELECT "+sums+" FROM usage_hours WHERE business_id = ? AND kind = ? AND hour >= ? AND hour < ?", []any{business, kind, from, whole}
		// rows adds those of a span of time, by a span of ids that ends or begins at the mark if that is nearer. Each of the span's ends
		// is one value: of two, SQLite goes by one, and reads what lies beyond the other.
		rows := func(from, to Time, summed bool) {
			first, last := FirstID(prefix, from.Add(-clockSlack)), FirstID(prefix, to.Add(clockSlack))
			span := "id > (SELECT CASE WHEN id > ? THEN id ELSE ? END FROM usage_marks WHERE kind = ?) AND id < ?"
			ids := []any{first, first, kind, last}
			if summed {
				span, ids = "id <= (SELECT CASE WHEN id < ? THEN id ELSE ? END FROM usage_marks WHERE kind = ?) AND id > ?", []any{last, last, kind, first}
			}
			query += " UNION ALL SELECT " + columns + " FROM " + table + " business_id = ? AND " + span + " AND " + instant + " >= ? AND " + instant + " < ?"
			args = append(append(append(args, business), ids...), from, to)
		}
		rows(from, to, false)
		for _, edge := range edges {
			if edge[0] < edge[1] {
				rows(edge[0], edge[1], true)
			}
		}
		return s.read.NewRaw(query, args...)
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
	err := s.read.NewRaw(`SELECT name, CAST(SUM(count) AS BIGINT) AS runs, CAST(SUM(input_tokens) AS BIGINT) AS input_tokens,
		CAST(SUM(output_tokens) AS BIGINT) AS output_tokens, CAST(SUM(whole) AS BIGINT) AS whole, CAST(SUM(rest) AS BIGINT) AS rest
		FROM (?) AS used GROUP BY name ORDER BY name`,
		used(usedByRuns, "run", "model, 1, input_tokens, output_tokens, cost / 1000000, cost % 1000000", "runs WHERE", "started_at",
			"name, count, input_tokens, output_tokens, whole, rest")).Scan(ctx, &models)
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
	err = s.read.NewRaw(`SELECT name AS channel, direction, CAST(SUM(count) AS BIGINT) AS count FROM (?) AS used GROUP BY name, direction ORDER BY name, direction`,
		used(usedByMessages, "msg", "channel, direction, 1", "messages WHERE conversation_id IS NOT NULL AND", "created_at", "name, direction, count")).
		Scan(ctx, &usage.ChannelMessages)
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

// What rows of a kind add to the sums of their hours; where says which.
const (
	sumRunsSQL = `INSERT INTO usage_hours (business_id, hour, kind, name, direction, count, input_tokens, output_tokens, whole, rest)
		SELECT business_id, started_at - started_at % 3600000000, 'run', model, '', COUNT(*), SUM(input_tokens), SUM(output_tokens),
			SUM(cost / 1000000), SUM(cost % 1000000)
		FROM runs WHERE {where} GROUP BY business_id, started_at - started_at % 3600000000, model` + addUsageSQL
	sumMessagesSQL = `INSERT INTO usage_hours (business_id, hour, kind, name, direction, count, input_tokens, output_tokens)
		SELECT business_id, created_at - created_at % 3600000000, 'message', channel, direction, COUNT(*), 0, 0
		FROM messages WHERE conversation_id IS NOT NULL AND {where}
		GROUP BY business_id, created_at - created_at % 3600000000, channel, direction` + addUsageSQL
)

func sumWhere(query, where string) string { return strings.Replace(query, "{where}", where, 1) }

// SumUsage adds the next rows to the sums of their hours, in the order of their ids, and says whether there may be more. It leaves
// those that something may still come before, and stops at a run that has not ended.
func (s *Store) SumUsage(ctx context.Context) (more bool, err error) {
	for _, kind := range []struct{ name, prefix, rows, sum, stop string }{
		{usedByRuns, "run", "runs WHERE", sumRunsSQL, "SELECT MIN(id) FROM runs WHERE status = 'running'"},
		{usedByMessages, "msg", "messages WHERE conversation_id IS NOT NULL AND", sumMessagesSQL, ""},
	} {
		err := s.InTx(ctx, func(ctx context.Context, t *Tx) error {
			mark, err := usageMark(ctx, t, kind.name)
			if err != nil {
				return err
			}
			before := FirstID(kind.prefix, t.Now.Add(-2*clockSlack)) // a transaction may take a while
			if kind.stop != "" {
				var running *string
				if err := t.NewRaw(kind.stop).Scan(ctx, &running); err != nil {
					return err
				}
				if running != nil {
					before = min(before, *running)
				}
			}
			var ids []string
			err = t.NewRaw("SELECT id FROM "+kind.rows+" id > ? AND id < ? ORDER BY id LIMIT ?", mark, before, summedAtOnce).Scan(ctx, &ids)
			if err != nil || len(ids) == 0 {
				return err
			}
			last := ids[len(ids)-1]
			if _, err := t.NewRaw(sumWhere(kind.sum, "id > ? AND id <= ?"), mark, last).Exec(ctx); err != nil {
				return err
			}
			more = more || len(ids) == summedAtOnce
			_, err = t.NewRaw("UPDATE usage_marks SET id = ? WHERE kind = ?", last, kind.name).Exec(ctx)
			return err
		})
		if err != nil {
			return false, fmt.Errorf("sum up what each %s used: %w", kind.name, err)
		}
	}
	return more, nil
}

// usageMark is the id up to which rows of a kind are in the sums. Until the transaction ends it stays.
func usageMark(ctx context.Context, t *Tx, kind string) (mark string, err error) {
	query := "SELECT id FROM usage_marks WHERE kind = ?"
	if t.remote {
		query += " FOR UPDATE"
	}
	if err := t.NewRaw(query, kind).Scan(ctx, &mark); err != nil {
		return "", fmt.Errorf("read how far the usage of each %s is summed up: %w", kind, err)
	}
	return mark, nil
}

// pruneRuns removes a batch of old runs. What of them is not in the sums of hours yet is added. On PostgreSQL it locks them first.
func pruneRuns(ctx context.Context, t *Tx, before Time) (int, error) {
	q := t.ForUpdate().Model((*Run)(nil)).Where("id < ? AND status <> ?", FirstID("run", before), RunRunning)
	return pruneUsed(ctx, t, q, "runs", usedByRuns, sumRunsSQL)
}

// pruneMessages removes a batch of old messages, as pruneRuns does runs.
func pruneMessages(ctx context.Context, t *Tx, before Time) (int, error) {
	q := t.ForUpdate().Model((*Message)(nil)).Where("id < ?", FirstID("msg", before))
	return pruneUsed(ctx, t, q, "messages", usedByMessages, sumMessagesSQL)
}

func pruneUsed(ctx context.Context, t *Tx, q *bun.SelectQuery, table, kind, sum string) (int, error) {
	mark, err := usageMark(ctx, t, kind)
	if err != nil {
		return 0, err
	}
	var ids []string
	if err := q.Column("id").Order("id").Limit(prunedAtOnce).Scan(ctx, &ids); err != nil {
		return 0, fmt.Errorf("read which %s are too old: %w", table, err)
	}
	if len(ids) == 0 {
		return 0, nil
	}
	if _, err := t.NewRaw(sumWhere(sum, "id IN (?) AND id > ?"), bun.List(ids), mark).Exec(ctx); err != nil {
		return 0, fmt.Errorf("sum up %d %s: %w", len(ids), table, err)
	}
	if _, err := t.NewRaw("DELETE FROM "+table+" WHERE id IN (?)", bun.List(ids)).Exec(ctx); err != nil {
		return 0, fmt.Errorf("remove %d %s: %w", len(ids), table, err)
	}
	return len(ids), nil
}
