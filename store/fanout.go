package store

import (
	"context"
	"database/sql/driver"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
)

// Deliveries are born together: while the stream rings, an event's are one row, its fan-out, committed with the event. The worker
// hears of it at once, and most deliveries end with their first attempt a moment later: that is when each becomes a row of its own
// (decision 19). One that has to wait becomes a row before: when the worker gives it back, when its shard changes hands, when
// somebody must change it, or when its fan-out is older than foldedFor. To readers it is all the same: shownBorn.
//
// What holds: a delivery that a fan-out lists is one with a row, or else it is pending, and held under the fan-out's lease. Rows are
// made of a fan-out, and that is removed, under its lock; and a row that is there is never made again.

// FanOut is an event's deliveries as they are born.
type FanOut struct {
	bun.BaseModel `bun:"table:fan_outs,alias:fan_out"`

	EventID    string `bun:"event_id,pk"`
	BusinessID string `bun:"business_id"`
	Shard      int    `bun:"shard"`
	Seq        int64  `bun:"seq"`
	Lane       string `bun:"lane"`
	LeaseUntil Time   `bun:"lease_until"`
	CreatedAt  Time   `bun:"created_at"`
	Deliveries births `bun:"deliveries"`
}

// births are deliveries, each with its own id and its endpoint's. In SQL they are a JSON list of such pairs, which are ids of ours and
// need no escaping.
type births [][2]string

// listedBytes is what one takes there.
const listedBytes = 88

// Value writes the list.
func (of births) Value() (driver.Value, error) {
	b := make([]byte, 0, listedBytes*len(of)+2)
	b = append(b, '[')
	for i, d := range of {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, `["`...), d[0]...)
		b = append(append(b, `","`...), d[1]...)
		b = append(b, `"]`...)
	}
	return string(append(b, ']')), nil
}

// Scan reads the list.
func (of *births) Scan(v any) error {
	var list string
	switch v := v.(type) {
	case string:
		list = v
	case []byte:
		list = string(v)
	default:
		return fmt.Errorf("a fan-out of %T", v)
	}
	parts := strings.Split(list, `"`) // what is between two marks is an id, every other time
	*of = make(births, 0, len(parts)/4)
	for i := 1; i+2 < len(parts); i += 4 {
		*of = append(*of, [2]string{parts[i], parts[i+2]})
	}
	return nil
}

const (
	foldedFor      = 2 * time.Second // then what is left of a fan-out is written as rows: readers look through all that there are
	unfoldedAtOnce = 200             // fan-outs a commit, at most
	unfoldedRows   = 1000            // and rows, unless one alone lists more
)

// birth counts an event's deliveries that have no rows yet, for the jobs that were read of its fan-out.
type birth struct {
	event string
	left  atomic.Int64
}

// delivery is the i-th one of the fan-out, as it is born.
func (f *FanOut) delivery(i int) *Delivery {
	return &Delivery{
		ID: f.Deliveries[i][0], BusinessID: f.BusinessID, EndpointID: f.Deliveries[i][1], EventID: f.EventID, Seq: f.Seq, Lane: f.Lane,
		Status: Pending, Leased: true, NextAttemptAt: &f.LeaseUntil, Trigger: TriggerAutomatic, CreatedAt: f.CreatedAt, UpdatedAt: f.CreatedAt,
	}
}

// bornSQL makes a row of a delivery that had none: nobody holds it any more.
const bornSQL = `INSERT INTO deliveries (id, business_id, endpoint_id, event_id, seq, lane, status, attempts, leased, next_attempt_at, trigger_name, created_at,
	updated_at, first_attempt) `

const bornValues = `new.id, new.business_id, new.endpoint_id, new.event_id, new.seq, new.lane, new.status, new.attempts, FALSE, new.next, 'automatic', new.created_at,
	new.updated_at, new.first_attempt`

var bornColumns = []column{
	{"id", "text"},
	{"business_id", "text"},
	{"endpoint_id", "text"},
	{"event_id", "text"},
	{"seq", "bigint"},
	{"lane", "text"},
	{"status", "text"},
	{"attempts", "bigint"},
	{"next", "bigint"},
	{"created_at", "bigint"},
	{"updated_at", "bigint"},
	{"first_attempt", "text"},
}

// newBorn words it. Whether there is a row already PostgreSQL finds out sooner by a look than by a conflict.
func newBorn(remote bool) *bulk {
	if remote {
		return newBulk(true, bornSQL+"SELECT "+bornValues+
			" FROM {rows} WHERE (SELECT there.id FROM deliveries AS there WHERE there.id = new.id) IS NULL RETURNING id", bornColumns...)
	}
	return newBulk(false, bornSQL+"VALUES ("+bornValues+") ON CONFLICT DO NOTHING", bornColumns...)
}

// born is the row as bornColumns has it, of a delivery that is in this state now.
func (j *Job) born(status DeliveryStatus, attempts int, next *Time, updated Time, first string) []any {
	row := []any{
		j.DeliveryID, j.BusinessID, j.EndpointID, j.EventID, j.Seq, j.Lane, string(status), int64(attempts), nil, int64(j.CreatedAt), int64(updated), nil,
	}
	if next != nil {
		row[8] = int64(*next)
	}
	if first != "" {
		row[11] = first
	}
	return row
}

