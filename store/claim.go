package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/uptrace/bun"
)

// What the delivery worker asks of the store: which deliveries to send, and where their outcome goes. A delivery is the
// worker's while its lease lasts; whatever happens to the worker, it is due again when the lease is over.

// Job is a delivery that the worker holds, joined with what sending needs: an endpoint's status, URL and secrets are as they
// stood at ReadAt. See Aim and Reread for those that wait in memory.
type Job struct {
	DeliveryID     string         `bun:"delivery_id"`
	BusinessID     string         `bun:"business_id"`
	EndpointID     string         `bun:"endpoint_id"`
	EventID        string         `bun:"event_id"`
	Seq            int64          `bun:"seq"`
	Lane           string         `bun:"lane"`
	Attempts       int            `bun:"attempts"` // made so far
	Trigger        AttemptTrigger `bun:"trigger_name"`
	Base           int            `bun:"base"` // of Attempts, those made before it was last sent again
	ReplayID       *string        `bun:"replay_id"`
	LeaseUntil     Time           `bun:"lease_until"`
	CreatedAt      Time           `bun:"created_at"`
	URL            string         `bun:"url"`
	Secrets        []byte         `bun:"secrets"`
	EndpointStatus EndpointStatus `bun:"endpoint_status"`
	Shard          int            `bun:"shard"`
	Token          int64          `bun:"-"` // of the hold on the shard under which it was read
	Body           []byte         `bun:"-"` // the event's document; nil until it is read
	ReadAt         Time           `bun:"read_at"`
	birth          *birth         // of one that may have no row yet
}

// Fresh says whether this is the first attempt of a delivery in its turn: what is kept in order.
func (j *Job) Fresh() bool { return j.Attempts == 0 && !j.Aside() }

// Aside says whether it is sent out of its turn: by hand, by a replay, or as a test.
func (j *Job) Aside() bool { return j.Trigger != TriggerAutomatic }

// Hold is the hold under which the job was read.
func (j *Job) Hold() Hold { return Hold{j.Shard, j.Token} }

const jobColumns = `d.id AS delivery_id, d.business_id, d.endpoint_id, d.event_id, d.seq, d.lane, d.attempts,
	d.trigger_name, d.base, d.replay_id, d.next_attempt_at AS lease_until, d.created_at, e.url, e.secrets, e.status AS endpoint_status, e.shard, ? AS read_at`

// freshJobsSQL asks for those that wait in words that no index has: what is to be looked up is the event.
const freshJobsSQL = `SELECT id, endpoint_id, event_id, seq, lane, next_attempt_at, created_at FROM deliveries
	WHERE event_id IN ({ids}) AND leased AND attempts = 0 AND trigger_name = 'automatic' AND COALESCE(next_attempt_at, -1) >= 0 ORDER BY seq`

// FreshJobs reads the deliveries of events that the stream has just brought, which were born with a lease, in order of
// their events, and the endpoints of them that have older ones waiting. They are of shards that the caller holds.
func (s *Store) FreshJobs(ctx context.Context, holds []Hold, events []string) (jobs []*Job, overtaken []string, err error) {
	now := s.Now()
	jobs, unfolded, err := s.bornJobs(ctx, events, now)
	if err == nil && len(unfolded) > 0 {
		var rest []*Job
		rest, err = s.leasedJobs(ctx, unfolded, now)
		jobs = append(jobs, rest...)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the deliveries of %d events: %w", len(events), err)
	}
	if len(jobs) == 0 {
		return nil, nil, nil
	}
	slices.SortStableFunc(jobs, func(a, b *Job) int { return cmp.Compare(a.Seq, b.Seq) })
	of := map[string]*Target{}
	for _, j := range jobs {
		of[j.EndpointID] = nil
	}
	targets, err := s.Targets(ctx, slices.Collect(maps.Keys(of)))
	if err != nil {
		return nil, nil, err
	}
	for _, t := range targets {
		of[t.EndpointID] = t
		if t.Waiting {
			overtaken = append(overtaken, t.EndpointID)
		}
	}
	jobs = slices.DeleteFunc(jobs, func(j *Job) bool {
		t := of[j.EndpointID]
		if t == nil {
			return true
		}
		j.BusinessID, j.Shard = t.BusinessID, ShardOf(t.BusinessID)
		j.Aim(t)
		j.ReadAt = now // of the job itself: an endpoint may have changed between the two
		return false
	})
	return under(holds, jobs), overtaken, nil
}

