package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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
		ID: NewID("crd"), BusinessID: business, Kind: kind, Name: name, Scope: scope, Hash: hashSecret(secret),
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

// Authenticate finds the viewer of a secret, or refuses with ErrUnauthenticated. It asks the
// database each time, with all who ask at that moment: a revoked credential is refused from the
// moment of its revocation.
func (s *Store) Authenticate(ctx context.Context, kind CredentialKind, secret string) (*Viewer, error) {
	prefix := "sk_"
	if kind == KindAccessToken {
		prefix = "at_"
	}
	if !strings.HasPrefix(secret, prefix) {
		return nil, ErrUnauthenticated
	}
	c, found, err := s.authenticating.Get(ctx, hashSecret(secret))
	switch {
	case err != nil:
		if _, away := AsError(err); away && ctx.Err() == nil {
			s.reach.lost(err)
		}
		return nil, fmt.Errorf("authenticate: %w", err)
	case !found || c.Kind != kind:
		return nil, ErrUnauthenticated
	}
	if now := s.Now(); c.LastUsedAt == nil || now.Sub(*c.LastUsedAt) > lastUsedStep {
		s.touch(c.BusinessID, c.ID, now)
	}
	return &Viewer{BusinessID: c.BusinessID, Credential: c}, nil
}

const authenticateLimit = 3 * time.Second

// authenticateSQL is prepared: to parse and plan it takes three times as long as to run it.
func (s *Store) authenticateSQL() string {
	hashes := "SELECT value FROM json_each($1)"
	if s.remote() {
		hashes = "SELECT unnest($1::text[])"
	}
	return "SELECT id, business_id, kind, name, scope, hash, prefix, created_at, last_used_at FROM credentials WHERE hash IN (" + hashes + ") AND revoked_at IS NULL"
}

// credentialsOf reads the credentials of hashes, which nobody has revoked. Whoever gets one must
// not change it.
func (s *Store) credentialsOf(ctx context.Context, hashes []string) (map[string]*Credential, error) {
	var asked any = hashes
	if !s.remote() {
		list, err := json.Marshal(hashes)
		if err != nil {
			return nil, err
		}
		asked = string(list)
	}
	rows, err := s.authenticate.QueryContext(ctx, asked)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	of := make(map[string]*Credential, len(hashes))
	for rows.Next() {
		c := new(Credential)
		if err := rows.Scan(&c.ID, &c.BusinessID, &c.Kind, &c.Name, &c.Scope, &c.Hash, &c.Prefix, &c.CreatedAt, &c.LastUsedAt); err != nil {
			return nil, err
		}
		of[c.Hash] = c // whatever went wrong below: nobody gets another one's rights
	}
	return of, rows.Err()
}

