package hook

import (
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"

	"parley/store"
)

// want says that an endpoint wants a type of event: of one agent, or of all. A commit looks its events up here, by business,
// type and agent, and so reads none of the endpoints that do not want them, however many there are.
type want struct {
	bun.BaseModel `bun:"table:wants"`

	BusinessID string          `bun:"business_id,pk"`
	Type       store.EventType `bun:"type,pk"`
	AgentID    string          `bun:"agent_id,pk"` // empty: of all agents
	EndpointID string          `bun:"endpoint_id,pk"`
	Enabled    bool            `bun:"enabled"`
	Epoch      int64           `bun:"epoch"`
}

// setWants writes what an endpoint wants, with its state: with each change of either, in the same commit.
func setWants(ctx context.Context, t *store.Tx, p *Endpoint) error {
	if _, err := t.NewRaw("DELETE FROM wants WHERE business_id = ? AND endpoint_id = ?", p.BusinessID, p.ID).Exec(ctx); err != nil {
		return fmt.Errorf("remove what endpoint %s wanted: %w", p.ID, err)
	}
	if p.DeletedAt != nil {
		return nil
	}
	agent := ""
	if p.AgentID != nil {
		agent = *p.AgentID
	}
	wants := make([]*want, len(p.Events))
	for i, kind := range p.Events {
		wants[i] = &want{BusinessID: p.BusinessID, Type: kind, AgentID: agent, EndpointID: p.ID, Enabled: p.Status == store.Enabled, Epoch: p.Epoch}
	}
	if _, err := t.NewInsert().Model(&wants).Returning("NULL").Exec(ctx); err != nil {
		return fmt.Errorf("write what endpoint %s wants: %w", p.ID, err)
	}
	return nil
}

// birth is a delivery as it is made: the columns that are not those of a row without any attempt.
type birth struct {
	bun.BaseModel `bun:"table:deliveries"`

	EndpointID string               `bun:"endpoint_id"`
	Seq        int64                `bun:"seq"`
	EventID    string               `bun:"event_id"`
	BusinessID string               `bun:"business_id"`
	Shard      int                  `bun:"shard"`
	Type       store.EventType      `bun:"type"`
	Lane       string               `bun:"lane"`
	Status     store.DeliveryStatus `bun:"status"`
	Due        *store.Time          `bun:"due"`
	Epoch      int64                `bun:"epoch"`
	CreatedAt  store.Time           `bun:"created_at"`
	UpdatedAt  store.Time           `bun:"updated_at"`
}

var wantsBulk = store.NewBulk(`SELECT new.row, w.type, w.endpoint_id, w.enabled, w.epoch FROM wants AS w, {rows}
	WHERE w.business_id = new.business_id AND w.type IN (new.type, new.other) AND w.agent_id = new.agent_id`,
	store.Column{Name: "business_id", Type: "text"}, store.Column{Name: "type", Type: "text"}, store.Column{Name: "other", Type: "text"},
	store.Column{Name: "agent_id", Type: "text"})

// DeliveriesFor implements store.Outbox. What it reads it reads in the transaction, which so sees every endpoint whose maker was
// told of it before the events' cause began. It reads two types at once, for a turn ends with two.
func (h *Hooks) DeliveriesFor(t *store.Tx, kinds []store.EventKind) func([]*store.Event) error {
	of := make(map[store.EventKind][]*want, 2*len(kinds))
	type reader struct{ business, agent string }
	types := map[reader][]store.EventType{}
	var readers []reader
	for _, k := range kinds {
		for _, agent := range []string{k.AgentID, ""} {
			r := reader{k.BusinessID, agent}
			if slices.Contains(types[r], k.Type) {
				continue
			}
			if types[r] == nil {
				readers = append(readers, r)
			}
			types[r] = append(types[r], k.Type)
		}
	}
	for _, r := range readers {
		for pair := range slices.Chunk(types[r], 2) {
			t.Bulk(store.ReadOnly, "", wantsBulk, []any{r.business, string(pair[0]), string(pair[len(pair)-1]), r.agent}, func(scan func(...any) error) error {
				w := new(want)
				err := scan(&w.Type, &w.EndpointID, &w.Enabled, &w.Epoch)
				k := store.EventKind{BusinessID: r.business, AgentID: r.agent, Type: w.Type}
				of[k] = append(of[k], w)
				return err
			})
		}
	}
	return func(events []*store.Event) error {
		made := 0
		for _, e := range events {
			all := e.Kind()
			all.AgentID = ""
			wanted := of[all]
			if e.AgentID != nil {
				wanted = append(wanted[:len(wanted):len(wanted)], of[e.Kind()]...)
			}
			if made += len(wanted); made > store.MaxRows && t.Divisible() {
				return store.ErrTooManyRows
			}
			t.Made(e.BusinessID, len(wanted))
			e.Recipients, e.MoreRecipients = nil, false
			for _, w := range wanted {
				store.Insert(t, w.delivery(t, e))
			}
		}
		return nil
	}
}

// delivery makes the row of an event's delivery, and names its endpoint to those who hear of the event.
func (w *want) delivery(t *store.Tx, e *store.Event) *birth {
	b := &birth{
		EndpointID: w.EndpointID, Seq: e.Seq, EventID: e.ID, BusinessID: e.BusinessID, Shard: ShardOf(e.BusinessID), Type: e.Type, Lane: e.Lane(),
		Status: store.Skipped, Epoch: w.Epoch, CreatedAt: t.Now, UpdatedAt: t.Now,
	}
	if !w.Enabled {
		return b
	}
	var turn store.Time
	b.Status, b.Due = store.Pending, &turn
	if len(e.Recipients) < store.MaxRecipients {
		e.Recipients = append(e.Recipients, store.Recipient{EndpointID: w.EndpointID, Epoch: w.Epoch})
	} else {
		e.MoreRecipients = true
	}
	return b
}
