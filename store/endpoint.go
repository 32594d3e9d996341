package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/uptrace/bun"
)

// Endpoint is a webhook URL and the types of event that it gets. With an AgentID it is that agent's own webhook URL: it
// gets the agent's communication events, and stands in no list.
type Endpoint struct {
	bun.BaseModel `bun:"table:endpoints,alias:endpoint"`

	ID             string         `bun:"id,pk"`
	BusinessID     string         `bun:"business_id"`
	AgentID        *string        `bun:"agent_id"`
	URL            string         `bun:"url"`
	Events         []EventType    `bun:"events,type:text"`
	Status         EndpointStatus `bun:"status"`
	DisabledReason *string        `bun:"disabled_reason"`
	FailingSince   *Time          `bun:"failing_since"` // the first delivery that failed for good since the last success
	Secrets        []byte         `bun:"secrets"`       // sealed; see secrets
	Shard          int            `bun:"shard"`
	CreatedAt      Time           `bun:"created_at"`
	DeletedAt      *Time          `bun:"deleted_at"`
}

// communicationEvents are what an agent's own webhook URL gets.
var communicationEvents = []EventType{MessageCreated, CallEnded}

// wants says whether the endpoint gets e, which is of its business.
func (p *Endpoint) wants(e *Event) bool {
	return slices.Contains(p.Events, e.Type) && (p.AgentID == nil || equal(p.AgentID, e.AgentID))
}

// EndpointInput is what a caller sets of an endpoint. Nil in an update: stays as it is.
type EndpointInput struct {
	URL    *string
	Events []EventType
	Status *EndpointStatus
}

// Validate finds every fault of the input, with Loc below the input.
func (in *EndpointInput) Validate(cfg Config) Faults {
	var f Faults
	if in.URL != nil {
		f = append(f, cfg.CheckURL(*in.URL).Under("url")...)
	}
	if in.Events != nil && len(in.Events) == 0 {
		f = append(f, Fault{
			Loc: []any{"events"}, Type: "too_short", Msg: "List should have at least 1 item after validation, not 0",
			Ctx: map[string]any{"field_type": "List", "min_length": 1, "actual_length": 0},
		})
	}
	return f
}

// CheckEndpoint finds every fault of an input, with Loc below the input: for transports that have faults of their own to add.
func (s *Store) CheckEndpoint(in EndpointInput) Faults { return in.Validate(s.cfg) }

