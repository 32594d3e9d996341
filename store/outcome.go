package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/uptrace/bun"
)

// Outcome is what became of one attempt: the attempt, and the state that the delivery passes into.
type Outcome struct {
	Job     *Job
	Attempt *Attempt // nil: nothing was sent, the endpoint being disabled
	Status  DeliveryStatus
	Next    *Time  // of a retry
	Disable string // why the endpoint is to be disabled; empty: it is not

	document string // the attempt, where it is to stand in the delivery's row
}

const outcomesSQL = `UPDATE deliveries SET attempts = new.attempts, leased = FALSE, updated_at = new.updated_at,
	status = CASE WHEN deliveries.status = 'delivered' THEN 'delivered'
		WHEN deliveries.next_attempt_at IS NULL AND new.next IS NOT NULL THEN 'failed' ELSE new.status END,
	next_attempt_at = CASE WHEN deliveries.next_attempt_at IS NULL THEN NULL ELSE new.next END
	FROM {rows} WHERE deliveries.id = new.id AND deliveries.attempts = new.seen AND deliveries.trigger_name = new.why
	AND (deliveries.status <> 'delivered' OR deliveries.next_attempt_at IS NOT NULL)`

// What an outcome changes; seen are the attempts made before it.
var outcomeColumns = []column{
	{"id", "text"}, {"seen", "bigint"}, {"why", "text"}, {"attempts", "bigint"}, {"status", "text"}, {"next", "bigint"}, {"updated_at", "bigint"},
}

// Record writes outcomes, their attempts, and what they mean for the endpoints, in one transaction. An outcome counts only
// under a hold on the shard that is still good, and if nobody wrote another one, or had it sent again, since the job was read;
// it returns the ids of the deliveries that changed, and the businesses of endpoints that are disabled now. A retry of a delivery that was ended meanwhile (its endpoint was disabled
// or deleted) is not revived, and what was delivered once stays delivered.
//
// Rows are locked in the order of shards, endpoints, replays, fan-outs, deliveries, as they are by whoever disables an endpoint.
func (s *Store) Record(_ context.Context, outcomes []*Outcome) (changed, disabled []string, err error) {
	outcomes = firstOutcomes(outcomes)
	jobs := make([]*Job, len(outcomes))
	size := 256 * len(outcomes)
	for i, o := range outcomes {
		jobs[i] = o.Job
		if err := o.write(); err != nil {
			return nil, nil, err
		}
		if o.Attempt != nil && o.Attempt.ResponseBody != nil {
			size += len(*o.Attempt.ResponseBody)
		}
	}
	var born rowsMade
	err = s.worker.do(size, func(ctx context.Context, t *tx) error {
		changed, disabled, born = nil, nil, rowsMade{}
		good, err := stillHeld(ctx, t, s.remote(), holdsOf(jobs))
		if err != nil {
			return err
		}
		held := slices.DeleteFunc(slices.Clone(outcomes), func(o *Outcome) bool { return !slices.Contains(good, o.Job.Shard) })
		if len(held) == 0 {
			return nil
		}
		of, err := s.readHealth(ctx, t, outcomes)
		if err == nil {
			err = lockReplays(ctx, t, outcomes)
		}
		if err != nil {
			return err
		}
		heldJobs := make([]*Job, len(held))
		for i, o := range held {
			heldJobs[i] = o.Job
		}
		if born, err = s.writeBorn(ctx, t, heldJobs, func(i int) []any { return held[i].born(t.now) }); err != nil {
			return err
		}
		changed = slices.Collect(maps.Keys(born.ids))
		rest := slices.DeleteFunc(held, func(o *Outcome) bool { return born.ids[o.Job.DeliveryID] })
		_, err = t.run(ctx, s.outcomesSQL, some{len(rest), func(i int) ([]any, error) { return rest[i].row(t.now), nil }}, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			changed = append(changed, id)
			return err
		})
		if err != nil {
			return fmt.Errorf("record %d outcomes: %w", len(rest), err)
		}
		written := made(outcomes, changed)
		for _, o := range written {
			t.change(o.Job.BusinessID, o.Job.DeliveryID)
		}
		if err := recordAttempts(ctx, t, slices.DeleteFunc(slices.Clone(written), func(o *Outcome) bool {
			return born.ids[o.Job.DeliveryID] && o.document != ""
		})); err != nil {
			return err
		}
		if err := countSent(ctx, t, written); err != nil {
			return err
		}
		disabled, err = of.record(ctx, t, written, s.cfg.EndpointGrace)
		return err
	})
	if err == nil {
		born.commit()
	}
	if len(disabled) > 0 {
		s.endSoon()
	}
	return changed, disabled, err
}

