package hook

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"parley/store"
)

// Outcome is what became of one attempt, and the state that the delivery passes into.
type Outcome struct {
	Job     *Job
	Hold    Hold     // under which it was made
	Attempt *Attempt // nil: nothing was sent, the delivery being over
	URL     string   // where it was sent
	Status  store.DeliveryStatus
	Next    *store.Time // of a retry
	Disable string      // why the endpoint is to be disabled; empty: it is not
}

// Recorded is what Record has changed.
type Recorded struct {
	Changed  map[string][]string // the ids of deliveries, by business
	Disabled []string            // businesses of endpoints that were disabled
	Health   []HealthChange
}

// HealthChange is how outcomes have changed an endpoint: it fails from now on, or no longer, or it
// was disabled.
type HealthChange struct {
	EndpointID, BusinessID string
	To                     Health
	Why                    string // the last failure, or why it was disabled
}

// Health is what an endpoint has come to.
type Health string

// The states of an endpoint's health.
const (
	Failing   Health = "failing"
	Recovered Health = "recovered"
	Disabled  Health = "disabled"
)

// Record writes outcomes, their attempts, and what they mean for the endpoints, in one transaction. An outcome counts only
// under a hold that is still good, and once. A retry of a delivery that is over by now is not revived, and what was
// delivered once stays delivered.
func (h *Hooks) Record(_ context.Context, outcomes []*Outcome) (Recorded, error) {
	// Rows are locked in the order of their keys.
	outcomes = slices.SortedFunc(slices.Values(outcomes), func(a, b *Outcome) int {
		return cmp.Or(strings.Compare(a.Job.EndpointID, b.Job.EndpointID), cmp.Compare(a.Job.Seq, b.Job.Seq))
	})
	var rec *record
	size := 256 * len(outcomes)
	for _, o := range outcomes {
		if o.Attempt != nil && o.Attempt.ResponseBody != nil {
			size += len(*o.Attempt.ResponseBody)
		}
	}
	err := h.store.WriteAside(&store.Write{
		Size:  size,
		Read:  func(t *store.Tx) { rec = newRecord(h, t, outcomes) },
		Apply: func(ctx context.Context, t *store.Tx) error { return rec.apply(ctx, t) },
	})
	if err != nil {
		return Recorded{}, err
	}
	return rec.done, nil
}

// record is the writing of some outcomes.
type record struct {
	h         *Hooks
	outcomes  []*Outcome
	held      map[Hold]bool
	endpoints map[string]*health
	settled   []bool  // the outcomes that changed their rows
	numbers   []int64 // and how many attempts there have been with them
	done      Recorded
}

// health is an endpoint's, locked.
type health struct {
	failingSince *store.Time
	was          *store.Time
	failure      string // the last one
	url          string
}

// newRecord queues the locks, of shards, endpoints and replays, and the rows' updates.
func newRecord(h *Hooks, t *store.Tx, outcomes []*Outcome) *record {
	r := &record{h: h, outcomes: outcomes, held: map[Hold]bool{}, endpoints: map[string]*health{}, settled: make([]bool, len(outcomes)), numbers: make([]int64, len(outcomes))}
	r.done.Changed = map[string][]string{}
	share, update := "", ""
	if t.Remote() {
		share, update = " FOR KEY SHARE", " FOR NO KEY UPDATE"
	}
	replays := map[string]bool{}
	for i, o := range outcomes {
		if _, asked := r.held[o.Hold]; !asked {
			r.held[o.Hold] = false
			// Who takes or gives a shard locks its key, and only they do; to renew it does not wait for this, nor this for that.
			t.Lock(store.LockShards, fmt.Sprintf("%02d", o.Hold.Shard), `SELECT shard FROM shards WHERE shard = $1 AND token = $2`+share,
				[]any{int64(o.Hold.Shard), o.Hold.Token}, func(scan func(...any) error) error {
					var shard int64
					r.held[o.Hold] = true
					return scan(&shard)
				})
		}
		if r.endpoints[o.Job.EndpointID] == nil {
			p := new(health)
			r.endpoints[o.Job.EndpointID] = p
			t.Lock(store.LockEndpoints, o.Job.EndpointID, `SELECT url, failing_since FROM endpoints WHERE id = $1`+update,
				[]any{o.Job.EndpointID}, func(scan func(...any) error) error {
					err := scan(&p.url, &p.failingSince)
					p.was = p.failingSince
					return err
				})
		}
		if id := o.Job.ReplayID; id != nil && !replays[*id] {
			replays[*id] = true
			t.Lock(store.LockEndpoints, "~"+*id, `SELECT id FROM replays WHERE id = $1`+update, []any{*id},
				func(scan func(...any) error) error { var id string; return scan(&id) })
		}
		t.Bulk(store.LockDeliveries, fmt.Sprintf("%s %020d", o.Job.EndpointID, o.Job.Seq), o.form(), o.row(t.Now), func(scan func(...any) error) error {
			r.settled[i] = true
			return scan(&r.numbers[i])
		})
	}
	return r
}

