package hook

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/uptrace/bun"

	"parley/store"
)

// Endpoint is a webhook URL and the types of event that it gets. With an AgentID it is that agent's own webhook URL: it
// gets the agent's communication events, and stands in no list.
type Endpoint struct {
	bun.BaseModel `bun:"table:endpoints,alias:endpoint"`

	ID             string               `bun:"id,pk"`
	BusinessID     string               `bun:"business_id"`
	AgentID        *string              `bun:"agent_id"`
	URL            string               `bun:"url"`
	Events         []store.EventType    `bun:"events,type:text"`
	Status         store.EndpointStatus `bun:"status"`
	DisabledReason *string              `bun:"disabled_reason"`
	FailingSince   *store.Time          `bun:"failing_since"` // the first delivery that failed for good since the last success
	Secrets        []byte               `bun:"secrets"`       // sealed; see secret.go
	Shard          int                  `bun:"shard"`
	Epoch          int64                `bun:"epoch"`    // raised with each disabling: what waits under an earlier one is over
	Unswept        bool                 `bun:"unswept"`  // rows may wait for it that are over
	OverSeq        int64                `bun:"over_seq"` // what waits in its turn up to this number is over
	OverAt         store.Time           `bun:"over_at"`  // when it was last disabled
	CreatedAt      store.Time           `bun:"created_at"`
	DeletedAt      *store.Time          `bun:"deleted_at"`
}

// communicationEvents are what an agent's own webhook URL gets.
var communicationEvents = []store.EventType{store.MessageCreated, store.CallEnded}

// EndpointInput is what a caller sets of an endpoint. Nil in an update: stays as it is.
type EndpointInput struct {
	URL    *string
	Events []store.EventType
	Status *store.EndpointStatus
}

// validate finds every fault of the input, with Loc below the input.
func (in *EndpointInput) validate(cfg Config) store.Faults {
	var f store.Faults
	if in.URL != nil {
		f = append(f, cfg.CheckURL(*in.URL).Under("url")...)
	}
	if in.Events != nil && len(in.Events) == 0 {
		f = append(f, store.Fault{
			Loc: []any{"events"}, Type: "too_short", Msg: "List should have at least 1 item after validation, not 0",
			Ctx: map[string]any{"field_type": "List", "min_length": 1, "actual_length": 0},
		})
	}
	return f
}

// CheckEndpoint finds every fault of an input, with Loc below the input: for transports that have faults of their own to add.
func (h *Hooks) CheckEndpoint(in EndpointInput) store.Faults { return in.validate(h.cfg) }

// CreateEndpoint registers an endpoint, and returns the secret that signs its deliveries: this once.
func (h *Hooks) CreateEndpoint(_ context.Context, v *store.Viewer, in EndpointInput) (*Endpoint, string, error) {
	faults := in.validate(h.cfg)
	if in.URL == nil {
		faults = append(store.Faults{store.Missing}.Under("url"), faults...)
	}
	if in.Events == nil {
		faults = append(faults, store.Faults{store.Missing}.Under("events")...)
	}
	if err := faults.Under("input").Err(); err != nil {
		return nil, "", err
	}
	endpoint, secret, err := h.newEndpoint(v.BusinessID, *in.URL, in.Events)
	if err != nil {
		return nil, "", err
	}
	err = h.change(v.BusinessID, 1024, func(ctx context.Context, t *store.Tx) error {
		endpoint.CreatedAt = t.Now
		if err := h.lockEndpoints(ctx, t, v.BusinessID, true); err != nil {
			return err
		}
		if err := h.roomForEndpoint(ctx, t, v.BusinessID); err != nil {
			return err
		}
		if err := h.roomForDisabled(ctx, t, v.BusinessID); err != nil {
			return err
		}
		if _, err := t.NewInsert().Model(endpoint).Returning("NULL").Exec(ctx); err != nil {
			return err
		}
		return setWants(ctx, t, endpoint)
	})
	if err != nil {
		return nil, "", err
	}
	return endpoint, secret, nil
}

