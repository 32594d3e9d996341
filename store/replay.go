package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/uptrace/bun"
	"golang.org/x/sync/errgroup"
)

// Replay is a job that sends an endpoint events of a time again: what was not delivered, or everything. It walks along the
// sequence and has few deliveries waiting at a time, so that it is in nobody's way; where it stands is in SQL, so it goes on
// wherever its business's shard is held.
type Replay struct {
	bun.BaseModel `bun:"table:replays,alias:replay"`

	ID         string       `bun:"id,pk"`
	BusinessID string       `bun:"business_id"`
	EndpointID string       `bun:"endpoint_id"`
	Shard      int          `bun:"shard"`
	Since      Time         `bun:"since_at"` // events from here
	Until      Time         `bun:"until_at"` // and before here
	FailedOnly bool         `bun:"failed_only"`
	Seq        int64        `bun:"seq"`      // what is up to it was looked at
	LastSeq    int64        `bun:"last_seq"` // the business's last event when the job was made
	Status     ReplayStatus `bun:"status"`
	Total      int          `bun:"total"` // deliveries to be sent; at the end, those that were
	Sent       int          `bun:"sent"`  // deliveries of which an attempt was made
	CreatedAt  Time         `bun:"created_at"`
	FinishedAt *Time        `bun:"finished_at"`
}

// ReplayInput says what is to be sent again. Nil Until: all there is. Nil FailedOnly: true.
type ReplayInput struct {
	EndpointID string
	Since      Time
	Until      *Time
	FailedOnly *bool
}

var (
	errReplayRunning  = refuse(CodeConflict, "replay_running", "another replay to this webhook endpoint is running: wait until it has finished")
	errReplayNotFound = refuse(CodeNotFound, "replay_not_found", "there is no such replay")
)