// leasedJobs reads the deliveries of events that were born with a lease, and have rows.
func (s *Store) leasedJobs(ctx context.Context, events []string, now Time) (jobs []*Job, err error) {
	rows, err := s.hotReads[s.freshJobsSQL].QueryContext(ctx, s.idsArg(events))
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		j := &Job{Trigger: TriggerAutomatic, ReadAt: now}
		if err := rows.Scan(&j.DeliveryID, &j.EndpointID, &j.EventID, &j.Seq, &j.Lane, &j.LeaseUntil, &j.CreatedAt); err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, rows.Err()
}

// Target is an endpoint as its deliveries need it.
type Target struct {
	EndpointID string
	BusinessID string
	URL        string
	Secrets    []byte
	Status     EndpointStatus
	Gone       bool // it was deleted
	Waiting    bool // it has deliveries in SQL that were never tried and are held by nobody: what is fresh must not overtake those
	ReadAt     Time
}

// targetsSQL has no EXISTS: PostgreSQL might answer that for all endpoints at once, out of all that waits.
const targetsSQL = `SELECT e.id, e.business_id, e.url, e.secrets, e.status, e.deleted_at IS NOT NULL,
	(SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at <= ? AND d.attempts = 0 AND d.trigger_name = 'automatic'
		LIMIT 1) IS NOT NULL
	FROM endpoints e WHERE e.id IN ({ids})`

// Targets reads endpoints, in no order.
func (s *Store) Targets(ctx context.Context, endpoints []string) ([]*Target, error) {
	now := s.Now()
	rows, err := s.hotReads[s.targetsSQL].QueryContext(ctx, int64(now), s.idsArg(endpoints))
	if err != nil {
		return nil, fmt.Errorf("read %d endpoints: %w", len(endpoints), err)
	}
	defer func() { _ = rows.Close() }()
	targets := make([]*Target, 0, len(endpoints))
	for rows.Next() {
		t := &Target{ReadAt: now}
		if err := rows.Scan(&t.EndpointID, &t.BusinessID, &t.URL, &t.Secrets, &t.Status, &t.Gone, &t.Waiting); err != nil {
			return nil, fmt.Errorf("read %d endpoints: %w", len(endpoints), err)
		}
		targets = append(targets, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read %d endpoints: %w", len(endpoints), err)
	}
	return targets, nil
}

// Aim has the job sent to its endpoint as t has it.
func (j *Job) Aim(t *Target) {
	j.URL, j.Secrets, j.EndpointStatus, j.ReadAt = t.URL, t.Secrets, t.Status, t.ReadAt
}

// under keeps the jobs whose shards are held, each with its hold's token.
func under(holds []Hold, jobs []*Job) []*Job {
	return slices.DeleteFunc(jobs, func(j *Job) bool {
		i := slices.IndexFunc(holds, func(h Hold) bool { return h.Shard == j.Shard })
		if i >= 0 {
			j.Token = holds[i].Token
		}
		return i < 0
	})
}

const rereadSQL = `SELECT e.url, e.secrets, e.status FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id
	WHERE d.id = ? AND d.attempts = ? AND d.trigger_name = ? AND d.leased AND d.next_attempt_at = ?`

// rereadBornSQL is for one that may have no row yet.
const rereadBornSQL = `SELECT e.url, e.secrets, e.status FROM endpoints e WHERE e.id = ? AND COALESCE(
	(SELECT CASE WHEN d.attempts = 0 AND d.trigger_name = 'automatic' AND d.leased AND d.next_attempt_at = ? THEN 1 ELSE 0 END FROM deliveries d WHERE d.id = ?),
	(SELECT 1 FROM fan_outs f WHERE f.event_id = ?), 0) = 1`

// Reread reads again what a job is sent with, for one that has waited in memory, and says whether it still waits: its endpoint
// may have been disabled, deleted, or given another address or secret meanwhile.
func (s *Store) Reread(ctx context.Context, job *Job) (waits bool, err error) {
	now := s.Now()
	query, args := rereadSQL, []any{job.DeliveryID, job.Attempts, string(job.Trigger), int64(job.LeaseUntil)}
	if job.birth != nil {
		query, args = rereadBornSQL, []any{job.EndpointID, int64(job.LeaseUntil), job.DeliveryID, job.EventID}
	}
	err = s.readRow(ctx, query, args, &job.URL, &job.Secrets, &job.EndpointStatus)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read delivery %s again: %w", job.DeliveryID, err)
	}
	job.ReadAt = now
	return true, nil
}

// Due is an endpoint with deliveries that are due.
type Due struct {
	EndpointID string `bun:"id"`
	BusinessID string `bun:"business_id"`
	Shard      int    `bun:"shard"`
}