func (h *Hooks) newEndpoint(business, url string, events []store.EventType) (*Endpoint, string, error) {
	endpoint := &Endpoint{
		ID: store.NewID("whe"), BusinessID: business, URL: url, Events: store.Distinct(events), Status: store.Enabled, Shard: ShardOf(business),
	}
	secret := h.cfg.NewSecret()
	var err error
	endpoint.Secrets, err = h.sealSecrets(endpoint.ID, []signingSecret{{Secret: secret}})
	return endpoint, secret, err
}

// lockEndpoints lets one transaction at a time count a business's endpoints, where it is going to: on PostgreSQL by a lock of
// its own, which comes before those of the endpoints; the business's row is locked last in a transaction, and never here.
func (h *Hooks) lockEndpoints(ctx context.Context, t *store.Tx, business string, going bool) error {
	if !t.Remote() || !going {
		return nil
	}
	if _, err := t.NewRaw("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", "endpoints of "+business).Exec(ctx); err != nil {
		return fmt.Errorf("lock the endpoints of %s: %w", business, err)
	}
	return nil
}

// roomForEndpoint refuses where the business has as many enabled endpoints as it may. It is called under lockEndpoints.
func (h *Hooks) roomForEndpoint(ctx context.Context, t *store.Tx, business string) error {
	n, err := t.NewSelect().Model((*Endpoint)(nil)).
		Where("business_id = ? AND deleted_at IS NULL AND status = ?", business, store.Enabled).Count(ctx)
	if err != nil {
		return fmt.Errorf("count the endpoints of %s: %w", business, err)
	}
	if int(n) >= h.cfg.MaxEndpoints {
		sentence := fmt.Sprintf("a business may have %d enabled webhook endpoints, its agents' own among them", h.cfg.MaxEndpoints)
		return &store.Error{Code: store.CodeInvalid, Reason: "limit_reached", Message: sentence}
	}
	return nil
}

// disabledFactor is how many times as many endpoints a business may have as may be enabled. The list of them has no pages: what
// one query reads of them must be bounded.
const disabledFactor = 2

// roomForDisabled refuses where the business has left too many endpoints disabled. It is called under lockEndpoints.
func (h *Hooks) roomForDisabled(ctx context.Context, t *store.Tx, business string) error {
	n, err := t.NewSelect().Model((*Endpoint)(nil)).Where("business_id = ? AND deleted_at IS NULL AND agent_id IS NULL", business).Count(ctx)
	if err != nil {
		return fmt.Errorf("count the endpoints of %s: %w", business, err)
	}
	if most := disabledFactor * h.cfg.MaxEndpoints; int(n) >= most {
		sentence := fmt.Sprintf("a business may have %d webhook endpoints, with those that are disabled: delete one of these first", most)
		return &store.Error{Code: store.CodeInvalid, Reason: "limit_reached", Message: sentence}
	}
	return nil
}

// UpdateEndpoint changes an endpoint. Disabling it ends what waits for it, in the same commit; enabling it wipes the
// reason for which it was disabled.
func (h *Hooks) UpdateEndpoint(_ context.Context, v *store.Viewer, id string, in EndpointInput) (*Endpoint, error) {
	if err := in.validate(h.cfg).Under("input").Err(); err != nil {
		return nil, err
	}
	var updated *Endpoint
	err := h.change(v.BusinessID, 1024, func(ctx context.Context, t *store.Tx) (err error) {
		updated, err = h.updateEndpoint(ctx, t, v.BusinessID, id, in)
		return err
	})
	return updated, err
}

