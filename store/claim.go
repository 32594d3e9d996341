package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"
)

// What the delivery worker asks of the store: which deliveries to send, and where their outcome goes. A delivery is the
// worker's while its lease lasts; whatever happens to the worker, the row is due again when the lease is over.

// Job is a delivery that the worker holds, joined with what sending needs. Nothing of it is cached: an endpoint's status,
// URL and secrets are as they stood when the row was read.
type Job struct {
	DeliveryID     string         `bun:"delivery_id"`
	BusinessID     string         `bun:"business_id"`
	EndpointID     string         `bun:"endpoint_id"`
	EventID        string         `bun:"event_id"`
	Seq            int64          `bun:"seq"`
	Lane           string         `bun:"lane"`
	Attempts       int            `bun:"attempts"` // made so far
	LeaseUntil     Time           `bun:"lease_until"`
	CreatedAt      Time           `bun:"created_at"`
	URL            string         `bun:"url"`
	Secrets        []byte         `bun:"secrets"`
	EndpointStatus EndpointStatus `bun:"endpoint_status"`
	Body           []byte         `bun:"-"` // the event's document; nil until it is read
	ReadAt         Time           `bun:"read_at"`
}

const jobColumns = `d.id AS delivery_id, d.business_id, d.endpoint_id, d.event_id, d.seq, d.lane, d.attempts,
	d.next_attempt_at AS lease_until, d.created_at, e.url, e.secrets, e.status AS endpoint_status, ? AS read_at`

// FreshJobs reads the deliveries of events that the stream has just brought, which were born with a lease, in order of
// their events.
func (s *Store) FreshJobs(ctx context.Context, events []string) ([]*Job, error) {
	var jobs []*Job
	err := s.read.NewRaw(`SELECT `+jobColumns+` FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id
		WHERE d.event_id IN (?) AND d.leased AND d.attempts = 0 AND d.next_attempt_at IS NOT NULL ORDER BY d.business_id, d.seq`,
		Now(), bun.List(events)).Scan(ctx, &jobs)
	if err != nil {
		return nil, fmt.Errorf("read the deliveries of %d events: %w", len(events), err)
	}
	return jobs, nil
}

// Overtaken reads which of these endpoints have first attempts that are due in SQL, held by nobody: what is fresh must not
// overtake those.
func (s *Store) Overtaken(ctx context.Context, endpoints []string) ([]string, error) {
	var ids []string
	err := s.read.NewRaw(`SELECT e.id FROM endpoints e WHERE e.id IN (?) AND EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id
		AND d.next_attempt_at <= ? AND d.attempts = 0 AND NOT d.leased)`, bun.List(endpoints), Now()).Scan(ctx, &ids)
	if err != nil {
		return nil, fmt.Errorf("read which endpoints have deliveries waiting: %w", err)
	}
	return ids, nil
}

// Reread reads again what a job is sent with, for one that has waited in memory, and says whether it still waits: its endpoint
// may have been disabled, deleted, or given another address or secret meanwhile.
func (s *Store) Reread(ctx context.Context, job *Job) (waits bool, err error) {
	now := Now()
	err = s.read.NewRaw(`SELECT e.url, e.secrets, e.status FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id
		WHERE d.id = ? AND d.attempts = ? AND d.leased AND d.next_attempt_at IS NOT NULL`, job.DeliveryID, job.Attempts).
		Scan(ctx, &job.URL, &job.Secrets, &job.EndpointStatus)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read delivery %s again: %w", job.DeliveryID, err)
	}
	job.ReadAt = now
	return true, nil
}

// DueEndpoints reads which endpoints have deliveries that are due.
func (s *Store) DueEndpoints(ctx context.Context) ([]string, error) {
	var ids []string
	err := s.read.NewRaw(`SELECT e.id FROM endpoints e
		WHERE EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at <= ?)`, Now()).Scan(ctx, &ids)
	if err != nil {
		return nil, fmt.Errorf("read the endpoints with due deliveries: %w", err)
	}
	return ids, nil
}

// Wanted is how many due deliveries of an endpoint the worker has room for.
type Wanted struct {
	EndpointID string
	Limit      int
}

// Claim leases due deliveries, the longest due first, at most so many an endpoint.
func (s *Store) Claim(_ context.Context, wanted []Wanted, lease time.Duration) ([]*Job, error) {
	var jobs []*Job
	err := s.batcher.do(1024, func(ctx context.Context, t *tx) error {
		jobs = nil
		var ids []string
		for _, w := range wanted {
			var due []string
			err := t.NewRaw("SELECT id FROM deliveries WHERE endpoint_id = ? AND next_attempt_at <= ? ORDER BY next_attempt_at, seq LIMIT ?",
				w.EndpointID, t.now, w.Limit).Scan(ctx, &due)
			if err != nil {
				return fmt.Errorf("read the due deliveries of %s: %w", w.EndpointID, err)
			}
			ids = append(ids, due...)
		}
		if len(ids) == 0 {
			return nil
		}
		// The order is that of becoming due, which the claim is about to overwrite.
		_, err := t.NewRaw("UPDATE deliveries SET leased = ?, next_attempt_at = ? WHERE id IN (?) AND next_attempt_at <= ?",
			true, t.now.Add(lease), bun.List(ids), t.now).Exec(ctx)
		if err != nil {
			return fmt.Errorf("claim %d deliveries: %w", len(ids), err)
		}
		var rows []*Job
		err = t.NewRaw(`SELECT `+jobColumns+` FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id WHERE d.id IN (?)`, t.now, bun.List(ids)).
			Scan(ctx, &rows)
		if err != nil {
			return fmt.Errorf("read %d claimed deliveries: %w", len(ids), err)
		}
		of := make(map[string]*Job, len(rows))
		for _, j := range rows {
			of[j.DeliveryID] = j
		}
		for _, id := range ids {
			if j := of[id]; j != nil {
				jobs = append(jobs, j)
			}
		}
		return nil
	})
	return jobs, err
}