// CreateEndpoint registers an endpoint, and returns the secret that signs its deliveries: this once.
func (s *Store) CreateEndpoint(_ context.Context, v *Viewer, in EndpointInput) (*Endpoint, string, error) {
	faults := in.Validate(s.cfg)
	if in.URL == nil {
		faults = append(missing().Under("url"), faults...)
	}
	if in.Events == nil {
		faults = append(faults, missing().Under("events")...)
	}
	if err := faults.Under("input").Err(); err != nil {
		return nil, "", err
	}
	endpoint, secret, err := s.newEndpoint(v.BusinessID, *in.URL, in.Events)
	if err != nil {
		return nil, "", err
	}
	err = s.batcher.do(1024, func(ctx context.Context, t *tx) error {
		endpoint.CreatedAt = t.now
		if err := s.roomForEndpoint(ctx, t, v.BusinessID); err != nil {
			return err
		}
		if err := s.roomForDisabled(ctx, t, v.BusinessID); err != nil {
			return err
		}
		_, err := t.NewInsert().Model(endpoint).Returning("NULL").Exec(ctx)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return endpoint, secret, nil
}

func (s *Store) newEndpoint(business, url string, events []EventType) (*Endpoint, string, error) {
	endpoint := &Endpoint{
		ID: newID("whe"), BusinessID: business, URL: url, Events: distinct(events), Status: Enabled, Shard: ShardOf(business),
	}
	secret := s.cfg.NewSecret()
	var err error
	endpoint.Secrets, err = s.sealSecrets(endpoint.ID, []signingSecret{{Secret: secret}})
	return endpoint, secret, err
}

func distinct[T comparable](list []T) []T {
	out := make([]T, 0, len(list))
	for _, x := range list {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

// roomForEndpoint refuses where the business has as many enabled endpoints as it may. On PostgreSQL a lock of its own keeps two
// creations at once from both taking the last place: the business's row is locked last in a transaction, and never here.
func (s *Store) roomForEndpoint(ctx context.Context, t *tx, business string) error {
	if t.remote {
		if _, err := t.NewRaw("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", "endpoints of "+business).Exec(ctx); err != nil {
			return fmt.Errorf("lock the endpoints of %s: %w", business, err)
		}
	}
	n, err := t.NewSelect().Model((*Endpoint)(nil)).
		Where("business_id = ? AND deleted_at IS NULL AND agent_id IS NULL AND status = ?", business, Enabled).Count(ctx)
	if err != nil {
		return fmt.Errorf("count the endpoints of %s: %w", business, err)
	}
	if int(n) >= s.cfg.MaxEndpoints {
		sentence := fmt.Sprintf("a business may have %d enabled webhook endpoints", s.cfg.MaxEndpoints)
		return &Error{Code: CodeInvalid, Reason: "limit_reached", Message: sentence}
	}
	return nil
}

// disabledFactor is how many times as many endpoints a business may have as may be enabled. The list of them has no pages: what
// one query reads of them must be bounded.
const disabledFactor = 2

// roomForDisabled refuses where the business has left too many endpoints disabled. It holds roomForEndpoint's lock.
func (s *Store) roomForDisabled(ctx context.Context, t *tx, business string) error {
	n, err := t.NewSelect().Model((*Endpoint)(nil)).Where("business_id = ? AND deleted_at IS NULL AND agent_id IS NULL", business).Count(ctx)
	if err != nil {
		return fmt.Errorf("count the endpoints of %s: %w", business, err)
	}
	if most := disabledFactor * s.cfg.MaxEndpoints; int(n) >= most {
		sentence := fmt.Sprintf("a business may have %d webhook endpoints, with those that are disabled: delete one of these first", most)
		return &Error{Code: CodeInvalid, Reason: "limit_reached", Message: sentence}
	}
	return nil
}

// UpdateEndpoint changes an endpoint. Disabling it ends what waits for it, in the same commit; enabling it wipes the
// reason for which it was disabled. Right after it was disabled with very much waiting it cannot be enabled (see onceEnded).
func (s *Store) UpdateEndpoint(ctx context.Context, v *Viewer, id string, in EndpointInput) (*Endpoint, error) {
	if err := in.Validate(s.cfg).Under("input").Err(); err != nil {
		return nil, err
	}
	var updated *Endpoint
	err := s.onceEnded(ctx, func() error {
		return s.batcher.do(1024, func(ctx context.Context, t *tx) (err error) {
			updated, err = s.updateEndpoint(ctx, t, v.BusinessID, id, in)
			return err
		})
	})
	if err == nil {
		s.cfg.EndpointsChanged(v.BusinessID)
		s.endSoon()
	}
	return updated, err
}

func (s *Store) updateEndpoint(ctx context.Context, t *tx, business, id string, in EndpointInput) (*Endpoint, error) {
	endpoint, err := endpointIn(ctx, t.forUpdate(), business, id)
	if err != nil {
		return nil, err
	}
	if endpoint.AgentID != nil && (in.URL != nil || in.Events != nil) {
		return nil, refuse(CodeConflict, "agent_endpoint", "this is an agent's own webhook: its URL is set on the agent, and its events are fixed")
	}
	if in.URL != nil && *in.URL != endpoint.URL { // at a new address nothing is known to be wrong
		endpoint.URL, endpoint.FailingSince = *in.URL, nil
	}
	if in.Events != nil {
		endpoint.Events = distinct(in.Events)
	}
	if in.Status != nil && *in.Status != endpoint.Status {
		if *in.Status == Enabled {
			if endpoint.AgentID == nil {
				if err := s.roomForEndpoint(ctx, t, business); err != nil {
					return nil, err
				}
			}
			if err := s.refuseWhileEnding(ctx, t, endpoint); err != nil {
				return nil, err
			}
			endpoint.DisabledReason, endpoint.FailingSince = nil, nil
		} else {
			reason := disabledByBusiness
			endpoint.DisabledReason = &reason
			if err := endDeliveries(ctx, t, id, endpointDisabled); err != nil {
				return nil, err
			}
		}
		endpoint.Status = *in.Status
	}
	if _, err := t.NewUpdate().Model(endpoint).WherePK().Exec(ctx); err != nil {
		return nil, fmt.Errorf("update endpoint %s: %w", id, err)
	}
	return endpoint, nil
}

// DeleteEndpoint removes an endpoint, and ends what waits for it in the same commit. Its deliveries stay on record.
func (s *Store) DeleteEndpoint(_ context.Context, v *Viewer, id string) error {
	err := s.batcher.do(1024, func(ctx context.Context, t *tx) error {
		endpoint, err := endpointIn(ctx, t.forUpdate(), v.BusinessID, id)
		if err != nil {
			return err
		}
		if endpoint.AgentID != nil {
			return refuse(CodeConflict, "agent_endpoint", "this is an agent's own webhook: take the URL from the agent instead")
		}
		return deleteEndpoint(ctx, t, id)
	})
	if err == nil {
		s.cfg.EndpointsChanged(v.BusinessID)
		s.endSoon()
	}
	return err
}

func deleteEndpoint(ctx context.Context, t *tx, id string) error {
	if _, err := t.NewRaw("UPDATE endpoints SET deleted_at = ?, status = ? WHERE id = ?", t.now, Disabled, id).Exec(ctx); err != nil {
		return fmt.Errorf("delete endpoint %s: %w", id, err)
	}
	return endDeliveries(ctx, t, id, endpointDeleted)
}

// disabledByBusiness is the reason of an endpoint that was disabled by those whose it is: only they enable it again.
const disabledByBusiness = "disabled by the business"

// setAgentURL gives an agent its own webhook URL, changes it, or takes it away. A new URL enables it again where it was disabled
// because it failed, at the old one. It may refuse with errStillEnding.
func (s *Store) setAgentURL(ctx context.Context, t *tx, agent *Agent, url OptionalString) error {
	if !url.Set {
		return nil
	}
	endpoint := new(Endpoint)
	err := t.forUpdate().Model(endpoint).
		Where("business_id = ? AND agent_id = ? AND deleted_at IS NULL", agent.BusinessID, agent.ID).Scan(ctx)
	exists := err == nil
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("read the endpoint of agent %s: %w", agent.ID, err)
	}
	switch {
	case url.Value == nil && exists:
		err = deleteEndpoint(ctx, t, endpoint.ID)
	case url.Value == nil:
		err = nil
	case exists:
		if endpoint.URL == *url.Value {
			break
		}
		endpoint.URL, endpoint.FailingSince = *url.Value, nil // at a new address nothing is known to be wrong
		if endpoint.Status == Disabled && (endpoint.DisabledReason == nil || *endpoint.DisabledReason != disabledByBusiness) {
			if err := s.refuseWhileEnding(ctx, t, endpoint); err != nil {
				return err
			}
			endpoint.Status, endpoint.DisabledReason = Enabled, nil
		}
		_, err = t.NewUpdate().Model(endpoint).Column("url", "status", "disabled_reason", "failing_since").WherePK().Exec(ctx)
	default:
		if endpoint, _, err = s.newEndpoint(agent.BusinessID, *url.Value, communicationEvents); err != nil {
			return err
		}
		endpoint.AgentID, endpoint.CreatedAt = &agent.ID, t.now
		_, err = t.NewInsert().Model(endpoint).Returning("NULL").Exec(ctx)
	}
	if err != nil {
		return fmt.Errorf("set the webhook URL of agent %s: %w", agent.ID, err)
	}
	return nil
}

var errEndpointNotFound = refuse(CodeNotFound, "webhook_not_found", "there is no such webhook endpoint")

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
func (s *Store) Endpoint(ctx context.Context, business, id string) (*Endpoint, error) {
	return endpointIn(ctx, s.read.NewSelect(), business, id)
}

// Endpoints reads the registered endpoints of a business, newest first.
func (s *Store) Endpoints(ctx context.Context, business string) ([]*Endpoint, error) {
	endpoints := []*Endpoint{}
	err := s.read.NewSelect().Model(&endpoints).Where("business_id = ? AND deleted_at IS NULL AND agent_id IS NULL", business).
		Order("id DESC").Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the endpoints of %s: %w", business, err)
	}
	return endpoints, nil
}

// EndpointsOfAgents reads agents' own endpoints, by agent.
func (s *Store) EndpointsOfAgents(ctx context.Context, business string, agents []string) (map[string]*Endpoint, error) {
	var endpoints []*Endpoint
	err := s.read.NewSelect().Model(&endpoints).Where("business_id = ? AND deleted_at IS NULL AND agent_id IN (?)", business, bun.List(agents)).Scan(ctx)
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
func (s *Store) EndpointsByID(ctx context.Context, business string, ids []string) (map[string]*Endpoint, error) {
	var endpoints []*Endpoint
	err := s.read.NewSelect().Model(&endpoints).Where("business_id = ? AND deleted_at IS NULL AND id IN (?)", business, bun.List(ids)).Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %d endpoints: %w", len(ids), err)
	}
	of := make(map[string]*Endpoint, len(endpoints))
	for _, p := range endpoints {
		of[p.ID] = p
	}
	return of, nil
}
