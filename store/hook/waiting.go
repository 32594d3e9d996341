package hook

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"parley/store"
)

// What the delivery worker reads: which endpoints have deliveries that wait, which those are, and where they go.

// Job is a delivery that waits, as its row has it.
type Job struct {
	Shard      int                  `bun:"shard"`
	EndpointID string               `bun:"endpoint_id"`
	Seq        int64                `bun:"seq"`
	EventID    string               `bun:"event_id"`
	BusinessID string               `bun:"business_id"`
	Type       store.EventType      `bun:"type"`
	Lane       string               `bun:"lane"`
	Epoch      int64                `bun:"epoch"`
	Generation int64                `bun:"generation"`
	Trigger    store.AttemptTrigger `bun:"trigger_name"`
	Base       int                  `bun:"base"`
	Attempts   int                  `bun:"attempts"`
	ReplayID   *string              `bun:"replay_id"`
	Due        store.Time           `bun:"due"`
	CreatedAt  store.Time           `bun:"created_at"`
	OldID      *string              `bun:"old_id"`

	Body []byte `bun:"-"` // the event's document; nil until it is read
}

const jobColumns = "shard, endpoint_id, seq, event_id, business_id, type, lane, epoch, generation, trigger_name, base, attempts, replay_id, due, created_at, old_id"

// ID is the delivery's.
func (j *Job) ID() string {
	if j.OldID != nil {
		return *j.OldID
	}
	return DeliveryID(j.EventID, j.EndpointID)
}

// InTurn says whether it is a first attempt, whose turn is by its number.
func (j *Job) InTurn() bool { return j.Due == 0 }

// Lane is an endpoint that has deliveries waiting.
type Lane struct {
	Shard      int        `bun:"shard"`
	EndpointID string     `bun:"endpoint_id"`
	BusinessID string     `bun:"business_id"`
	LastSeq    int64      `bun:"last_seq"` // the last number among them
	NextDue    store.Time `bun:"next_due"` // when the first that is out of its turn is due; 0: there is none
}

// Lanes reads which endpoints of some shards have deliveries waiting. It steps from endpoint to endpoint in the index of what
// waits: where nothing waits it costs nothing, and where a million do, as much as for one.
func (h *Hooks) Lanes(ctx context.Context, shards []int) ([]Lane, error) {
	var lanes []Lane
	if len(shards) == 0 {
		return nil, nil
	}
	err := h.store.Reader().NewRaw(`WITH RECURSIVE lane(shard, endpoint_id) AS (
			SELECT s.shard, (SELECT MIN(d.endpoint_id) FROM deliveries d WHERE d.shard = s.shard AND d.due IS NOT NULL) FROM shards s WHERE s.shard IN (?)
			UNION ALL
			SELECT lane.shard, (SELECT MIN(d.endpoint_id) FROM deliveries d WHERE d.shard = lane.shard AND d.due IS NOT NULL AND d.endpoint_id > lane.endpoint_id)
				FROM lane WHERE lane.endpoint_id IS NOT NULL
		) SELECT lane.shard, lane.endpoint_id,
			(SELECT d.business_id FROM deliveries d WHERE d.shard = lane.shard AND d.endpoint_id = lane.endpoint_id AND d.due IS NOT NULL ORDER BY d.seq LIMIT 1) AS business_id,
			(SELECT d.seq FROM deliveries d WHERE d.shard = lane.shard AND d.endpoint_id = lane.endpoint_id AND d.due IS NOT NULL ORDER BY d.seq DESC LIMIT 1) AS last_seq,
			COALESCE((SELECT d.due FROM deliveries d WHERE d.shard = lane.shard AND d.endpoint_id = lane.endpoint_id AND d.due > 0 ORDER BY d.due LIMIT 1), 0) AS next_due
		FROM lane WHERE lane.endpoint_id IS NOT NULL`, bun.List(shards)).Scan(ctx, &lanes)
	if err != nil {
		return nil, fmt.Errorf("read the endpoints with waiting deliveries: %w", err)
	}
	n := 0
	for _, l := range lanes { // between two of its looks a lane's last row may have ended
		if l.BusinessID != "" {
			lanes[n] = l
			n++
		}
	}
	return lanes[:n], nil
}

// Next reads the first attempts that wait in their turn at an endpoint, with numbers above after, in order. What is over by
// the rule is not among them: those before the endpoint's last disabling are not even looked at.
func (h *Hooks) Next(ctx context.Context, shard int, endpoint string, after int64, limit int) ([]*Job, error) {
	var jobs []*Job
	err := h.store.Reader().NewRaw(`SELECT `+jobColumns+` FROM deliveries AS d WHERE shard = ? AND endpoint_id = ? AND due IS NOT NULL AND due = 0
		AND seq > ? AND seq > COALESCE((SELECT over_seq FROM endpoints WHERE id = ?), 0) AND NOT `+overSQL+` ORDER BY seq LIMIT ?`,
		shard, endpoint, after, endpoint, limit).Scan(ctx, &jobs)
	if err != nil {
		return nil, fmt.Errorf("read what waits for endpoint %s: %w", endpoint, err)
	}
	return jobs, nil
}

// Due reads what is due out of its turn at an endpoint by an instant: retries, resends, replays and tests, longest due first.
// What is being sent is among them.
func (h *Hooks) Due(ctx context.Context, shard int, endpoint string, until store.Time, limit int) ([]*Job, error) {
	var jobs []*Job
	err := h.store.Reader().NewRaw(`SELECT `+jobColumns+` FROM deliveries AS d WHERE shard = ? AND endpoint_id = ? AND due > 0 AND due <= ? AND NOT `+overSQL+`
		ORDER BY due, seq LIMIT ?`, shard, endpoint, until, limit).Scan(ctx, &jobs)
	if err != nil {
		return nil, fmt.Errorf("read what is due to endpoint %s: %w", endpoint, err)
	}
	return jobs, nil
}

// Bodies reads events' documents by id, those of tests too.
func (h *Hooks) Bodies(ctx context.Context, events []string) (map[string][]byte, error) {
	read, err := h.store.EventsByID(ctx, events)
	if err != nil {
		return nil, err
	}
	of := make(map[string][]byte, len(read))
	for id, e := range read {
		of[id] = e.Body
	}
	return of, nil
}

// Target is an endpoint as its deliveries need it.
type Target struct {
	EndpointID string               `bun:"id"`
	BusinessID string               `bun:"business_id"`
	URL        string               `bun:"url"`
	Secrets    []byte               `bun:"secrets"` // sealed: see SigningSecrets
	Status     store.EndpointStatus `bun:"status"`
	Epoch      int64                `bun:"epoch"`
	Gone       bool                 `bun:"gone"` // it was deleted
	ReadAt     store.Time           `bun:"-"`
}

// Targets reads endpoints, by id.
func (h *Hooks) Targets(ctx context.Context, endpoints []string) (map[string]*Target, error) {
	now := h.store.Now()
	var targets []*Target
	err := h.store.Keyed().NewRaw(`SELECT id, business_id, url, secrets, status, epoch, deleted_at IS NOT NULL AS gone FROM endpoints WHERE id IN (?)`,
		bun.List(endpoints)).Scan(ctx, &targets)
	if err != nil {
		return nil, fmt.Errorf("read %d endpoints: %w", len(endpoints), err)
	}
	of := make(map[string]*Target, len(targets))
	for _, t := range targets {
		t.ReadAt = now
		of[t.EndpointID] = t
	}
	return of, nil
}