// overSQL says of a delivery d that waits whether it is over by the rule: its endpoint is gone, or was disabled since.
const overSQL = `COALESCE((SELECT e.deleted_at IS NOT NULL OR e.epoch > d.epoch AND d.trigger_name <> 'test' FROM endpoints e WHERE e.id = d.endpoint_id), TRUE)`

// What an outcome does to its row: it ends the delivery, or has it wait for a retry; the first attempt stands in the row. A row
// is found by its due, too: with each outcome that is another one, so that none counts twice.
const (
	endSQL = `UPDATE deliveries AS d SET status = CASE WHEN d.status = 'delivered' THEN d.status ELSE new.status END, due = NULL,
		attempts = d.attempts + new.made, updated_at = new.updated_at`
	retrySQL = `UPDATE deliveries AS d SET status = CASE WHEN d.status = 'delivered' THEN d.status WHEN ` + overSQL + ` THEN 'failed' ELSE new.status END,
		due = CASE WHEN ` + overSQL + ` THEN NULL ELSE new.next_attempt_at END, attempts = d.attempts + new.made, updated_at = new.updated_at`
	firstSQL = `, next_attempt_at = new.next_attempt_at, started_at = new.started_at, duration_ms = new.duration_ms, status_code = new.status_code,
		error = new.error, dns_ms = new.dns_ms, connect_ms = new.connect_ms, tls_ms = new.tls_ms, first_byte_ms = new.first_byte_ms,
		remote_address = new.remote_address, response_body = new.response_body`
	whichSQL = ` FROM {rows} WHERE d.endpoint_id = new.endpoint_id AND d.seq = new.seq AND d.event_id = new.event_id AND d.generation = new.generation
		AND d.due = new.due AND (new.shard, new.token) IN (SELECT shards.shard, shards.token FROM shards)
		RETURNING new.row, attempts`
)

var (
	endBulk        = store.NewBulk(endSQL+whichSQL, outcomeColumns...)
	endFirstBulk   = store.NewBulk(endSQL+firstSQL+whichSQL, outcomeColumns...)
	retryBulk      = store.NewBulk(retrySQL+whichSQL, outcomeColumns...)
	retryFirstBulk = store.NewBulk(retrySQL+firstSQL+whichSQL, outcomeColumns...)
)

// outcomeColumns are what an outcome's row is found by, and what it becomes.
var outcomeColumns = []store.Column{
	{Name: "endpoint_id", Type: "text"},
	{Name: "seq", Type: "bigint"},
	{Name: "event_id", Type: "text"},
	{Name: "generation", Type: "bigint"},
	{Name: "due", Type: "bigint"},
	{Name: "shard", Type: "bigint"},
	{Name: "token", Type: "bigint"},
	{Name: "status", Type: "text"},
	{Name: "made", Type: "bigint"},
	{Name: "updated_at", Type: "bigint"},
	{Name: "next_attempt_at", Type: "bigint"},
	{Name: "started_at", Type: "bigint"},
	{Name: "duration_ms", Type: "bigint"},
	{Name: "status_code", Type: "bigint"},
	{Name: "error", Type: "text"},
	{Name: "dns_ms", Type: "bigint"},
	{Name: "connect_ms", Type: "bigint"},
	{Name: "tls_ms", Type: "bigint"},
	{Name: "first_byte_ms", Type: "bigint"},
	{Name: "remote_address", Type: "text"},
	{Name: "response_body", Type: "text"},
}

