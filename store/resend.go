package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/uptrace/bun"
)

// Sending again. A delivery that is sent again, or for the first time out of its turn, is due at an instant and never at 0, so
// that it has no place among the fresh ones; Trigger says why, and Base how many attempts there were before: retries are
// counted from there. An outcome counts only for the trigger that its job was read with.

var (
	errDeliveryBusy     = refuse(CodeConflict, "delivery_busy", "an attempt of this delivery is being made, or is about to be: wait for its outcome")
	errEndpointDisabled = refuse(CodeConflict, "endpoint_disabled", "the webhook endpoint is disabled: enable it first")
	errEndpointDeleted  = refuse(CodeConflict, "endpoint_deleted", "the webhook endpoint was deleted")
	errTestDelivery     = refuse(CodeConflict, "test_delivery", "this delivery is a test: send another one")
)

// Redeliver has one more attempt made of a delivery, at once. It takes over a pending retry: that one and those after it are not
// made. A delivery that is delivered stays so, whatever comes of the attempt. It refuses while an attempt is being made, or is
// waiting for its first turn, and where the endpoint is disabled or deleted.
func (s *Store) Redeliver(ctx context.Context, v *Viewer, id string) (*Delivery, error) {
	known, err := s.Delivery(ctx, v.BusinessID, id)
	if err != nil {
		return nil, err
	}
	var due *Delivery
	err = s.batcher.do(512, func(ctx context.Context, t *tx) error {
		endpoint, err := endpointIn(ctx, t.forUpdate(), v.BusinessID, known.EndpointID) // before the delivery, as everywhere
		if errors.Is(err, errEndpointNotFound) {
			return errEndpointDeleted
		}
		if err != nil {
			return err
		}
		var folded bool // asked before the row is read: if it is not, there is a row
		if err := t.NewRaw("SELECT EXISTS (SELECT 1 FROM fan_outs WHERE event_id = ?)", known.EventID).Scan(ctx, &folded); err != nil {
			return fmt.Errorf("read whether event %s has a fan-out: %w", known.EventID, err)
		}
		d := new(Delivery)
		err = t.forUpdate().Model(d).Where("id = ?", id).Scan(ctx)
		switch {
		case errors.Is(err, sql.ErrNoRows) && folded && endpoint.Status == Enabled:
			return errDeliveryBusy
		case errors.Is(err, sql.ErrNoRows) && folded:
			return errEndpointDisabled
		case errors.Is(err, sql.ErrNoRows):
			return errDeliveryNotFound // retention was faster
		case err != nil:
			return fmt.Errorf("read delivery %s: %w", id, err)
		case d.Trigger == TriggerTest:
			return errTestDelivery
		case endpoint.Status == Disabled:
			return errEndpointDisabled
		case d.NextAttemptAt != nil && (d.Leased || d.Trigger != TriggerAutomatic || d.Attempts == 0):
			return errDeliveryBusy
		}
		d.again(TriggerManual, t.now)
		if _, err := t.NewUpdate().Model(d).WherePK().Returning("NULL").Exec(ctx); err != nil {
			return fmt.Errorf("send delivery %s again: %w", id, err)
		}
		t.change(d.BusinessID, id)
		due = d
		return nil
	})
	if err == nil {
		s.cfg.DeliveriesWaiting(v.BusinessID, id)
	}
	return due, err
}

// again makes the delivery due now, for a reason.
func (d *Delivery) again(why AttemptTrigger, now Time) {
	switch {
	case d.Status == Delivered: // this is final
	case d.Attempts == 0:
		d.Status = Pending
	default:
		d.Status = Retrying
	}
	d.Trigger, d.Base, d.ReplayID, d.Leased, d.NextAttemptAt, d.UpdatedAt = why, d.Attempts, nil, false, &now, now
}

// SendTest makes a test event of a type and its delivery to an endpoint: one attempt, of a document that says `test`, which
// stands in no feed and counts for nothing. A disabled endpoint gets it too, so that it can be tried before it is enabled.
func (s *Store) SendTest(_ context.Context, v *Viewer, endpoint string, kind EventType) (*Delivery, error) {
	var made *Delivery
	err := s.batcher.do(2048, func(ctx context.Context, t *tx) error {
		p, err := endpointIn(ctx, t.NewSelect(), v.BusinessID, endpoint)
		if err != nil {
			return err
		}
		event, err := newTestEvent(p, kind, t.now)
		if err != nil {
			return err
		}
		d := &Delivery{
			ID: newID("dlv"), BusinessID: v.BusinessID, EndpointID: p.ID, EventID: event.ID, Lane: event.ID, Status: Pending,
			Trigger: TriggerTest, NextAttemptAt: &t.now, CreatedAt: t.now, UpdatedAt: t.now,
		}
		_, err = t.NewInsert().Model(event).ModelTableExpr("test_events").Returning("NULL").Exec(ctx)
		if err == nil {
			_, err = t.NewInsert().Model(d).Returning("NULL").Exec(ctx)
		}
		if err != nil {
			return fmt.Errorf("insert a test for endpoint %s: %w", p.ID, err)
		}
		t.change(d.BusinessID, d.ID)
		made = d
		return nil
	})
	if err == nil {
		s.cfg.DeliveriesWaiting(v.BusinessID, made.ID)
	}
	return made, err
}

// testEvents reads events of tests by their ids, into of.
func (s *Store) testEvents(ctx context.Context, ids []string, of map[string]*Event) error {
	var missing []string
	for _, id := range ids {
		if of[id] == nil {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var events []*Event
	if err := s.read.NewSelect().Model(&events).ModelTableExpr("test_events AS event").Where("event.id IN (?)", bun.List(missing)).Scan(ctx); err != nil {
		return fmt.Errorf("read %d events of tests: %w", len(missing), err)
	}
	for _, e := range events {
		of[e.ID] = e
	}
	return nil
}