// Release gives leased deliveries back to SQL, untried: due since they were made, so that they keep their order.
func (s *Store) Release(_ context.Context, deliveries []string) error {
	return s.batcher.do(64*len(deliveries), func(ctx context.Context, t *tx) error {
		_, err := t.NewRaw("UPDATE deliveries SET leased = ?, next_attempt_at = created_at WHERE id IN (?) AND leased",
			false, bun.List(deliveries)).Exec(ctx)
		if err != nil {
			return fmt.Errorf("release %d deliveries: %w", len(deliveries), err)
		}
		return nil
	})
}

// ReleaseAll makes whatever is leased due at once. Only the one server of a SQLite file may: what is leased when it starts,
// a server that is gone held.
func (s *Store) ReleaseAll(ctx context.Context) error {
	if s.remote() {
		return nil
	}
	return s.batcher.do(0, func(ctx context.Context, t *tx) error {
		_, err := t.NewRaw("UPDATE deliveries SET leased = ?, next_attempt_at = created_at WHERE next_attempt_at IS NOT NULL AND leased", false).Exec(ctx)
		return err
	})
}

// Outcome is what became of one attempt: the attempt, and the state that the delivery passes into.
type Outcome struct {
	Job     *Job
	Attempt *Attempt // nil: nothing was sent, the endpoint being disabled
	Status  DeliveryStatus
	Next    *Time  // of a retry
	Disable string // why the endpoint is to be disabled; empty: it is not
}

// deliveryChange is a row of the bulk update that records outcomes.
type deliveryChange struct {
	ID       string `bun:"delivery_id,type:text"`
	Seen     int64  `bun:"seen,type:bigint"` // attempts made before this one
	Attempts int64  `bun:"attempts,type:bigint"`
	Status   string `bun:"status,type:text"`
	Next     *Time  `bun:"next,type:bigint"`
}

// Record writes outcomes, their attempts, and what they mean for the endpoints, in one transaction. An outcome counts only
// if nobody wrote another one since the job was read; it returns the ids of the deliveries that changed. A retry of a
// delivery that was ended meanwhile (its endpoint was disabled or deleted) is not revived.
func (s *Store) Record(_ context.Context, outcomes []*Outcome) ([]string, error) {
	outcomes = firstOutcomes(outcomes)
	changes := make([]*deliveryChange, len(outcomes))
	size := 0
	for i, o := range outcomes {
		changes[i] = &deliveryChange{
			ID: o.Job.DeliveryID, Seen: int64(o.Job.Attempts), Attempts: int64(o.Job.Attempts), Status: string(o.Status), Next: o.Next,
		}
		if o.Attempt != nil {
			changes[i].Attempts = int64(o.Attempt.Number)
			if o.Attempt.ResponseBody != nil {
				size += len(*o.Attempt.ResponseBody)
			}
		}
		size += 256
	}
	var changed []string
	err := s.batcher.do(size, func(ctx context.Context, t *tx) error {
		changed = nil
		err := t.NewUpdate().With("change", t.NewValues(&changes)).Model((*Delivery)(nil)).TableExpr("change").
			Set("attempts = change.attempts").Set("leased = ?", false).Set("updated_at = ?", t.now).
			Set("status = CASE WHEN delivery.next_attempt_at IS NULL AND change.next IS NOT NULL THEN ? ELSE change.status END", Failed).
			Set("next_attempt_at = CASE WHEN delivery.next_attempt_at IS NULL THEN NULL ELSE change.next END").
			Where("delivery.id = change.delivery_id AND delivery.attempts = change.seen AND delivery.status <> ?", Delivered).
			Returning("id").Scan(ctx, &changed)
		if err != nil {
			return fmt.Errorf("record %d outcomes: %w", len(outcomes), err)
		}
		done := make(map[string]bool, len(changed))
		for _, id := range changed {
			done[id] = true
		}
		attempts := make([]*Attempt, 0, len(outcomes))
		for _, o := range outcomes {
			if !done[o.Job.DeliveryID] {
				continue
			}
			if o.Attempt != nil {
				attempts = append(attempts, o.Attempt)
			}
			if o.Disable != "" {
				if err := disableEndpoint(ctx, t, o.Job.EndpointID, o.Disable); err != nil {
					return err
				}
			}
		}
		if len(attempts) == 0 {
			return nil
		}
		if _, err := t.NewInsert().Model(&attempts).Returning("NULL").Exec(ctx); err != nil {
			return fmt.Errorf("insert %d attempts: %w", len(attempts), err)
		}
		return nil
	})
	return changed, err
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

func disableEndpoint(ctx context.Context, t *tx, id, reason string) error {
	_, err := t.NewRaw("UPDATE endpoints SET status = ?, disabled_reason = ? WHERE id = ? AND status = ?", Disabled, reason, id, Enabled).Exec(ctx)
	if err != nil {
		return fmt.Errorf("disable endpoint %s: %w", id, err)
	}
	return endDeliveries(ctx, t, id)
}