// inRow says whether the attempt stands in its delivery's row: a delivery's first one, in its turn or as a test.
func (o *Outcome) inRow() bool {
	return o.Attempt != nil && o.Attempt.Number == 1 && (o.Job.Trigger == store.TriggerAutomatic || o.Job.Trigger == store.TriggerTest)
}

// form is the statement that writes the outcome into its row.
func (o *Outcome) form() *store.Bulk {
	switch retries, first := o.Status == store.Retrying, o.inRow(); {
	case retries && first:
		return retryFirstBulk
	case retries:
		return retryBulk
	case first:
		return endFirstBulk
	}
	return endBulk
}

// row is the outcome as outcomeColumns has it.
func (o *Outcome) row(now store.Time) []any {
	row := make([]any, len(outcomeColumns))
	copy(row, []any{
		o.Job.EndpointID, o.Job.Seq, o.Job.EventID, o.Job.Generation, int64(o.Job.Due), int64(o.Hold.Shard), o.Hold.Token,
		string(o.Status), int64(0), int64(now), instant(o.Next),
	})
	if a := o.Attempt; a != nil {
		row[8] = int64(1)
		copy(row[11:], []any{
			int64(a.StartedAt), int64(a.DurationMs), number(a.StatusCode), text(a.Error), number(a.DNSMs), number(a.ConnectMs), number(a.TLSMs),
			number(a.FirstByteMs), text(a.RemoteAddress), text(a.ResponseBody),
		})
	}
	return row
}

func number(n *int) any {
	if n == nil {
		return nil
	}
	return int64(*n)
}

func instant(t *store.Time) any {
	if t == nil {
		return nil
	}
	return int64(*t)
}

func text(s *string) any {
	if s == nil {
		return nil
	}
	return *s
}

// apply writes the attempts that have rows of their own, what replays have sent, and the health of the endpoints.
func (r *record) apply(ctx context.Context, t *store.Tx) error {
	var counted []*Outcome
	sent := map[string]int64{}
	for i, o := range r.outcomes {
		if !r.held[o.Hold] {
			continue
		}
		if !r.settled[i] {
			if err := r.h.recordLate(ctx, t, o); err != nil {
				return err
			}
			continue
		}
		counted = append(counted, o)
		r.done.Changed[o.Job.BusinessID] = append(r.done.Changed[o.Job.BusinessID], o.Job.ID())
		if o.Attempt == nil {
			continue
		}
		if o.Job.ReplayID != nil && o.Job.Attempts == o.Job.Base {
			sent[*o.Job.ReplayID]++
		}
		if !o.inRow() {
			a := o.attempt()
			a.Number = int(r.numbers[i]) // after one more, where a late outcome came between
			store.Insert(t, a)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(sent)) {
		t.Exec(`UPDATE replays SET sent = sent + $1 WHERE id = $2`, sent[id], id)
	}
	return r.recordHealth(ctx, t, counted)
}

// attempt is the outcome's attempt with its delivery's key.
func (o *Outcome) attempt() *Attempt {
	a := *o.Attempt
	a.EndpointID, a.Seq, a.EventID = o.Job.EndpointID, o.Job.Seq, o.Job.EventID
	return &a
}

// recordLate writes the attempt of an outcome whose delivery was ended, or sent again, while it was under way. It changes the
// state only if the receiver took the delivery, or if the delivery was ended as if it had never been tried.
func (h *Hooks) recordLate(ctx context.Context, t *store.Tx, o *Outcome) error {
	if o.Attempt == nil {
		return nil
	}
	d := new(Delivery)
	err := (&Delivery{EndpointID: o.Job.EndpointID, Seq: o.Job.Seq, EventID: o.Job.EventID}).key(t.ForUpdate().Model(d)).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // retention was faster
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", d, err)
	}
	if d.Generation == o.Job.Generation && d.Attempts >= o.Attempt.Number {
		return nil // it was recorded, and the answer to that was lost
	}
	if o.Attempt.Error == nil {
		d.Status = store.Delivered
	} else if d.Due == nil && d.Status == store.Skipped {
		d.Status = store.Failed
	}
	late := o.attempt()
	late.Number = d.Attempts + 1
	d.Attempts, d.UpdatedAt = late.Number, t.Now
	store.Insert(t, late)
	if _, err := t.NewUpdate().Model(d).Column("status", "attempts", "updated_at").WherePK().Exec(ctx); err != nil {
		return fmt.Errorf("record a late attempt of %s: %w", d, err)
	}
	return nil
}