// touch notes that a credential was used. Nobody waits for it, and a server too busy to write it leaves it for the next use.
func (s *Store) touch(business, id string, now Time) {
	s.post(business, 128, func(t *Tx) {
		t.Lock(lockCredential, id, `UPDATE credentials SET last_used_at = $1 WHERE id = $2 AND (last_used_at IS NULL OR last_used_at < $3)`,
			[]any{int64(now), id, int64(now.Add(-lastUsedStep))}, nil)
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

// listedRevoked is how many of the revoked credentials a list shows: it has no pages, and they can be made and revoked all day.
const listedRevoked = 100

// maxCredentialName is how long a credential's name may be, in characters.
const maxCredentialName = 100

// NewCredential is a credential just made, with its secret: it is shown this once.
type NewCredential struct {
	Credential *Credential
	Secret     string
}

// CreateAPIKey makes an API key.
func (s *Store) CreateAPIKey(_ context.Context, v *Viewer, name string) (*NewCredential, error) {
	return s.createCredential(v.BusinessID, KindAPIKey, name, "", s.cfg.MaxCredentials)
}

// CreateAccessToken makes an access token.
func (s *Store) CreateAccessToken(_ context.Context, v *Viewer, name string, scope Scope) (*NewCredential, error) {
	return s.createCredential(v.BusinessID, KindAccessToken, name, scope, s.cfg.MaxCredentials)
}

// IssueAccessToken makes an access token by the word of the server's operator. It counts no limit:
// a business that has lost its tokens could revoke nothing to make room for one.
func (s *Store) IssueAccessToken(business, name string, scope Scope) (*NewCredential, error) {
	return s.createCredential(business, KindAccessToken, name, scope, math.MaxInt)
}

// createCredential makes a credential of a business, unless that has as many as it may.
func (s *Store) createCredential(business string, kind CredentialKind, name string, scope Scope, most int) (*NewCredential, error) {
	if err := text(name, 1, maxCredentialName).Under("name").Err(); err != nil {
		return nil, err
	}
	made := &NewCredential{Secret: newSecret(kind)}
	err := s.Change(business, 512, func(ctx context.Context, t *Tx) error {
		if err := lockCredentials(ctx, t, business); err != nil {
			return err
		}
		live, err := t.NewSelect().Model((*Credential)(nil)).Where("business_id = ? AND revoked_at IS NULL", business).Count(ctx)
		if err != nil {
			return fmt.Errorf("count the credentials of %s: %w", business, err)
		}
		if int(live) >= most {
			sentence := fmt.Sprintf("a business may have %d live API keys and access tokens: revoke one first", most)
			return &Error{Code: CodeInvalid, Reason: "limit_reached", Message: sentence}
		}
		made.Credential = newCredential(business, kind, name, scope, made.Secret, t.Now)
		if _, err := t.NewInsert().Model(made.Credential).Returning("NULL").Exec(ctx); err != nil {
			return fmt.Errorf("insert a credential: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// lockCredentials lets one change of a business's credentials at a time count them. It is a lock of its own, as that of
// roomForEndpoint is, and for the same reason.
func lockCredentials(ctx context.Context, t *Tx, business string) error {
	if !t.remote {
		return nil
	}
	if _, err := t.NewRaw("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", "credentials of "+business).Exec(ctx); err != nil {
		return fmt.Errorf("lock the credentials of %s: %w", business, err)
	}
	return nil
}

var (
	errAPIKeyNotFound      = refuse(CodeNotFound, "api_key_not_found", "there is no such API key")
	errAccessTokenNotFound = refuse(CodeNotFound, "access_token_not_found", "there is no such access token")
	errLastAdminToken      = refuse(CodeConflict, "last_admin_token",
		"this is the business's last live ADMIN token, without which nobody could make another: make one first")
)

// RevokeAPIKey revokes an API key. One that is revoked stays as it is.
func (s *Store) RevokeAPIKey(_ context.Context, v *Viewer, id string) (*Credential, error) {
	return s.revoke(v, KindAPIKey, id, errAPIKeyNotFound)
}

// RevokeAccessToken revokes an access token, unless it is the business's last live one with ScopeAdmin. One that is revoked
// stays as it is.
func (s *Store) RevokeAccessToken(_ context.Context, v *Viewer, id string) (*Credential, error) {
	return s.revoke(v, KindAccessToken, id, errAccessTokenNotFound)
}

func (s *Store) revoke(v *Viewer, kind CredentialKind, id string, notFound error) (*Credential, error) {
	var revoked *Credential
	err := s.Change(v.BusinessID, 256, func(ctx context.Context, t *Tx) error {
		if err := lockCredentials(ctx, t, v.BusinessID); err != nil {
			return err
		}
		revoked = new(Credential)
		err := t.ForUpdate().Model(revoked).Where("id = ? AND business_id = ? AND kind = ?", id, v.BusinessID, kind).Scan(ctx)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return notFound
		case err != nil:
			return fmt.Errorf("read credential %s: %w", id, err)
		case revoked.RevokedAt != nil:
			return nil
		}
		if revoked.Scope == ScopeAdmin {
			others, err := t.NewSelect().Model((*Credential)(nil)).
				Where("business_id = ? AND scope = ? AND revoked_at IS NULL AND id <> ?", v.BusinessID, ScopeAdmin, id).Count(ctx)
			if err != nil {
				return fmt.Errorf("count the ADMIN tokens of %s: %w", v.BusinessID, err)
			}
			if others == 0 {
				return errLastAdminToken
			}
		}
		now := t.Now
		revoked.RevokedAt = &now
		if _, err := t.NewUpdate().Model(revoked).Column("revoked_at").WherePK().Exec(ctx); err != nil {
			return fmt.Errorf("revoke credential %s: %w", id, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return revoked, nil
}

// APIKeys reads the API keys of a business, newest first: those that live, and the newest 100 of those revoked, as far back as
// Config.Retention reaches.
func (s *Store) APIKeys(ctx context.Context, business string) ([]*Credential, error) {
	return s.credentials(ctx, business, KindAPIKey)
}

// AccessTokens reads the access tokens of a business, as APIKeys does its keys.
func (s *Store) AccessTokens(ctx context.Context, business string) ([]*Credential, error) {
	return s.credentials(ctx, business, KindAccessToken)
}

func (s *Store) credentials(ctx context.Context, business string, kind CredentialKind) ([]*Credential, error) {
	list := []*Credential{}
	last := s.read.NewSelect().Model((*Credential)(nil)).Column("id").
		Where("business_id = ? AND kind = ? AND revoked_at IS NOT NULL", business, kind).Order("id DESC").Limit(listedRevoked)
	err := s.read.NewSelect().Model(&list).Where("business_id = ? AND kind = ?", business, kind).
		Where("revoked_at IS NULL OR id IN (?)", last).Order("id DESC").Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the credentials of %s: %w", business, err)
	}
	return list, nil
}