const fanOutsSQL = `SELECT event_id, business_id, seq, lane, lease_until, created_at, deliveries FROM fan_outs WHERE event_id IN ({ids}) ORDER BY seq`

// bornJobs reads the jobs of events' fan-outs, and which of the events have none.
func (s *Store) bornJobs(ctx context.Context, events []string, now Time) (jobs []*Job, others []string, err error) {
	rows, err := s.hotReads[s.fanOutsSQL].QueryContext(ctx, s.idsArg(events))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = rows.Close() }()
	found := make(map[string]bool, len(events))
	for rows.Next() {
		var f FanOut
		if err := rows.Scan(&f.EventID, &f.BusinessID, &f.Seq, &f.Lane, &f.LeaseUntil, &f.CreatedAt, &f.Deliveries); err != nil {
			return nil, nil, err
		}
		found[f.EventID] = true
		of := &birth{event: f.EventID}
		of.left.Store(int64(len(f.Deliveries)))
		for _, d := range f.Deliveries {
			jobs = append(jobs, &Job{
				DeliveryID: d[0], EndpointID: d[1], EventID: f.EventID, Seq: f.Seq, Lane: f.Lane, LeaseUntil: f.LeaseUntil,
				CreatedAt: f.CreatedAt, Trigger: TriggerAutomatic, ReadAt: now, birth: of,
			})
		}
	}
	for _, id := range events {
		if !found[id] {
			others = append(others, id)
		}
	}
	return jobs, others, rows.Err()
}

// rowsMade are the deliveries that a transaction has made rows of, out of their fan-outs.
type rowsMade struct {
	ids map[string]bool
	of  map[*birth]int64
}

// commit counts them, once they are committed.
func (w rowsMade) commit() {
	for of, n := range w.of {
		of.left.Add(-n)
	}
}

const (
	lockFanOutsSQL   = `SELECT event_id FROM fan_outs WHERE event_id IN ({ids}) ORDER BY event_id`
	forgetFanOutsSQL = `DELETE FROM fan_outs WHERE event_id IN (SELECT new.id FROM {rows})`
)

// writeBorn makes rows of those jobs' deliveries that have none yet, as row wants them, and removes the fan-outs that are done with.
// All others have their rows, and are left alone.
func (s *Store) writeBorn(ctx context.Context, t *tx, jobs []*Job, row func(i int) []any) (made rowsMade, err error) {
	made = rowsMade{ids: map[string]bool{}, of: map[*birth]int64{}}
	events := map[string]bool{} // whether its fan-out is there
	for _, j := range jobs {
		if j.birth != nil {
			events[j.EventID] = false
		}
	}
	if len(events) == 0 {
		return made, nil
	}
	_, err = t.query(ctx, s.lockFanOutsSQL, []any{s.idsArg(slices.Sorted(maps.Keys(events)))}, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		events[id] = true
		return err
	})
	if err != nil {
		return made, fmt.Errorf("lock %d fan-outs: %w", len(events), err)
	}
	var rows []int // by jobs
	births := map[string]*birth{}
	for i, j := range jobs {
		if j.birth != nil && events[j.EventID] {
			rows = append(rows, i)
			births[j.DeliveryID] = j.birth
		}
	}
	// By id, as they stand in most indexes: their pages are filled one after the other.
	slices.SortFunc(rows, func(a, b int) int { return strings.Compare(jobs[a].DeliveryID, jobs[b].DeliveryID) })
	_, err = t.run(ctx, s.bornSQL, some{len(rows), func(i int) ([]any, error) { return row(rows[i]), nil }}, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		made.ids[id] = true
		made.of[births[id]]++
		return err
	})
	if err != nil {
		return made, fmt.Errorf("insert %d deliveries: %w", len(rows), err)
	}
	var done []string
	for of, n := range made.of {
		if of.left.Load() == n {
			done = append(done, of.event)
		}
	}
	slices.Sort(done)
	if _, err := t.run(ctx, s.forgetFanOutsSQL, some{len(done), func(i int) ([]any, error) { return []any{done[i]}, nil }}, nil); err != nil {
		return made, fmt.Errorf("remove %d fan-outs: %w", len(done), err)
	}
	return made, nil
}