// ReplayEvents begins a replay. The events are those that the endpoint would get if they happened now: of its types, and its
// agent. With FailedOnly they are those whose delivery to it failed or was skipped; else all, those before it was made, too. One
// replay to an endpoint runs at a time.
func (s *Store) ReplayEvents(ctx context.Context, v *Viewer, in ReplayInput) (*Replay, error) {
	endpoint, err := s.Endpoint(ctx, v.BusinessID, in.EndpointID)
	if err != nil {
		return nil, err
	}
	extent, err := s.Extent(ctx, v.BusinessID)
	if err != nil {
		return nil, err
	}
	r := &Replay{
		ID: newID("rpl"), BusinessID: v.BusinessID, EndpointID: endpoint.ID, Shard: endpoint.Shard, Since: in.Since, Until: s.Now() + 1,
		FailedOnly: in.FailedOnly == nil || *in.FailedOnly, LastSeq: extent.Last, Status: ReplayRunning,
	}
	set(&r.Until, in.Until)
	if r.Until <= r.Since {
		return nil, valueError("must be after since").Under("until").Err()
	}
	if r.Seq, err = s.lastBefore(ctx, extent, r.Since.Add(-disorder)); err != nil {
		return nil, err
	}
	if in.Until != nil {
		if r.LastSeq, err = s.lastBefore(ctx, extent, r.Until.Add(disorder)); err != nil {
			return nil, err
		}
	}
	n, err := r.what(s.read.NewSelect(), endpoint).Count(ctx)
	if err != nil {
		return nil, fmt.Errorf("count what to replay to %s: %w", endpoint.ID, err)
	}
	r.Total = int(n)
	err = s.batcher.do(512, func(ctx context.Context, t *tx) error {
		endpoint, err := endpointIn(ctx, t.forUpdate(), v.BusinessID, in.EndpointID)
		if err != nil {
			return err
		}
		if endpoint.Status == Disabled {
			return errEndpointDisabled
		}
		r.CreatedAt = t.now
		if r.Total == 0 {
			r.Status, r.FinishedAt = ReplayFinished, &t.now
		}
		res, err := t.NewInsert().Model(r).On("CONFLICT DO NOTHING").Returning("NULL").Exec(ctx)
		if err != nil {
			return fmt.Errorf("insert a replay to %s: %w", endpoint.ID, err)
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, errReplayRunning)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.cfg.DeliveriesWaiting(v.BusinessID)
	return r, nil
}

// disorder is by how much an event may be older than one before it in the sequence: that of transactions, and of clocks.
const disorder = time.Hour

// lastBefore finds the last event before an instant by its sequence, without reading those between: a million events lie
// twenty steps apart. It is as exact as the events' times are in their order.
func (s *Store) lastBefore(ctx context.Context, of Extent, at Time) (int64, error) {
	before, from := of.Pruned, of.Last+1
	for before+1 < from {
		middle := before + (from-before)/2
		var seq int64
		var when Time
		err := s.read.NewRaw("SELECT seq, timestamp FROM events WHERE business_id = ? AND seq >= ? AND seq < ? ORDER BY seq LIMIT 1",
			of.BusinessID, middle, from).Scan(ctx, &seq, &when)
		switch {
		case errors.Is(err, sql.ErrNoRows) || err == nil && when >= at:
			from = middle
		case err == nil:
			before = seq
		default:
			return 0, fmt.Errorf("find the last event of %s before %s: %w", of.BusinessID, at, err)
		}
	}
	return before, nil
}

// replayed is an event that a replay is to send, with the delivery that there is of it, if any.
type replayed struct {
	EventID        string  `bun:"event_id"`
	Seq            int64   `bun:"seq"`
	AgentID        *string `bun:"agent_id"`
	ConversationID *string `bun:"conversation_id"`
	SessionID      *string `bun:"session_id"`
	DeliveryID     *string `bun:"delivery_id"`
}

// what adds the replay's choice to a query: of events after where it stands, without those of which a delivery waits already.
func (r *Replay) what(q *bun.SelectQuery, endpoint *Endpoint) *bun.SelectQuery {
	if r.FailedOnly {
		q = q.TableExpr("deliveries AS d").Join("JOIN events AS e ON e.id = d.event_id").
			Where("d.endpoint_id = ? AND d.seq > ? AND d.seq <= ? AND d.status IN ('failed', 'skipped')", r.EndpointID, r.Seq, r.LastSeq)
	} else {
		q = q.TableExpr("events AS e").Join("LEFT JOIN deliveries AS d ON d.event_id = e.id AND d.endpoint_id = ?", r.EndpointID).
			Where("e.business_id = ? AND e.seq > ? AND e.seq <= ?", r.BusinessID, r.Seq, r.LastSeq).Where("d.next_attempt_at IS NULL").
			Where("(d.id IS NOT NULL OR NOT EXISTS (SELECT 1 FROM fan_outs AS f WHERE f.event_id = e.id AND f.deliveries LIKE ?))", listing(r.EndpointID))
	}
	if endpoint.AgentID != nil {
		q = q.Where("e.agent_id = ?", *endpoint.AgentID)
	}
	return q.Where("e.timestamp >= ? AND e.timestamp < ? AND e.type IN (?)", r.Since, r.Until, bun.List(endpoint.Events))
}

// AdvanceReplays goes on with the replays of the shards held: of each it makes deliveries due until so many of them wait. It
// returns which deliveries are due now, by business.
func (s *Store) AdvanceReplays(ctx context.Context, holds []Hold, window int) (map[string][]string, error) {
	if len(holds) == 0 {
		return nil, nil
	}
	of := make(map[int]Hold, len(holds))
	shards := make([]int, len(holds))
	for i, h := range holds {
		of[h.Shard], shards[i] = h, h.Shard
	}
	var replays []*Replay
	err := s.read.NewSelect().Model(&replays).Where("status = ? AND shard IN (?)", ReplayRunning, bun.List(shards)).Order("id").Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the replays that run: %w", err)
	}
	var (
		going errgroup.Group
		mu    sync.Mutex // guards what follows
		due   = map[string][]string{}
		errs  []error
	)
	going.SetLimit(replaysAtOnce)
	for _, r := range replays {
		going.Go(func() error {
			ids, err := s.advance(ctx, r, of[r.Shard], window)
			mu.Lock()
			defer mu.Unlock()
			if err != nil { // which holds up no other
				errs = append(errs, fmt.Errorf("go on with replay %s: %w", r.ID, err))
			}
			if len(ids) > 0 {
				due[r.BusinessID] = append(due[r.BusinessID], ids...)
			}
			return nil
		})
	}
	_ = going.Wait()
	return due, errors.Join(errs...)
}

const (
	replaysAtOnce = 4     // that are gone on with: their commits are one
	replayStep    = 5_000 // events of a replay that are looked at in one reading
	replayRetries = 1_000 // that may wait until the replay does: a receiver that refuses some holds it up for no time, and one that refuses all until it is well
)

// advance goes on with a replay until it has made something due, or there is nothing left to do now.
func (s *Store) advance(ctx context.Context, r *Replay, hold Hold, window int) (due []string, err error) {
	for on := true; on && err == nil && len(due) == 0; {
		due, on, err = s.step(ctx, r, hold, window)
	}
	return due, err
}

// step reads what is next and makes it due, if nobody has gone on with the replay meanwhile. It looks at few events: among a
// million there may be none for this endpoint. On says whether there are more to be looked at.
func (s *Store) step(ctx context.Context, r *Replay, hold Hold, window int) (due []string, on bool, err error) {
	var soon, waiting int // what is due or being sent, and that with the retries that are due later
	err = s.read.NewRaw(`SELECT COUNT(CASE WHEN leased OR next_attempt_at <= ? THEN 1 END), COUNT(*) FROM deliveries
		WHERE endpoint_id = ? AND next_attempt_at IS NOT NULL AND trigger_name <> 'automatic' AND replay_id = ?`, s.Now(), r.EndpointID, r.ID).
		Scan(ctx, &soon, &waiting)
	if err != nil || soon > window/2 || waiting-soon > replayRetries {
		return nil, false, err
	}
	endpoint, err := s.Endpoint(ctx, r.BusinessID, r.EndpointID)
	if errors.Is(err, errEndpointNotFound) {
		return nil, false, nil // it is being deleted, and the replay stopped
	}
	if err != nil {
		return nil, false, err
	}
	var next []*replayed
	limit := window - soon
	look := *r
	look.LastSeq = min(r.LastSeq, r.Seq+replayStep)
	err = look.what(s.read.NewSelect(), endpoint).Column("e.seq", "e.agent_id", "e.conversation_id", "e.session_id").
		ColumnExpr("e.id AS event_id, d.id AS delivery_id").Order("e.seq").Limit(int64(limit)).Scan(ctx, &next)
	if err != nil {
		return nil, false, err
	}
	upTo := look.LastSeq
	if len(next) == limit {
		upTo = next[limit-1].Seq
	}
	if upTo == r.Seq && waiting > 0 {
		return nil, false, nil // the last ones are under way
	}
	went := false
	err = s.batcher.do(256+128*len(next), func(ctx context.Context, t *tx) error {
		due, went = nil, false
		good, err := stillHeld(ctx, t, s.remote(), []Hold{hold})
		if err != nil || len(good) == 0 {
			return err
		}
		now := new(Replay) // locked before the deliveries: whoever ends it, and them, comes before or after
		err = t.forUpdate().Model(now).Where("id = ? AND status = ? AND seq = ?", r.ID, ReplayRunning, r.Seq).Scan(ctx)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			due, err = s.makeDue(ctx, t, r, next)
		}
		if err != nil {
			return err
		}
		now.Seq = upTo
		if now.Seq == now.LastSeq && len(due) == 0 && waiting == 0 {
			now.Status, now.Total, now.FinishedAt = ReplayFinished, now.Sent, &t.now
		}
		_, err = t.NewUpdate().Model(now).WherePK().Returning("NULL").Exec(ctx)
		went = err == nil
		return err
	})
	if err != nil || !went {
		return nil, false, err
	}
	r.Seq = upTo
	return due, upTo < r.LastSeq, nil
}

