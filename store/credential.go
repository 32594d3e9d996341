package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"
)

// CredentialKind tells an API key from an access token.
type CredentialKind string

// The kinds: an API key (`sk_…`) may chat; an access token (`at_…`) may what its scope allows.
const (
	KindAPIKey      CredentialKind = "api_key"
	KindAccessToken CredentialKind = "access_token"
)

// Credential is a secret with which a business calls. The secret itself is kept nowhere, only its SHA-256: the secrets are
// 256 random bits, so there is nothing to guess and no need for a slow hash.
type Credential struct {
	bun.BaseModel `bun:"table:credentials,alias:credential"`

	ID         string         `bun:"id,pk"`
	BusinessID string         `bun:"business_id"`
	Kind       CredentialKind `bun:"kind"`
	Name       string         `bun:"name"`
	Scope      Scope          `bun:"scope"`
	Hash       string         `bun:"hash"`
	Prefix     string         `bun:"prefix"` // the first 8 characters of the secret
	CreatedAt  Time           `bun:"created_at"`
	LastUsedAt *Time          `bun:"last_used_at"`
	RevokedAt  *Time          `bun:"revoked_at"`
}

func newSecret(kind CredentialKind) string {
	prefix := "sk_"
	if kind == KindAccessToken {
		prefix = "at_"
	}
	return prefix + rand.Text() + rand.Text() // 26 characters of base32 each: 260 bits
}

func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func newCredential(business string, kind CredentialKind, name string, scope Scope, secret string, now Time) *Credential {
	return &Credential{
		ID: newID("crd"), BusinessID: business, Kind: kind, Name: name, Scope: scope, Hash: hashSecret(secret),
		Prefix: secret[:min(8, len(secret))], CreatedAt: now,
	}
}

// Viewer is who is calling: a credential, and the business that it opens.
type Viewer struct {
	BusinessID string
	Credential *Credential
}

// Require refuses a viewer whose scope is below the one named. An API key has no scope.
func (v *Viewer) Require(scope Scope) error {
	if v == nil {
		return ErrUnauthenticated
	}
	if slices.Index(scopes, v.Credential.Scope) < slices.Index(scopes, scope) {
		return ErrForbidden
	}
	return nil
}

// RequireChat refuses a viewer that may not chat: an API key may, and a token from OPERATE on.
func (v *Viewer) RequireChat() error {
	if v != nil && v.Credential.Kind == KindAPIKey {
		return nil
	}
	return v.Require(ScopeOperate)
}

// lastUsedStep is how exact Credential.LastUsedAt is: a write a minute and credential at most.
const lastUsedStep = time.Minute

// Authenticate finds the viewer of a secret, or refuses with ErrUnauthenticated. It asks the database each time: a revoked
// credential is refused from the moment of its revocation.
func (s *Store) Authenticate(ctx context.Context, kind CredentialKind, secret string) (*Viewer, error) {
	prefix := "sk_"
	if kind == KindAccessToken {
		prefix = "at_"
	}
	if !strings.HasPrefix(secret, prefix) {
		return nil, ErrUnauthenticated
	}
	c := new(Credential)
	err := s.readRow(ctx, authenticateSQL, []any{hashSecret(secret), kind},
		&c.ID, &c.BusinessID, &c.Kind, &c.Name, &c.Scope, &c.Hash, &c.Prefix, &c.CreatedAt, &c.LastUsedAt)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrUnauthenticated
	}
	if err != nil {
		return nil, fmt.Errorf("authenticate: %w", err)
	}
	if now := s.Now(); c.LastUsedAt == nil || now.Sub(*c.LastUsedAt) > lastUsedStep {
		s.touch(c.ID, now)
	}
	return &Viewer{BusinessID: c.BusinessID, Credential: c}, nil
}

// touch notes that a credential was used. Nobody waits for it, and a server too busy to write it leaves it for the next use.
func (s *Store) touch(id string, now Time) {
	s.batcher.post(128, func(ctx context.Context, t *tx) error {
		_, err := t.NewRaw("UPDATE credentials SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)",
			now, id, now.Add(-lastUsedStep)).Exec(ctx)
		return err
	})
}

// StillValid says whether a credential has not been revoked: for sockets, which authenticate once and stay.
func (s *Store) StillValid(ctx context.Context, v *Viewer) (bool, error) {
	n, err := s.read.NewSelect().Model((*Credential)(nil)).Where("id = ? AND revoked_at IS NULL", v.Credential.ID).Count(ctx)
	if err != nil {
		return false, fmt.Errorf("check credential %s: %w", v.Credential.ID, err)
	}
	return n > 0, nil
}

// IsLive says whether a secret is a credential that has not been revoked. Unlike Authenticate it counts as no use.
func (s *Store) IsLive(ctx context.Context, kind CredentialKind, secret string) (bool, error) {
	n, err := s.read.NewSelect().Model((*Credential)(nil)).Where("hash = ? AND kind = ? AND revoked_at IS NULL", hashSecret(secret), kind).Count(ctx)
	if err != nil {
		return false, fmt.Errorf("look a credential up: %w", err)
	}
	return n > 0, nil
}