// unfold makes rows of what fan-outs list and has none yet, and removes those. It takes those that which selects, up to some thousand rows,
// and says whether there may be more. Freed rows are nobody's, and due in their turn; the others stay leased.
func (s *Store) unfold(ctx context.Context, t *tx, freed bool, skip, which string, args ...any) (more bool, err error) {
	var next []struct {
		EventID string `bun:"event_id"`
		Size    int    `bun:"size"`
	}
	err = t.NewRaw("SELECT event_id, LENGTH(deliveries) AS size FROM fan_outs WHERE "+which+" ORDER BY event_id LIMIT ?"+s.locking("UPDATE"+skip),
		append(args, unfoldedAtOnce)...).Scan(ctx, &next)
	if err != nil {
		return false, fmt.Errorf("read which events have deliveries to unfold: %w", err)
	}
	var ids []string
	for n := 0; len(ids) < len(next) && n < unfoldedRows; {
		ids = append(ids, next[len(ids)].EventID)
		n += next[len(ids)-1].Size/listedBytes + 1
	}
	if len(ids) == 0 {
		return false, nil
	}
	var folded []*FanOut
	if err := t.NewRaw("DELETE FROM fan_outs WHERE event_id IN (?) RETURNING *", bun.List(ids)).Scan(ctx, &folded); err != nil {
		return false, fmt.Errorf("unfold the deliveries of %d events: %w", len(ids), err)
	}
	var rows []*Delivery
	for _, f := range folded {
		for i := range f.Deliveries {
			d := f.delivery(i)
			if freed {
				var now Time
				d.Leased, d.NextAttemptAt = false, &now
			}
			rows = append(rows, d)
		}
	}
	slices.SortFunc(rows, func(a, b *Delivery) int { return strings.Compare(a.ID, b.ID) })
	for chunk := range slices.Chunk(rows, 500) {
		if _, err := t.NewInsert().Model(&chunk).On("CONFLICT DO NOTHING").Returning("NULL").Exec(ctx); err != nil {
			return false, fmt.Errorf("insert %d deliveries: %w", len(chunk), err)
		}
	}
	return len(ids) < len(next) || len(next) == unfoldedAtOnce, nil
}

// unfoldAll is unfold for however many there are.
func (s *Store) unfoldAll(ctx context.Context, t *tx, freed bool, skip, which string, args ...any) error {
	for more := true; more; {
		var err error
		if more, err = s.unfold(ctx, t, freed, skip, which, args...); err != nil {
			return err
		}
	}
	return nil
}

// skipLocked has unfold pass over what another transaction is at, rather than wait for it.
const skipLocked = " SKIP LOCKED"

// Unfold makes rows of what has been without for some time: whatever lies in wait for an endpoint, or was lost sight of. It does so in
// small commits.
func (s *Store) Unfold(ctx context.Context) error { return s.unfoldSince(ctx, s.Now().Add(-foldedFor)) }

func (s *Store) unfoldSince(ctx context.Context, old Time) error {
	for more := true; more; {
		var there []string
		err := s.read.NewRaw("SELECT event_id FROM fan_outs WHERE created_at <= ? ORDER BY created_at LIMIT 1", old).Scan(ctx, &there)
		if err != nil || len(there) == 0 {
			return err
		}
		err = s.worker.do(batchBytes, func(ctx context.Context, t *tx) (err error) {
			more, err = s.unfold(ctx, t, false, skipLocked, "created_at <= ?", old)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// unfoldOver makes rows of what fan-outs list for endpoints that are disabled or deleted, with all else that those list.
func (s *Store) unfoldOver(ctx context.Context) error {
	var over []string // by the key of each endpoint that is listed, as in bornTable
	err := s.read.NewRaw(`SELECT f.event_id FROM fan_outs AS f WHERE (SELECT 1 FROM `+s.listed()+`
		WHERE (SELECT e.status = ? OR e.deleted_at IS NOT NULL FROM endpoints AS e WHERE e.id = d.value->>1) LIMIT 1) IS NOT NULL`,
		Disabled).Scan(ctx, &over)
	if err != nil {
		return err
	}
	for piece := range slices.Chunk(over, 10) { // what somebody else is at just now is left for the next time
		err := s.inTx(ctx, func(ctx context.Context, t *tx) error {
			return s.unfoldAll(ctx, t, false, skipLocked, "event_id IN (?)", bun.List(piece))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// listed are the deliveries of a fan-out f, as d.
func (s *Store) listed() string {
	if s.remote() {
		return "LATERAL json_array_elements(CAST(f.deliveries AS JSON)) AS d(value)"
	}
	return "json_each(f.deliveries) AS d"
}

// listing is a pattern for the lists in which an id may be.
func listing(id string) string { return `%"` + id + `"%` }

// bornTable are the deliveries that have no rows yet, as rows; where is a condition on their fan-outs, f, with an AND in front.
func (s *Store) bornTable(where string) string {
	// No EXISTS: PostgreSQL might answer that for all of them at once, out of all deliveries that there are.
	return `(SELECT d.value->>0 AS id, f.business_id, d.value->>1 AS endpoint_id, f.event_id, f.seq, f.lane, 'pending' AS status,
		CAST(0 AS BIGINT) AS attempts, TRUE AS leased, f.lease_until AS next_attempt_at, 'automatic' AS trigger_name, CAST(0 AS BIGINT) AS base,
		CAST(NULL AS TEXT) AS replay_id, f.created_at, f.created_at AS updated_at
		FROM fan_outs AS f CROSS JOIN ` + s.listed() + ` WHERE (SELECT row.id FROM deliveries AS row WHERE row.id = d.value->>0) IS NULL` + where + `)`
}