// makeDue makes deliveries of a replay due, and makes those that there are none of yet. They are due at one instant, the replay's:
// then it is by their sequence that they are claimed, also those that were given back meanwhile.
func (s *Store) makeDue(ctx context.Context, t *tx, r *Replay, next []*replayed) ([]string, error) {
	if len(next) == 0 {
		return nil, nil
	}
	events := make([]string, len(next))
	for i, e := range next {
		events[i] = e.EventID
	}
	// Retention removes events first and their deliveries after: what is there now stays until this is committed.
	q := t.NewSelect().ModelTableExpr("events").Column("id").Where("id IN (?)", bun.List(events)).Order("id")
	if t.remote {
		q = q.For("KEY SHARE")
	}
	var there []string
	if err := q.Scan(ctx, &there); err != nil {
		return nil, err
	}
	kept := make(map[string]bool, len(there))
	for _, id := range there {
		kept[id] = true
	}
	var again []string
	var fresh []*Delivery
	for _, e := range next {
		switch {
		case !kept[e.EventID]:
		case e.DeliveryID != nil:
			again = append(again, *e.DeliveryID)
		default:
			about := &Event{ID: e.EventID, ConversationID: e.ConversationID, SessionID: e.SessionID}
			fresh = append(fresh, &Delivery{
				ID: newID("dlv"), BusinessID: r.BusinessID, EndpointID: r.EndpointID, EventID: e.EventID, Seq: e.Seq, Lane: about.Lane(),
				Status: Pending, Trigger: TriggerReplay, ReplayID: &r.ID, NextAttemptAt: &r.CreatedAt, CreatedAt: t.now, UpdatedAt: t.now,
			})
		}
	}
	var due []string
	if len(again) > 0 {
		q := t.NewUpdate().Model((*Delivery)(nil)).Set("trigger_name = ?, replay_id = ?, base = attempts", TriggerReplay, r.ID).
			Set("leased = ?, next_attempt_at = ?, updated_at = ?", false, r.CreatedAt, t.now).
			Set("status = CASE WHEN status = ? THEN status WHEN attempts = 0 THEN ? ELSE ? END", Delivered, Pending, Retrying).
			Where("id IN (?) AND next_attempt_at IS NULL", bun.List(again)).Returning("id")
		if r.FailedOnly {
			q = q.Where("status IN (?)", bun.List([]DeliveryStatus{Failed, Skipped}))
		}
		if err := q.Scan(ctx, &due); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("make %d deliveries due again: %w", len(again), err)
		}
	}
	if len(fresh) > 0 {
		var made []string
		err := t.NewInsert().Model(&fresh).On("CONFLICT DO NOTHING").Returning("id").Scan(ctx, &made)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("insert %d deliveries of a replay: %w", len(fresh), err)
		}
		due = append(due, made...)
	}
	for _, id := range due {
		t.change(r.BusinessID, id)
	}
	return due, nil
}