// born is the row of a delivery that has none yet, as the outcome leaves it.
func (o *Outcome) born(now Time) []any {
	attempts := 0
	if o.Attempt != nil {
		attempts = o.Attempt.Number
	}
	return o.Job.born(o.Status, attempts, o.Next, now, o.document)
}

const inRow = 2 << 10 // bytes of an attempt that may stand in its delivery's row: it makes no row long, and no batch large

// write makes the document of a first attempt that may find its delivery without a row.
func (o *Outcome) write() error {
	a := o.Attempt
	if o.Job.birth == nil || a == nil || a.ResponseBody != nil && len(*a.ResponseBody) > inRow {
		return nil
	}
	b, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("write an attempt of %s: %w", o.Job.DeliveryID, err)
	}
	if len(b) <= inRow {
		o.document = string(b)
	}
	return nil
}

// row is the outcome as outcomeColumns has it.
func (o *Outcome) row(now Time) []any {
	attempts := o.Job.Attempts
	if o.Attempt != nil {
		attempts = o.Attempt.Number
	}
	var next any
	if o.Next != nil {
		next = int64(*o.Next)
	}
	return []any{o.Job.DeliveryID, int64(o.Job.Attempts), string(o.Job.Trigger), int64(attempts), string(o.Status), next, int64(now)}
}

// made are the outcomes of the deliveries that changed.
func made(outcomes []*Outcome, changed []string) []*Outcome {
	done := make(map[string]bool, len(changed))
	for _, id := range changed {
		done[id] = true
	}
	out := make([]*Outcome, 0, len(changed))
	for _, o := range outcomes {
		if done[o.Job.DeliveryID] {
			out = append(out, o)
		}
	}
	return out
}

func recordAttempts(ctx context.Context, t *tx, outcomes []*Outcome) error {
	var attempts []*Attempt
	for _, o := range outcomes {
		if o.Attempt != nil {
			attempts = append(attempts, o.Attempt)
		}
	}
	return insert(ctx, t, attempts)
}

// firstOutcomes keeps one outcome a delivery: after an outage longer than a lease two can wait to be written.
func firstOutcomes(outcomes []*Outcome) []*Outcome {
	seen := make(map[string]bool, len(outcomes))
	first := make([]*Outcome, 0, len(outcomes))
	for _, o := range outcomes {
		if !seen[o.Job.DeliveryID] {
			seen[o.Job.DeliveryID] = true
			first = append(first, o)
		}
	}
	return first
}

// lockReplays locks the replays that outcomes belong to, where there are other writers.
func lockReplays(ctx context.Context, t *tx, outcomes []*Outcome) error {
	var ids []string
	for _, o := range outcomes {
		if o.Job.ReplayID != nil {
			ids = append(ids, *o.Job.ReplayID)
		}
	}
	if !t.remote || len(ids) == 0 {
		return nil
	}
	var locked []string
	if err := t.forUpdate().Model((*Replay)(nil)).Column("id").Where("id IN (?)", bun.List(distinct(ids))).Order("id").Scan(ctx, &locked); err != nil {
		return fmt.Errorf("lock %d replays: %w", len(ids), err)
	}
	return nil
}

