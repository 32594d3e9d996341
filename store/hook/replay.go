package hook

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

	"parley/store"
)

// Replay is a job that sends an endpoint events of a time again: what was not delivered, or everything. It walks along the
// sequence and has few deliveries waiting at a time, so that it is in nobody's way; where it stands is in SQL, so it goes on
// wherever its business's shard is held.
type Replay struct {
	bun.BaseModel `bun:"table:replays,alias:replay"`

	ID         string             `bun:"id,pk"`
	BusinessID string             `bun:"business_id"`
	EndpointID string             `bun:"endpoint_id"`
	Shard      int                `bun:"shard"`
	Since      store.Time         `bun:"since_at"` // events from here
	Until      store.Time         `bun:"until_at"` // and before here
	FailedOnly bool               `bun:"failed_only"`
	Seq        int64              `bun:"seq"`      // what is up to it was looked at
	LastSeq    int64              `bun:"last_seq"` // the business's last event when the job was made
	Status     store.ReplayStatus `bun:"status"`
	Total      int                `bun:"total"` // deliveries to be sent; at the end, those that were
	Sent       int                `bun:"sent"`  // deliveries of which an attempt was made
	CreatedAt  store.Time         `bun:"created_at"`
	FinishedAt *store.Time        `bun:"finished_at"`
}

// ReplayInput says what is to be sent again. Nil Until: all there is. Nil FailedOnly: true.
type ReplayInput struct {
	EndpointID string
	Since      store.Time
	Until      *store.Time
	FailedOnly *bool
}

var (
	errReplayRunning  = store.Refuse(store.CodeConflict, "replay_running", "another replay to this webhook endpoint is running: wait until it has finished")
	errReplayNotFound = store.Refuse(store.CodeNotFound, "replay_not_found", "there is no such replay")
)