// Replay reads a replay of a business.
func (s *Store) Replay(ctx context.Context, business, id string) (*Replay, error) {
	r := new(Replay)
	err := s.read.NewSelect().Model(r).Where("id = ? AND business_id = ?", id, business).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errReplayNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read replay %s: %w", id, err)
	}
	return r, nil
}

// shownReplays is how many replays of an endpoint are shown.
const shownReplays = 20

// ReplaysOf reads the newest replays to each endpoint, newest first, by endpoint.
func (s *Store) ReplaysOf(ctx context.Context, endpoints []string) (map[string][]*Replay, error) {
	of := make(map[string][]*Replay, len(endpoints))
	err := s.eachAtOnce(endpoints, func(endpoint string) (*bun.SelectQuery, error) {
		return s.read.NewSelect().Model((*Replay)(nil)).Where("endpoint_id = ?", endpoint).Order("id DESC").Limit(shownReplays), nil
	}, func(pages []*bun.SelectQuery, _ []string) error {
		var all []*Replay
		if err := s.atOnce(pages...).Scan(ctx, &all); err != nil {
			return fmt.Errorf("read the replays to %d endpoints: %w", len(endpoints), err)
		}
		slices.SortFunc(all, func(a, b *Replay) int { return strings.Compare(b.ID, a.ID) })
		for _, r := range all {
			of[r.EndpointID] = append(of[r.EndpointID], r)
		}
		return nil
	})
	return of, err
}
