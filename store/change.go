package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"
)

// Which deliveries changed, for the live list: bells are lost, and it must find out without them. An index of when rows changed
// would answer that, and make each outcome dearer, which is what the server writes most. But nearly all deliveries change for the
// last time soon after they were made, and those are the last ones by id. So only a change that comes later is noted, in a table
// of its own: of a delivery that is sent again, that waited for long, or whose endpoint was disabled.
//
// Late is measured by the id, whose instant is of the clock of the replica that made it: one whose clock is behind has all of its
// deliveries noted, and none is missed.

const (
	youngFor    = 2 * time.Minute // by its id: a change after that is noted. Retries are usually over by then
	keptChanges = time.Hour

	// LateCommit is how much earlier than its commit a change's instant may be: a batch takes it when it begins.
	LateCommit = commitLimit + 10*time.Second
)

// DeliveryChange says when a delivery last changed.
type DeliveryChange struct {
	bun.BaseModel `bun:"table:delivery_changes,alias:change"`

	BusinessID string `bun:"business_id"`
	ChangedAt  Time   `bun:"changed_at"`
	DeliveryID string `bun:"delivery_id"`
}

var errChangesForgotten = refuse(CodeCursorExpired, "changes_forgotten",
	"the changes of more than an hour could not be read: read the query deliveries, and subscribe again")

// change has a delivery's change noted with the transaction, if it needs to be.
func (t *tx) change(business, delivery string) {
	if t.young == "" {
		t.young = firstID("dlv", t.now.Add(-youngFor))
	}
	if delivery < t.young {
		t.changes = append(t.changes, &DeliveryChange{BusinessID: business, ChangedAt: t.now, DeliveryID: delivery})
	}
}

// noteChanges writes what change has collected.
func (t *tx) noteChanges(ctx context.Context) error {
	if len(t.changes) == 0 {
		return nil
	}
	if _, err := t.NewInsert().Model(&t.changes).On("CONFLICT DO NOTHING").Returning("NULL").Exec(ctx); err != nil {
		return fmt.Errorf("note %d changes of deliveries: %w", len(t.changes), err)
	}
	return nil
}

// DeliveriesChanged reads which deliveries of a business were last changed at an instant or later, oldest change first and by id:
// those after the one named, up to limit. It refuses an instant of which the changes may be forgotten.
func (s *Store) DeliveriesChanged(ctx context.Context, business string, from Time, after DeliveryChange, limit int) ([]DeliveryChange, error) {
	var changes []DeliveryChange
	err := s.read.NewRaw(`SELECT delivery_id, changed_at FROM (
			SELECT id AS delivery_id, updated_at AS changed_at FROM deliveries WHERE business_id = ? AND id >= ? AND updated_at >= ?
			UNION
			SELECT d.id, d.updated_at FROM delivery_changes c JOIN deliveries d ON d.id = c.delivery_id
				WHERE c.business_id = ? AND c.changed_at >= ? AND d.updated_at >= ?
			UNION
			SELECT id, updated_at FROM `+s.bornTable("")+` AS born WHERE business_id = ? AND updated_at >= ?
		) AS found WHERE (changed_at, delivery_id) > (?, ?) ORDER BY changed_at, delivery_id LIMIT ?`,
		business, firstID("dlv", from.Add(-youngFor)), from, business, from, from, business, from, after.ChangedAt, after.DeliveryID, limit).Scan(ctx, &changes)
	if err != nil {
		return nil, fmt.Errorf("read the deliveries of %s changed since %s: %w", business, from, err)
	}
	if s.Now().Sub(from) > keptChanges { // asked after the read: what was removed before it, was older than that before this
		return nil, errChangesForgotten
	}
	return changes, nil
}
