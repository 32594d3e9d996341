package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/uptrace/bun"
)

// Business is the organization that everything belongs to.
type Business struct {
	bun.BaseModel `bun:"table:businesses,alias:business"`

	ID        string `bun:"id,pk"`
	Name      string `bun:"name"`
	Seq       int64  `bun:"seq"`        // the number of its last event
	PrunedSeq int64  `bun:"pruned_seq"` // the number of the last event that retention removed
	CreatedAt Time   `bun:"created_at"`
}

// NewBusiness is a business just made, with the secrets of its first credentials: they are shown this once.
type NewBusiness struct {
	Business *Business
	APIKey   string
	Token    string
}

// BusinessInput is what a business is made from. Empty secrets are generated.
type BusinessInput struct {
	Name   string
	APIKey string
	Token  string
	Agent  *Agent // a first agent; its BusinessID is filled in
	// IfEmpty makes it only in a database without any business; otherwise nothing is made, and the result is nil. It is
	// decided in the transaction: of two servers that start at once, one makes it.
	IfEmpty bool
}

// CreateBusiness makes a business with an API key and an ADMIN token, all in one transaction.
func (s *Store) CreateBusiness(ctx context.Context, in BusinessInput) (*NewBusiness, error) {
	if err := text(in.Name, 1, maxName).Under("name").Err(); err != nil {
		return nil, err
	}
	if in.APIKey == "" {
		in.APIKey = newSecret(KindAPIKey)
	}
	if in.Token == "" {
		in.Token = newSecret(KindAccessToken)
	}
	made := &NewBusiness{APIKey: in.APIKey, Token: in.Token}
	existing := false
	err := s.Change("", 1024, func(ctx context.Context, t *Tx) error {
		existing = false
		made.Business = &Business{ID: NewID("biz"), Name: in.Name, CreatedAt: t.Now}
		if in.IfEmpty {
			// The settings row stands for "the first business was made": whoever inserts it makes it.
			res, err := t.NewRaw("INSERT INTO settings (name, value) SELECT 'bootstrapped', ? WHERE NOT EXISTS (SELECT 1 FROM businesses) ON CONFLICT DO NOTHING",
				[]byte(made.Business.ID)).Exec(ctx)
			if err != nil {
				return err
			}
			if n, err := res.RowsAffected(); err != nil || n == 0 {
				existing = true
				return err
			}
		}
		if _, err := t.NewInsert().Model(made.Business).Returning("NULL").Exec(ctx); err != nil {
			return err
		}
		credentials := []*Credential{
			newCredential(made.Business.ID, KindAPIKey, "first key", "", in.APIKey, t.Now),
			newCredential(made.Business.ID, KindAccessToken, "first token", ScopeAdmin, in.Token, t.Now),
		}
		if _, err := t.NewInsert().Model(&credentials).Returning("NULL").Exec(ctx); err != nil {
			return err
		}
		if in.Agent != nil {
			agent := *in.Agent
			agent.BusinessID, agent.Version, agent.CreatedAt, agent.UpdatedAt = made.Business.ID, 1, t.Now, t.Now
			if _, err := t.NewInsert().Model(&agent).Returning("NULL").Exec(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("create business: %w", err)
	}
	if existing {
		return nil, nil
	}
	return made, nil
}

// Origin says how many businesses there are, and whether the first one was made by CreateBusiness with IfEmpty.
func (s *Store) Origin(ctx context.Context) (businesses int, bootstrapped bool, err error) {
	err = s.read.NewRaw("SELECT (SELECT COUNT(*) FROM businesses), EXISTS (SELECT 1 FROM settings WHERE name = 'bootstrapped')").
		Scan(ctx, &businesses, &bootstrapped)
	if err != nil {
		return 0, false, fmt.Errorf("count businesses: %w", err)
	}
	return businesses, bootstrapped, nil
}

// Business reads a business.
func (s *Store) Business(ctx context.Context, id string) (*Business, error) {
	b := new(Business)
	err := s.read.NewSelect().Model(b).Where("id = ?", id).Scan(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, refuse(CodeNotFound, "business_not_found", "there is no business "+id)
	}
	if err != nil {
		return nil, fmt.Errorf("read business %s: %w", id, err)
	}
	return b, nil
}

// Businesses reads the first businesses, in the order in which they were made.
func (s *Store) Businesses(ctx context.Context, most int) ([]*Business, error) {
	var list []*Business
	if err := s.read.NewSelect().Model(&list).Order("id").Limit(int64(most)).Scan(ctx); err != nil {
		return nil, fmt.Errorf("read the businesses: %w", err)
	}
	return list, nil
}