// countSent counts the deliveries of replays of which the first attempt was made.
func countSent(ctx context.Context, t *tx, outcomes []*Outcome) error {
	sent := map[string]int{}
	for _, o := range outcomes {
		if o.Attempt != nil && o.Job.ReplayID != nil && o.Job.Attempts == o.Job.Base {
			sent[*o.Job.ReplayID]++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(sent)) {
		if _, err := t.NewRaw("UPDATE replays SET sent = sent + ? WHERE id = ?", sent[id], id).Exec(ctx); err != nil {
			return fmt.Errorf("count what replay %s has sent: %w", id, err)
		}
	}
	return nil
}

// health is since when each of some endpoints has been failing: since the first delivery that failed for good after the last
// success. Those that do not fail are not in it.
type health map[string]Time

const healthSQL = `SELECT id, failing_since FROM endpoints WHERE id IN ({ids}) AND (failing_since IS NOT NULL OR id IN ({ids})) ORDER BY id`

// readHealth reads, and where there are other writers locks, the endpoints that outcomes may change: those that fail now, and
// those that did and may have recovered.
func (s *Store) readHealth(ctx context.Context, t *tx, outcomes []*Outcome) (health, error) {
	failed, all := map[string]bool{}, map[string]bool{}
	for _, o := range outcomes {
		if o.counts() {
			all[o.Job.EndpointID] = true
			if o.Status == Failed || o.Disable != "" {
				failed[o.Job.EndpointID] = true
			}
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	of := make(health)
	_, err := t.query(ctx, s.healthSQL, []any{s.idsArg(slices.Sorted(maps.Keys(all))), s.idsArg(slices.Sorted(maps.Keys(failed)))}, func(scan func(...any) error) error {
		var id string
		var since *Time
		err := scan(&id, &since)
		if since != nil {
			of[id] = *since
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the health of %d endpoints: %w", len(all), err)
	}
	return of, nil
}

// counts says whether the outcome tells of the endpoint's health: a success, or a delivery that failed for good. Tests do not,
// and a retry that is still to come says nothing yet.
func (o *Outcome) counts() bool {
	return o.Attempt != nil && o.Job.Trigger != TriggerTest && (o.Attempt.Error == nil || o.Status == Failed)
}

// record writes what outcomes mean for their endpoints, and disables those that have failed for as long as grace without one
// success, or asked for it. It returns the businesses of those that it has disabled.
func (of health) record(ctx context.Context, t *tx, outcomes []*Outcome, grace time.Duration) ([]string, error) {
	was := maps.Clone(of)
	business, touched := map[string]string{}, map[string]bool{}
	late, asked := map[string]string{}, map[string]string{} // why they are to be disabled
	gone := map[string]string{}                             // the addresses that asked for it
	for _, o := range outcomes {
		id := o.Job.EndpointID
		business[id] = o.Job.BusinessID
		if o.Disable != "" {
			asked[id], gone[id] = o.Disable, o.Job.URL
		}
		if !o.counts() {
			continue
		}
		touched[id] = true
		since, failing := of[id]
		switch {
		case o.Attempt.Error == nil:
			delete(of, id)
			delete(late, id)
		case !failing:
			of[id] = t.now
		case t.now.Sub(since) >= grace:
			late[id] = fmt.Sprintf("no delivery has succeeded for %v; the last one failed with %s", t.now.Sub(since).Round(time.Second), *o.Attempt.Error)
		}
	}
	maps.Copy(late, asked)
	for _, id := range slices.Sorted(maps.Keys(touched)) {
		since, failing := of[id]
		if before, did := was[id]; did == failing && before == since {
			continue
		}
		var value *Time
		if failing {
			value = &since
		}
		if _, err := t.NewRaw("UPDATE endpoints SET failing_since = ? WHERE id = ?", value, id).Exec(ctx); err != nil {
			return nil, fmt.Errorf("write the health of endpoint %s: %w", id, err)
		}
	}
	var disabled []string
	for _, id := range slices.Sorted(maps.Keys(late)) {
		if err := disableEndpoint(ctx, t, id, late[id], gone[id]); err != nil {
			return nil, err
		}
		disabled = append(disabled, business[id])
	}
	return disabled, nil
}

// disableEndpoint disables an endpoint, unless it is disabled already or, where an address asked for it, has another one by now.
func disableEndpoint(ctx context.Context, t *tx, id, reason, gone string) error {
	res, err := t.NewRaw("UPDATE endpoints SET status = ?, disabled_reason = ? WHERE id = ? AND status = ? AND (? = '' OR url = ?)",
		Disabled, reason, id, Enabled, gone, gone).Exec(ctx)
	if err != nil {
		return fmt.Errorf("disable endpoint %s: %w", id, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	return endDeliveries(ctx, t, id, endpointDisabled)
}
