package hook

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"parley/store"
)

// Sending again. A delivery that is sent again, or for the first time out of its turn, is due at an instant and never at 0,
// so that it has no place among the fresh ones; Trigger says why, and Base how many attempts there were before: retries are
// counted from there. Its generation is raised: the outcome of an attempt of before is told apart.

var (
	errDeliveryBusy     = store.Refuse(store.CodeConflict, "delivery_busy", "an attempt of this delivery is being made, or is about to be: wait for its outcome")
	errEndpointDisabled = store.Refuse(store.CodeConflict, "endpoint_disabled", "the webhook endpoint is disabled: enable it first")
	errEndpointDeleted  = store.Refuse(store.CodeConflict, "endpoint_deleted", "the webhook endpoint was deleted")
	errTestDelivery     = store.Refuse(store.CodeConflict, "test_delivery", "this delivery is a test: send another one")
)

// Redeliver has one more attempt made of a delivery, at once. It takes over a pending retry: that one and those after it are not
// made. A delivery that is delivered stays so, whatever comes of the attempt. It refuses while an attempt is due, for it may be
// under way, and where the endpoint is disabled or deleted.
func (h *Hooks) Redeliver(ctx context.Context, v *store.Viewer, id string) (*Delivery, error) {
	known, err := h.Delivery(ctx, v.BusinessID, id)
	if err != nil {
		return nil, err
	}
	var due *Delivery
	err = h.change(v.BusinessID, 512, func(ctx context.Context, t *store.Tx) error {
		endpoint, err := endpointIn(ctx, t.ForUpdate(), v.BusinessID, known.EndpointID) // before the delivery, as everywhere
		if errors.Is(err, errEndpointNotFound) {
			return errEndpointDeleted
		}
		if err != nil {
			return err
		}
		d := new(Delivery)
		err = known.key(t.ForUpdate().Model(d)).Scan(ctx)
		if errors.Is(err, sql.ErrNoRows) {
			return errDeliveryNotFound // retention was faster
		}
		if err != nil {
			return fmt.Errorf("read delivery %s: %w", id, err)
		}
		over := d.Due != nil && d.Epoch < endpoint.Epoch && d.Trigger != store.TriggerTest
		switch {
		case d.Trigger == store.TriggerTest:
			return errTestDelivery
		case endpoint.Status == store.Disabled:
			return errEndpointDisabled
		case d.Due != nil && !over && (*d.Due <= t.Now || d.Trigger != store.TriggerAutomatic):
			return errDeliveryBusy
		}
		d.again(store.TriggerManual, endpoint.Epoch, t.Now)
		if _, err := t.NewUpdate().Model(d).WherePK().Exec(ctx); err != nil {
			return fmt.Errorf("send delivery %s again: %w", id, err)
		}
		h.changed(t, v.BusinessID)
		t.After(func() { h.cfg.DeliveriesChanged(v.BusinessID, d.ID()) })
		due = d
		return nil
	})
	return due, err
}

// again makes the delivery due now, for a reason.
func (d *Delivery) again(why store.AttemptTrigger, epoch int64, now store.Time) {
	switch {
	case d.Status == store.Delivered: // this is final
	case d.Attempts == 0:
		d.Status = store.Pending
	default:
		d.Status = store.Retrying
	}
	d.Trigger, d.Base, d.ReplayID, d.Due, d.Epoch, d.UpdatedAt = why, d.Attempts, nil, &now, epoch, now
	d.Generation++
}

// SendTest makes a test event of a type and its delivery to an endpoint: one attempt, of a document that says `test`, which
// stands in no feed and counts for nothing. A disabled endpoint gets it too, so that it can be tried before it is enabled.
func (h *Hooks) SendTest(_ context.Context, v *store.Viewer, endpoint string, kind store.EventType) (*Delivery, error) {
	var made *Delivery
	var p *Endpoint
	var seq int64
	err := h.store.Write(&store.Write{
		Business: v.BusinessID,
		Size:     2048,
		Read: func(t *store.Tx) {
			p = nil
			t.Read(`SELECT agent_id, epoch, (SELECT seq FROM businesses WHERE businesses.id = endpoints.business_id) FROM endpoints
				WHERE id = $1 AND business_id = $2 AND deleted_at IS NULL`, []any{endpoint, v.BusinessID}, func(scan func(...any) error) error {
				p = &Endpoint{ID: endpoint}
				return scan(&p.AgentID, &p.Epoch, &seq)
			})
		},
		Apply: func(_ context.Context, t *store.Tx) error {
			if p == nil {
				return errEndpointNotFound
			}
			e, err := store.NewTestEvent(v.BusinessID, p.AgentID, kind, t.Now)
			if err != nil {
				return err
			}
			made = &Delivery{
				EndpointID: p.ID, Seq: seq, EventID: e.ID, BusinessID: v.BusinessID, Shard: ShardOf(v.BusinessID), Type: kind, Lane: e.ID,
				Status: store.Pending, Due: &t.Now, Epoch: p.Epoch, Trigger: store.TriggerTest, CreatedAt: t.Now, UpdatedAt: t.Now,
			}
			t.Exec(`INSERT INTO test_events (id, business_id, seq, type, channel, agent_id, conversation_id, session_id, timestamp, direction, body)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
				e.ID, e.BusinessID, seq, string(e.Type), string(e.Channel), e.AgentID, e.ConversationID, e.SessionID, int64(e.Timestamp), string(e.Direction), string(e.Body))
			t.Exec(`INSERT INTO deliveries (endpoint_id, seq, event_id, business_id, shard, type, lane, status, due, epoch, trigger_name, created_at, updated_at)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $9, $9)`,
				made.EndpointID, seq, made.EventID, made.BusinessID, int64(made.Shard), string(kind), made.Lane, string(made.Status), int64(t.Now), p.Epoch,
				string(made.Trigger))
			h.changed(t, v.BusinessID)
			id := made.ID()
			t.After(func() { h.cfg.DeliveriesChanged(v.BusinessID, id) })
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}