func (h *Hooks) updateEndpoint(ctx context.Context, t *store.Tx, business, id string, in EndpointInput) (*Endpoint, error) {
	if err := h.lockEndpoints(ctx, t, business, in.Status != nil && *in.Status == store.Enabled); err != nil {
		return nil, err
	}
	endpoint, err := endpointIn(ctx, t.ForUpdate(), business, id)
	if err != nil {
		return nil, err
	}
	if endpoint.AgentID != nil && (in.URL != nil || in.Events != nil) {
		return nil, store.Refuse(store.CodeConflict, "agent_endpoint", "this is an agent's own webhook: its URL is set on the agent, and its events are fixed")
	}
	if in.URL != nil && *in.URL != endpoint.URL { // at a new address nothing is known to be wrong
		endpoint.URL, endpoint.FailingSince = *in.URL, nil
	}
	if in.Events != nil {
		endpoint.Events = store.Distinct(in.Events)
	}
	if in.Status != nil && *in.Status != endpoint.Status {
		if *in.Status == store.Enabled {
			if err := h.roomForEndpoint(ctx, t, business); err != nil {
				return nil, err
			}
			endpoint.Status, endpoint.DisabledReason, endpoint.FailingSince = store.Enabled, nil, nil
		} else if err := h.disable(ctx, t, endpoint, disabledByBusiness); err != nil {
			return nil, err
		}
	}
	return endpoint, h.writeEndpoint(ctx, t, endpoint)
}

// writeEndpoint writes an endpoint that has changed, and tells of it.
func (h *Hooks) writeEndpoint(ctx context.Context, t *store.Tx, p *Endpoint) error {
	if _, err := t.NewUpdate().Model(p).WherePK().Exec(ctx); err != nil {
		return fmt.Errorf("update endpoint %s: %w", p.ID, err)
	}
	h.changed(t, p.BusinessID)
	return setWants(ctx, t, p)
}

// disable has an endpoint disabled for a reason. What waits for it is over with this commit, by its epoch.
func (h *Hooks) disable(ctx context.Context, t *store.Tx, p *Endpoint, reason string) error {
	p.Status, p.DisabledReason = store.Disabled, &reason
	return h.end(ctx, t, p)
}

// end ends what waits for an endpoint, which is about to be written: its replay, and by its epoch all else.
func (h *Hooks) end(ctx context.Context, t *store.Tx, p *Endpoint) error {
	p.Epoch++
	p.Unswept, p.OverAt = true, t.Now
	if err := t.NewRaw("SELECT seq FROM businesses WHERE id = ?", p.BusinessID).Scan(ctx, &p.OverSeq); err != nil {
		return fmt.Errorf("read how far the feed of %s is: %w", p.BusinessID, err)
	}
	_, err := t.NewRaw("UPDATE replays SET status = ?, finished_at = ? WHERE endpoint_id = ? AND status = ?",
		store.ReplayStopped, t.Now, p.ID, store.ReplayRunning).Exec(ctx)
	if err != nil {
		return fmt.Errorf("stop the replay to %s: %w", p.ID, err)
	}
	t.After(h.nudge)
	return nil
}

// DeleteEndpoint removes an endpoint, and ends what waits for it in the same commit. Its deliveries stay on record.
func (h *Hooks) DeleteEndpoint(_ context.Context, v *store.Viewer, id string) error {
	return h.change(v.BusinessID, 1024, func(ctx context.Context, t *store.Tx) error {
		endpoint, err := endpointIn(ctx, t.ForUpdate(), v.BusinessID, id)
		if err != nil {
			return err
		}
		if endpoint.AgentID != nil {
			return store.Refuse(store.CodeConflict, "agent_endpoint", "this is an agent's own webhook: take the URL from the agent instead")
		}
		return h.remove(ctx, t, endpoint)
	})
}

func (h *Hooks) remove(ctx context.Context, t *store.Tx, p *Endpoint) error {
	p.DeletedAt, p.Status = &t.Now, store.Disabled
	if err := h.end(ctx, t, p); err != nil {
		return err
	}
	return h.writeEndpoint(ctx, t, p)
}

// disabledByBusiness is the reason of an endpoint that was disabled by those whose it is: only they enable it again.
const disabledByBusiness = "disabled by the business"