// DueEndpoints reads which endpoints of these shards have deliveries that are due.
func (s *Store) DueEndpoints(ctx context.Context, shards []int) ([]Due, error) {
	var due []Due
	if len(shards) == 0 {
		return nil, nil
	}
	err := s.read.NewRaw(`SELECT e.id, e.business_id, e.shard FROM endpoints e WHERE e.shard IN (?)
		AND EXISTS (SELECT 1 FROM deliveries d WHERE d.endpoint_id = e.id AND d.next_attempt_at <= ?)`, bun.List(shards), s.Now()).Scan(ctx, &due)
	if err != nil {
		return nil, fmt.Errorf("read the endpoints with due deliveries: %w", err)
	}
	return due, nil
}

// Wanted is how many due deliveries of an endpoint the worker has room for, and the hold under which it asks.
type Wanted struct {
	EndpointID string
	Limit      int
	Asides     int   // out of their turn, how many the worker has waiting: it gets no more than it can send before long
	UpTo       int64 // of those never tried, none beyond this sequence: before it there may be some that the stream is to bring
	Hold       Hold
}

const (
	// retryShare is the part of a claim that is for retries, at least, so that an endless backlog does not keep them waiting, and
	// that much again for what is out of its turn, so that ten thousand resends do not.
	retryShare = 4
	// asidesAtOnce is how many deliveries out of their turn a worker is given of an endpoint: a replay's window, and as many by hand.
	asidesAtOnce = 64
)

// Claim leases due deliveries: for each endpoint at most so many that were never tried, in sequence, and of the retries, and of what
// is out of its turn, those that are due for longest. What is asked for under a hold that is over is not given.
func (s *Store) Claim(_ context.Context, wanted []Wanted, lease time.Duration) ([]*Job, error) {
	var jobs []*Job
	err := s.worker.do(1024, func(ctx context.Context, t *tx) error {
		jobs = nil
		var holds []Hold
		for _, w := range wanted {
			if !slices.Contains(holds, w.Hold) {
				holds = append(holds, w.Hold)
			}
		}
		good, err := stillHeld(ctx, t, s.remote(), holds)
		if err != nil {
			return err
		}
		wanted := slices.DeleteFunc(slices.Clone(wanted), func(w Wanted) bool { return !slices.Contains(good, w.Hold.Shard) })
		ids, err := s.dueOf(ctx, t, wanted)
		if err != nil || len(ids) == 0 {
			return err
		}
		_, err = t.NewRaw("UPDATE deliveries SET leased = ?, next_attempt_at = ? WHERE id IN (?) AND next_attempt_at <= ?",
			true, t.now.Add(lease), bun.List(ids), t.now).Exec(ctx)
		if err != nil {
			return fmt.Errorf("claim %d deliveries: %w", len(ids), err)
		}
		err = t.NewRaw(`SELECT `+jobColumns+` FROM deliveries d JOIN endpoints e ON e.id = d.endpoint_id WHERE d.id IN (?) AND d.leased
			ORDER BY d.business_id, d.seq`, t.now, bun.List(ids)).Scan(ctx, &jobs)
		if err != nil {
			return fmt.Errorf("read %d claimed deliveries: %w", len(ids), err)
		}
		jobs = under(holds, jobs)
		return nil
	})
	return jobs, err
}