// counts says whether the outcome tells of the endpoint's health: a success, or a delivery that failed for good. Tests do not,
// and a retry that is still to come says nothing yet.
func (o *Outcome) counts() bool {
	return o.Attempt != nil && o.Job.Trigger != store.TriggerTest && (o.Attempt.Error == nil || o.Status == store.Failed)
}

// recordHealth writes what outcomes mean for their endpoints, and disables those that have failed for as long as
// Config.EndpointGrace without one success, or asked for it.
func (r *record) recordHealth(ctx context.Context, t *store.Tx, outcomes []*Outcome) error {
	disable := map[string]string{} // why
	business := map[string]string{}
	for _, o := range outcomes {
		id := o.Job.EndpointID
		p := r.endpoints[id]
		business[id] = o.Job.BusinessID
		if o.Disable != "" && o.URL == p.url { // it asked for it, at the address that it still has
			disable[id] = o.Disable
		}
		if o.counts() && o.Attempt.Error != nil {
			p.failure = *o.Attempt.Error
		}
		switch {
		case !o.counts():
		case o.Attempt.Error == nil:
			p.failingSince = nil
		case p.failingSince == nil:
			p.failingSince = &t.Now
		case t.Now.Sub(*p.failingSince) >= r.h.cfg.EndpointGrace && disable[id] == "":
			disable[id] = fmt.Sprintf("no delivery has succeeded for %v; the last one failed with %s",
				t.Now.Sub(*p.failingSince).Round(time.Second), *o.Attempt.Error)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(business)) {
		p := r.endpoints[id]
		if p.failingSince == nil && disable[id] != "" && !r.asked(outcomes, id) {
			delete(disable, id) // a later success in this very batch
		}
		if !same(p.failingSince, p.was) {
			t.Exec(`UPDATE endpoints SET failing_since = $1 WHERE id = $2`, p.failingSince, id)
		}
		switch {
		case p.was == nil && p.failingSince != nil:
			r.done.Health = append(r.done.Health, HealthChange{id, business[id], Failing, p.failure})
		case p.was != nil && p.failingSince == nil:
			r.done.Health = append(r.done.Health, HealthChange{id, business[id], Recovered, ""})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(disable)) {
		p := new(Endpoint)
		err := t.ForUpdate().Model(p).Where("id = ? AND status = ? AND deleted_at IS NULL", id, store.Enabled).Scan(ctx)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err == nil {
			p.FailingSince = r.endpoints[id].failingSince
			err = r.h.disable(ctx, t, p, disable[id])
		}
		if err == nil {
			err = r.h.writeEndpoint(ctx, t, p)
		}
		if err != nil {
			return fmt.Errorf("disable endpoint %s: %w", id, err)
		}
		r.done.Disabled = append(r.done.Disabled, p.BusinessID)
		r.done.Health = append(r.done.Health, HealthChange{id, p.BusinessID, Disabled, disable[id]})
	}
	return nil
}

func (r *record) asked(outcomes []*Outcome, endpoint string) bool {
	return slices.ContainsFunc(outcomes, func(o *Outcome) bool { return o.Job.EndpointID == endpoint && o.Disable != "" })
}

func same(a, b *store.Time) bool { return a == b || a != nil && b != nil && *a == *b }