// ReplayEvents begins a replay. The events are those that the endpoint would get if they happened now: of its types, and its
// agent. With FailedOnly they are those whose delivery to it failed or was skipped; else all, those before it was made, too. One
// replay to an endpoint runs at a time.
func (h *Hooks) ReplayEvents(ctx context.Context, v *store.Viewer, in ReplayInput) (*Replay, error) {
	endpoint, err := h.Endpoint(ctx, v.BusinessID, in.EndpointID)
	if err != nil {
		return nil, err
	}
	extent, err := h.store.Extent(ctx, v.BusinessID)
	if err != nil {
		return nil, err
	}
	r := &Replay{
		ID: store.NewID("rpl"), BusinessID: v.BusinessID, EndpointID: endpoint.ID, Shard: endpoint.Shard, Since: in.Since, Until: h.store.Now() + 1,
		FailedOnly: in.FailedOnly == nil || *in.FailedOnly, LastSeq: extent.Last, Status: store.ReplayRunning,
	}
	if in.Until != nil {
		r.Until = *in.Until
	}
	if r.Until <= r.Since {
		return nil, store.Faults{store.ValueError("must be after since")}.Under("until").Err()
	}
	if r.Seq, err = h.lastBefore(ctx, extent, r.Since.Add(-disorder)); err != nil {
		return nil, err
	}
	if in.Until != nil {
		if r.LastSeq, err = h.lastBefore(ctx, extent, r.Until.Add(disorder)); err != nil {
			return nil, err
		}
	}
	n, err := r.what(h.store.Reader().NewSelect(), endpoint, endpoint.Unswept).Count(ctx)
	if err != nil {
		return nil, fmt.Errorf("count what to replay to %s: %w", endpoint.ID, err)
	}
	r.Total = int(n)
	err = h.change(v.BusinessID, 512, func(ctx context.Context, t *store.Tx) error {
		endpoint, err := endpointIn(ctx, t.ForUpdate(), v.BusinessID, in.EndpointID)
		if err != nil {
			return err
		}
		if endpoint.Status == store.Disabled {
			return errEndpointDisabled
		}
		// Asked under the endpoint's lock, and of a replay too that has nothing to send: what it would may be waiting for another's turn.
		running, err := t.NewSelect().Model((*Replay)(nil)).Where("endpoint_id = ? AND status = ?", endpoint.ID, store.ReplayRunning).Exists(ctx)
		if err != nil {
			return fmt.Errorf("read whether a replay to %s is running: %w", endpoint.ID, err)
		}
		if running {
			return errReplayRunning
		}
		r.CreatedAt = t.Now
		if r.Total == 0 {
			r.Status, r.FinishedAt = store.ReplayFinished, &t.Now
		}
		if _, err := t.NewInsert().Model(r).Returning("NULL").Exec(ctx); err != nil {
			return fmt.Errorf("insert a replay to %s: %w", endpoint.ID, err)
		}
		h.changed(t, v.BusinessID)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// disorder is by how much an event may be older than one before it in the sequence: that of transactions, and of clocks.
const disorder = time.Hour

// lastBefore finds the last event before an instant by its sequence, without reading those between: a million events lie
// twenty steps apart. It is as exact as the events' times are in their order.
func (h *Hooks) lastBefore(ctx context.Context, of store.Extent, at store.Time) (int64, error) {
	before, from := of.Pruned, of.Last+1
	for before+1 < from {
		middle := before + (from-before)/2
		var seq int64
		var when store.Time
		err := h.store.Reader().NewRaw("SELECT seq, timestamp FROM events WHERE business_id = ? AND seq >= ? AND seq < ? ORDER BY seq LIMIT 1",
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
	EventID        string          `bun:"event_id"`
	Seq            int64           `bun:"seq"`
	Type           store.EventType `bun:"type"`
	ConversationID *string         `bun:"conversation_id"`
	SessionID      *string         `bun:"session_id"`
}

// what adds the replay's choice to a query: of events after where it stands, without those of which a delivery waits already.
// With over, what waits and is over by the rule counts as ended.
func (r *Replay) what(q *bun.SelectQuery, endpoint *Endpoint, over bool) *bun.SelectQuery {
	waits := "d.due IS NOT NULL"
	if over {
		waits = "(d.due IS NOT NULL AND NOT " + overSQL + ")"
	}
	if r.FailedOnly {
		q = q.TableExpr("deliveries AS d").Join("JOIN events AS e ON e.id = d.event_id").
			Where("d.endpoint_id = ? AND d.seq > ? AND d.seq <= ?", r.EndpointID, r.Seq, r.LastSeq)
		if over {
			q = q.Where("d.status <> 'delivered' AND NOT " + waits)
		} else {
			q = q.Where("d.status IN ('failed', 'skipped')")
		}
	} else {
		q = q.TableExpr("events AS e").Join("LEFT JOIN deliveries AS d ON d.endpoint_id = ? AND d.seq = e.seq AND d.event_id = e.id", r.EndpointID).
			Where("e.business_id = ? AND e.seq > ? AND e.seq <= ?", r.BusinessID, r.Seq, r.LastSeq).Where("NOT " + waits)
	}
	if endpoint.AgentID != nil {
		q = q.Where("e.agent_id = ?", *endpoint.AgentID)
	}
	return q.Where("e.timestamp >= ? AND e.timestamp < ? AND e.type IN (?)", r.Since, r.Until, bun.List(endpoint.Events))
}

// AdvanceReplays goes on with the replays of the shards held: of each it makes deliveries due until so many of them wait. It
// returns the endpoints for which something is due now.
func (h *Hooks) AdvanceReplays(ctx context.Context, holds []Hold, window int) ([]Lane, error) {
	if len(holds) == 0 {
		return nil, nil
	}
	of := make(map[int]Hold, len(holds))
	shards := make([]int, len(holds))
	for i, x := range holds {
		of[x.Shard], shards[i] = x, x.Shard
	}
	var replays []*Replay
	err := h.store.Reader().NewSelect().Model(&replays).Where("status = ? AND shard IN (?)", store.ReplayRunning, bun.List(shards)).Order("id").Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the replays that run: %w", err)
	}
	var (
		going errgroup.Group
		mu    sync.Mutex // guards what follows
		lanes []Lane
		errs  []error
	)
	going.SetLimit(replaysAtOnce)
	for _, r := range replays {
		going.Go(func() error {
			due, err := h.advance(ctx, r, of[r.Shard], window)
			mu.Lock()
			defer mu.Unlock()
			if err != nil { // which holds up no other
				errs = append(errs, fmt.Errorf("go on with replay %s: %w", r.ID, err))
			}
			if len(due) > 0 {
				lanes = append(lanes, Lane{Shard: r.Shard, EndpointID: r.EndpointID, BusinessID: r.BusinessID, NextDue: r.CreatedAt})
				h.cfg.DeliveriesChanged(r.BusinessID, due...)
			}
			return nil
		})
	}
	_ = going.Wait()
	return lanes, errors.Join(errs...)
}

const (
	replaysAtOnce = 4     // that are gone on with: their commits are one
	replayStep    = 5_000 // events of a replay that are looked at in one reading
	replayRetries = 1_000 // that may wait until the replay does: a receiver that refuses some holds it up for no time, and one that refuses all until it is well
)

// advance goes on with a replay until it has made something due, or there is nothing left to do now.
func (h *Hooks) advance(ctx context.Context, r *Replay, hold Hold, window int) (due []string, err error) {
	for on := true; on && err == nil && len(due) == 0; {
		due, on, err = h.step(ctx, r, hold, window)
	}
	return due, err
}

// step reads what is next and makes it due, if nobody has gone on with the replay meanwhile. It looks at few events: among a
// million there may be none for this endpoint. On says whether there are more to be looked at.
func (h *Hooks) step(ctx context.Context, r *Replay, hold Hold, window int) (due []string, on bool, err error) {
	var soon, waiting int // what is due or being sent, and that with the retries that are due later
	err = h.store.Reader().NewRaw(`SELECT COUNT(CASE WHEN due <= ? THEN 1 END), COUNT(*) FROM deliveries
		WHERE shard = ? AND endpoint_id = ? AND due > 0 AND replay_id = ?`, h.store.Now(), r.Shard, r.EndpointID, r.ID).Scan(ctx, &soon, &waiting)
	if err != nil || soon > window/2 || waiting-soon > replayRetries {
		return nil, false, err
	}
	endpoint, err := h.Endpoint(ctx, r.BusinessID, r.EndpointID)
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
	err = look.what(h.store.Reader().NewSelect(), endpoint, endpoint.Unswept).Column("e.seq", "e.type", "e.conversation_id", "e.session_id").
		ColumnExpr("e.id AS event_id").Order("e.seq").Limit(int64(limit)).Scan(ctx, &next)
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
	due, went, err := h.makeDue(r, hold, endpoint.Epoch, next, upTo, waiting)
	if err != nil || !went {
		return nil, false, err
	}
	r.Seq = upTo
	return due, upTo < r.LastSeq, nil
}

// againSQL makes a delivery due again, or for the first time if there was none, unless it waits already or was delivered and
// is not to be sent again.
const againSQL = `INSERT INTO deliveries (endpoint_id, seq, event_id, business_id, shard, type, lane, status, due, epoch, trigger_name, replay_id, created_at, updated_at)
	VALUES ($1, $2, $3, $4, $5, $6, $7, 'pending', $8, $9, 'replay', $10, $11, $11)
	ON CONFLICT (endpoint_id, seq, event_id) DO UPDATE SET trigger_name = 'replay', replay_id = excluded.replay_id, base = deliveries.attempts,
		generation = deliveries.generation + 1, due = excluded.due, epoch = excluded.epoch, updated_at = excluded.updated_at,
		status = CASE WHEN deliveries.status = 'delivered' THEN deliveries.status WHEN deliveries.attempts = 0 THEN 'pending' ELSE 'retrying' END
	WHERE (deliveries.due IS NULL OR deliveries.epoch < excluded.epoch) AND (deliveries.status <> 'delivered' OR NOT $12)`

// makeDue makes the next deliveries of a replay due, at one instant, the replay's: then it is by their sequence that they are
// sent. Nothing is done if the hold is over, or if somebody else has gone on with the replay. It returns their ids.
func (h *Hooks) makeDue(r *Replay, hold Hold, epoch int64, next []*replayed, upTo int64, waiting int) (due []string, went bool, err error) {
	share, update := "", ""
	if h.store.Remote() {
		share, update = " FOR KEY SHARE", " FOR UPDATE"
	}
	var held, running bool
	kept := map[string]bool{}
	err = h.store.WriteAside(&store.Write{
		Business: r.BusinessID, Size: 256 + 128*len(next),
		Read: func(t *store.Tx) {
			held, running, due = false, false, nil
			clear(kept)
			var ignored string
			t.Lock(store.LockShards, fmt.Sprintf("%02d", hold.Shard), `SELECT 'held' FROM shards WHERE shard = $1 AND token = $2`+share,
				[]any{int64(hold.Shard), hold.Token}, func(scan func(...any) error) error { held = true; return scan(&ignored) })
			// Locked before the deliveries: whoever ends it, and them, comes before or after.
			t.Lock(store.LockEndpoints, "~"+r.ID, `SELECT sent FROM replays WHERE id = $1 AND status = 'running' AND seq = $2`+update,
				[]any{r.ID, r.Seq}, func(scan func(...any) error) error { running = true; var sent int64; return scan(&sent) })
			for _, e := range next { // retention removes events and their deliveries together: what is there now stays
				t.Lock(store.LockEndpoints, "~~"+e.EventID, `SELECT id FROM events WHERE id = $1`+share, []any{e.EventID},
					func(scan func(...any) error) error { kept[e.EventID] = true; return scan(&ignored) })
			}
		},
		Apply: func(_ context.Context, t *store.Tx) error {
			if !held || !running {
				return nil
			}
			for _, e := range next {
				if !kept[e.EventID] {
					continue
				}
				about := &store.Event{ID: e.EventID, ConversationID: e.ConversationID, SessionID: e.SessionID}
				t.ExecCount(againSQL, []any{
					r.EndpointID, e.Seq, e.EventID, r.BusinessID, int64(r.Shard), string(e.Type), about.Lane(), int64(r.CreatedAt), epoch, r.ID, int64(t.Now),
					r.FailedOnly,
				}, func(changed int64) {
					if changed > 0 {
						due = append(due, DeliveryID(e.EventID, r.EndpointID))
					}
				})
			}
			if upTo == r.LastSeq && len(next) == 0 && waiting == 0 {
				t.Exec(`UPDATE replays SET seq = $1, status = 'finished', total = sent, finished_at = $2 WHERE id = $3`, upTo, int64(t.Now), r.ID)
			} else {
				t.Exec(`UPDATE replays SET seq = $1 WHERE id = $2`, upTo, r.ID)
			}
			return nil
		},
	})
	return due, held && running, err
}

// Replay reads a replay of a business.
func (h *Hooks) Replay(ctx context.Context, business, id string) (*Replay, error) {
	r := new(Replay)
	err := h.store.Reader().NewSelect().Model(r).Where("id = ? AND business_id = ?", id, business).Scan(ctx)
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
func (h *Hooks) ReplaysOf(ctx context.Context, endpoints []string) (map[string][]*Replay, error) {
	of := make(map[string][]*Replay, len(endpoints))
	err := h.store.EachAtOnce(endpoints, func(endpoint string) (*bun.SelectQuery, error) {
		return h.store.Reader().NewSelect().Model((*Replay)(nil)).Where("endpoint_id = ?", endpoint).Order("id DESC").Limit(shownReplays), nil
	}, func(pages []*bun.SelectQuery, _ []string) error {
		var all []*Replay
		if err := h.store.AtOnce(pages...).Scan(ctx, &all); err != nil {
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