// dueOf reads which deliveries a claim is for. PostgreSQL takes all endpoints in one statement; for SQLite, in the same
// process, one statement an endpoint costs less than one that it must plan anew.
func (s *Store) dueOf(ctx context.Context, t *tx, wanted []Wanted) ([]string, error) {
	var ids []string
	if s.remote() {
		type row struct {
			Endpoint string `bun:"endpoint,type:text"`
			UpTo     int64  `bun:"up_to,type:bigint"`
			Untried  int64  `bun:"untried,type:bigint"`
			Retries  int64  `bun:"retries,type:bigint"`
			Asides   int64  `bun:"asides,type:bigint"`
		}
		rows := make([]*row, len(wanted))
		for i, w := range wanted {
			rows[i] = &row{w.EndpointID, w.UpTo, int64(w.Limit), int64(w.retries()), int64(w.asides())}
		}
		if len(rows) == 0 {
			return nil, nil
		}
		err := t.NewSelect().With("wanted", t.NewValues(&rows)).ColumnExpr("due.id").TableExpr("wanted").
			Join(`CROSS JOIN LATERAL (
				(SELECT id FROM deliveries WHERE endpoint_id = endpoint AND next_attempt_at = 0 AND seq <= up_to ORDER BY seq LIMIT untried)
				UNION ALL
				(SELECT id FROM deliveries WHERE endpoint_id = endpoint AND next_attempt_at > 0 AND next_attempt_at <= ? AND trigger_name = 'automatic'
					ORDER BY next_attempt_at, seq LIMIT retries)
				UNION ALL
				(SELECT id FROM deliveries WHERE endpoint_id = endpoint AND next_attempt_at <= ? AND trigger_name <> 'automatic'
					ORDER BY next_attempt_at, seq LIMIT asides)) due`, t.now, t.now).Scan(ctx, &ids)
		if err != nil {
			return nil, fmt.Errorf("read the due deliveries of %d endpoints: %w", len(wanted), err)
		}
		return ids, nil
	}
	for _, w := range wanted {
		var due []string
		err := t.NewRaw(`SELECT id FROM (SELECT id FROM deliveries WHERE endpoint_id = ? AND next_attempt_at = 0 AND seq <= ? ORDER BY seq LIMIT ?)
			UNION ALL
			SELECT id FROM (SELECT id FROM deliveries WHERE endpoint_id = ? AND next_attempt_at > 0 AND next_attempt_at <= ? AND trigger_name = 'automatic'
				ORDER BY next_attempt_at, seq LIMIT ?)
			UNION ALL
			SELECT id FROM (SELECT id FROM deliveries INDEXED BY deliveries_aside WHERE endpoint_id = ? AND next_attempt_at <= ? AND trigger_name <> 'automatic'
				ORDER BY next_attempt_at, seq LIMIT ?)`,
			w.EndpointID, w.UpTo, w.Limit, w.EndpointID, t.now, w.retries(), w.EndpointID, t.now, w.asides()).Scan(ctx, &due)
		if err != nil {
			return nil, fmt.Errorf("read the due deliveries of %s: %w", w.EndpointID, err)
		}
		ids = append(ids, due...)
	}
	return ids, nil
}

func (w *Wanted) retries() int { return w.Limit/retryShare + 1 }

func (w *Wanted) asides() int { return max(0, min(w.retries(), asidesAtOnce-w.Asides)) }

// heldLease is a lease that a job was read with.
type heldLease struct {
	ID    string `bun:"delivery_id,type:text"`
	Until Time   `bun:"lease_until,type:bigint"`
}

// dueAgainSQL is when a delivery that is given back, untried, is due: in its place among those that wait. One that was never tried in
// its turn has none but its sequence. Those of a replay are due at one instant, the replay's, and so in their sequence. All else
// is due since its last attempt, or since it was to be sent again.
const dueAgainSQL = `CASE WHEN delivery.attempts = 0 AND delivery.trigger_name = 'automatic' THEN 0
	ELSE COALESCE((SELECT replays.created_at FROM replays WHERE replays.id = delivery.replay_id), delivery.updated_at) END`

// Release gives leased deliveries back to SQL, untried: they keep their place. Of a job whose lease is over, and which was claimed
// again since or has ended, nothing is given back.
func (s *Store) Release(_ context.Context, jobs []*Job) error {
	for some := range slices.Chunk(jobs, releasedAtOnce) { // one that was given back is not given back again
		if err := s.release(some); err != nil {
			return err
		}
	}
	return nil
}

const releasedAtOnce = 2000 // jobs a commit

func (s *Store) release(jobs []*Job) error {
	var made rowsMade
	err := s.worker.do(64*len(jobs), func(ctx context.Context, t *tx) error {
		made = rowsMade{}
		good, err := stillHeld(ctx, t, s.remote(), holdsOf(jobs))
		if err != nil {
			return err
		}
		held := slices.DeleteFunc(slices.Clone(jobs), func(j *Job) bool { return !slices.Contains(good, j.Shard) })
		made, err = s.writeBorn(ctx, t, held, func(i int) []any {
			var now Time
			return held[i].born(Pending, 0, &now, held[i].CreatedAt, "")
		})
		if err != nil {
			return err
		}
		var leases []*heldLease
		for _, j := range held {
			if !made.ids[j.DeliveryID] {
				leases = append(leases, &heldLease{j.DeliveryID, j.LeaseUntil})
			}
		}
		if len(leases) == 0 {
			return nil
		}
		_, err = t.NewUpdate().With("held", t.NewValues(&leases)).Model((*Delivery)(nil)).TableExpr("held").Set("leased = ?", false).
			Set("next_attempt_at = " + dueAgainSQL).
			Where("delivery.id = held.delivery_id AND delivery.leased AND delivery.next_attempt_at = held.lease_until").Exec(ctx)
		if err != nil {
			return fmt.Errorf("release %d deliveries: %w", len(leases), err)
		}
		return nil
	})
	if err == nil {
		made.commit()
	}
	return err
}