// SetAgentURL implements store.Outbox: it gives an agent its own webhook URL, changes it, or takes it away. A new URL enables
// it again where it was disabled because it failed, at the old one.
func (h *Hooks) SetAgentURL(ctx context.Context, t *store.Tx, agent *store.Agent, url store.OptionalString) error {
	if url.Value != nil {
		if err := h.lockEndpoints(ctx, t, agent.BusinessID, true); err != nil {
			return err
		}
	}
	endpoint := new(Endpoint)
	err := t.ForUpdate().Model(endpoint).
		Where("business_id = ? AND agent_id = ? AND deleted_at IS NULL", agent.BusinessID, agent.ID).Scan(ctx)
	exists := err == nil
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("read the endpoint of agent %s: %w", agent.ID, err)
	}
	switch {
	case url.Value == nil && exists:
		return h.remove(ctx, t, endpoint)
	case url.Value == nil, exists && endpoint.URL == *url.Value:
		return nil
	case exists:
		endpoint.URL, endpoint.FailingSince = *url.Value, nil // at a new address nothing is known to be wrong
		if endpoint.Status == store.Disabled && (endpoint.DisabledReason == nil || *endpoint.DisabledReason != disabledByBusiness) {
			if err := h.roomForEndpoint(ctx, t, agent.BusinessID); err != nil {
				return err
			}
			endpoint.Status, endpoint.DisabledReason = store.Enabled, nil
		}
		return h.writeEndpoint(ctx, t, endpoint)
	}
	if err := h.roomForEndpoint(ctx, t, agent.BusinessID); err != nil {
		return err
	}
	if endpoint, _, err = h.newEndpoint(agent.BusinessID, *url.Value, communicationEvents); err != nil {
		return err
	}
	endpoint.AgentID, endpoint.CreatedAt = &agent.ID, t.Now
	if _, err = t.NewInsert().Model(endpoint).Returning("NULL").Exec(ctx); err != nil {
		return fmt.Errorf("insert the endpoint of agent %s: %w", agent.ID, err)
	}
	h.changed(t, agent.BusinessID)
	return setWants(ctx, t, endpoint)
}

var errEndpointNotFound = store.Refuse(store.CodeNotFound, "webhook_not_found", "there is no such webhook endpoint")

func endpointIn(ctx context.Context, q *bun.SelectQuery, business, id string) (*Endpoint, error) {
	endpoint := new(Endpoint)
	err := q.Model(endpoint).Where("id = ? AND business_id = ? AND deleted_at IS NULL", id, business).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errEndpointNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read endpoint %s: %w", id, err)
	}
	return endpoint, nil
}

// Endpoint reads an endpoint of a business, an agent's own among them.
func (h *Hooks) Endpoint(ctx context.Context, business, id string) (*Endpoint, error) {
	return endpointIn(ctx, h.store.Reader().NewSelect(), business, id)
}

// Endpoints reads the registered endpoints of a business, newest first.
func (h *Hooks) Endpoints(ctx context.Context, business string) ([]*Endpoint, error) {
	endpoints := []*Endpoint{}
	err := h.store.Reader().NewSelect().Model(&endpoints).Where("business_id = ? AND deleted_at IS NULL AND agent_id IS NULL", business).
		Order("id DESC").Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the endpoints of %s: %w", business, err)
	}
	return endpoints, nil
}

// EndpointsOfAgents reads agents' own endpoints, by agent.
func (h *Hooks) EndpointsOfAgents(ctx context.Context, business string, agents []string) (map[string]*Endpoint, error) {
	var endpoints []*Endpoint
	err := h.store.Reader().NewSelect().Model(&endpoints).Where("business_id = ? AND deleted_at IS NULL AND agent_id IN (?)", business, bun.List(agents)).Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the endpoints of agents: %w", err)
	}
	of := make(map[string]*Endpoint, len(endpoints))
	for _, p := range endpoints {
		of[*p.AgentID] = p
	}
	return of, nil
}

// EndpointsByID reads endpoints of a business by id, without the deleted ones.
func (h *Hooks) EndpointsByID(ctx context.Context, business string, ids []string) (map[string]*Endpoint, error) {
	var endpoints []*Endpoint
	err := h.store.Reader().NewSelect().Model(&endpoints).Where("business_id = ? AND deleted_at IS NULL AND id IN (?)", business, bun.List(ids)).Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %d endpoints: %w", len(ids), err)
	}
	of := make(map[string]*Endpoint, len(endpoints))
	for _, p := range endpoints {
		of[p.ID] = p
	}
	return of, nil
}
