package store_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"parley/store"
)

// openTwo opens two stores on one database.
func openTwo(t *testing.T, open opener, change func(*store.Config)) (stores [2]*store.Store, url string) {
	t.Helper()
	for i := range stores {
		stores[i] = open(t, func(c *store.Config) {
			if url == "" {
				url = c.URL
			}
			c.URL = url
			if change != nil {
				change(c)
			}
		})
	}
	return stores, url
}

// refusal is the code and reason of a refusal.
func refusal(t *testing.T, err error) (store.Code, string) {
	t.Helper()
	e, ok := store.AsError(err)
	if !ok {
		t.Fatalf("%v is no refusal", err)
	}
	return e.Code, e.Reason
}

func TestCredentialsAreShownByTheirBeginningAndOpenUntilRevoked(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v, stranger := newBusiness(t, s), newBusiness(t, s)
		key, err := s.CreateAPIKey(t.Context(), v, "till")
		if err != nil {
			t.Fatal(err)
		}
		token, err := s.CreateAccessToken(t.Context(), v, "reports", store.ScopeRead)
		if err != nil {
			t.Fatal(err)
		}
		for _, made := range []struct {
			*store.NewCredential
			kind   store.CredentialKind
			scope  store.Scope
			prefix string
			list   func() ([]*store.Credential, error)
			revoke func(v *store.Viewer, id string) (*store.Credential, error)
		}{
			{
				key, store.KindAPIKey, "", "sk_",
				func() ([]*store.Credential, error) { return s.APIKeys(t.Context(), v.BusinessID) },
				func(v *store.Viewer, id string) (*store.Credential, error) { return s.RevokeAPIKey(t.Context(), v, id) },
			},
			{
				token, store.KindAccessToken, store.ScopeRead, "at_",
				func() ([]*store.Credential, error) { return s.AccessTokens(t.Context(), v.BusinessID) },
				func(v *store.Viewer, id string) (*store.Credential, error) {
					return s.RevokeAccessToken(t.Context(), v, id)
				},
			},
		} {
			caller, err := s.Authenticate(t.Context(), made.kind, made.Secret)
			if err != nil || caller.BusinessID != v.BusinessID || caller.Credential.Scope != made.scope {
				t.Fatalf("%s: %+v, %v", made.kind, caller, err)
			}
			if !strings.HasPrefix(made.Secret, made.prefix) || made.Credential.Prefix != made.Secret[:8] {
				t.Errorf("%s: shown as %s", made.kind, made.Credential.Prefix)
			}
			if _, err := made.revoke(stranger, made.Credential.ID); err == nil {
				t.Errorf("%s: another business revoked it", made.kind)
			} else if code, _ := refusal(t, err); code != store.CodeNotFound {
				t.Errorf("%s: another business got %v", made.kind, err)
			}
			list, err := made.list() // the write of its use is before theirs, who were refused
			if err != nil || len(list) != 2 || list[0].ID != made.Credential.ID || list[0].Prefix != made.Secret[:8] {
				t.Fatalf("%s: %v, %v", made.kind, list, err)
			}
			if list[0].LastUsedAt == nil || list[0].RevokedAt != nil || list[0].CreatedAt == 0 {
				t.Errorf("%s: %+v", made.kind, list[0])
			}
			revoked, err := made.revoke(v, made.Credential.ID)
			if err != nil || revoked.RevokedAt == nil {
				t.Fatalf("%s: %+v, %v", made.kind, revoked, err)
			}
			if _, err := s.Authenticate(t.Context(), made.kind, made.Secret); !errors.Is(err, store.ErrUnauthenticated) {
				t.Errorf("%s: revoked, and yet %v", made.kind, err)
			}
			if valid, err := s.StillValid(t.Context(), caller); valid || err != nil {
				t.Errorf("%s: revoked, and on a socket %v, %v", made.kind, valid, err)
			}
			again, err := made.revoke(v, made.Credential.ID)
			if err != nil || *again.RevokedAt != *revoked.RevokedAt {
				t.Errorf("%s: revoked again: %+v, %v", made.kind, again, err)
			}
		}
		if _, err := s.RevokeAccessToken(t.Context(), v, key.Credential.ID); err == nil {
			t.Error("a key was revoked as a token")
		}
		theirs, err := s.APIKeys(t.Context(), stranger.BusinessID)
		if err != nil || len(theirs) != 1 {
			t.Errorf("the other business has %d keys, %v", len(theirs), err)
		}
	})
}

func TestCredentialNames(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		for name, want := range map[string]string{
			"": "string_too_short", strings.Repeat("ä", 101): "string_too_long", "a\x00b": "value_error", strings.Repeat("ä", 100): "",
		} {
			_, err := s.CreateAPIKey(t.Context(), v, name)
			_, err2 := s.CreateAccessToken(t.Context(), v, name, store.ScopeAdmin)
			for _, err := range []error{err, err2} {
				e, _ := store.AsError(err)
				if want == "" && err != nil || want != "" && (e == nil || len(e.Faults) != 1 || e.Faults[0].Type != want || e.Faults[0].Loc[0] != "name") {
					t.Errorf("%.10q: %v", name, err)
				}
			}
		}
	})
}

// TestCredentialsAreLimited makes more than may be at once, on two servers: as many as there is room for are made, and
// revoking one makes room.
func TestCredentialsAreLimited(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		stores, _ := openTwo(t, open, func(c *store.Config) { c.MaxCredentials = 3 })
		for range 10 {
			v := newBusiness(t, stores[0]) // with a key and a token
			var made atomic.Int32
			var last atomic.Pointer[store.Credential]
			atOnce(6, func(i int) {
				c, err := stores[i%2].CreateAPIKey(t.Context(), v, "one of many")
				if err == nil {
					made.Add(1)
					last.Store(c.Credential)
				} else if code, reason := refusal(t, err); code != store.CodeInvalid || reason != "limit_reached" {
					t.Errorf("refused with %v", err)
				}
			})
			if made.Load() != 1 {
				t.Fatalf("%d were made where there was room for 1", made.Load())
			}
			if _, err := stores[0].RevokeAPIKey(t.Context(), v, last.Load().ID); err != nil {
				t.Fatal(err)
			}
			if _, err := stores[0].CreateAccessToken(t.Context(), v, "in its place", store.ScopeRead); err != nil {
				t.Error(err)
			}
			if _, err := stores[0].CreateAccessToken(t.Context(), v, "one too many", store.ScopeRead); err == nil {
				t.Error("a fourth was made")
			}
		}
	})
}

// atOnce calls do for 0 to n-1, all at the same moment, and waits for them.
func atOnce(n int, do func(i int)) {
	var wg sync.WaitGroup
	ready := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-ready
			do(i)
		})
	}
	close(ready)
	wg.Wait()
}

// TestTheLastAdminTokenStays: whatever is revoked at once, on two servers, a business keeps a token that can make others.
func TestTheLastAdminTokenStays(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		stores, _ := openTwo(t, open, nil)
		s := stores[0]
		for range 10 { // and the tokens of the other businesses do not count
			v := newBusiness(t, s)
			if _, err := s.CreateAccessToken(t.Context(), v, "not enough", store.ScopeOperate); err != nil {
				t.Fatal(err)
			}
			second, err := s.CreateAccessToken(t.Context(), v, "admin", store.ScopeAdmin)
			if err != nil {
				t.Fatal(err)
			}
			ids := []string{v.Credential.ID, second.Credential.ID}
			var refused atomic.Int32
			atOnce(2, func(i int) {
				if _, err := stores[i].RevokeAccessToken(t.Context(), v, ids[i]); err != nil {
					refused.Add(1)
					if code, reason := refusal(t, err); code != store.CodeConflict || reason != "last_admin_token" {
						t.Errorf("refused with %v", err)
					}
				}
			})
			live := 0
			tokens, err := s.AccessTokens(t.Context(), v.BusinessID)
			for _, c := range tokens {
				if c.Scope == store.ScopeAdmin && c.RevokedAt == nil {
					live++
				}
			}
			if err != nil || live != 1 || refused.Load() != 1 {
				t.Errorf("%d ADMIN tokens live, %d refusals, %v", live, refused.Load(), err)
			}
		}
	})
}

func TestRetentionRemovesRevokedCredentials(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		key, err := s.CreateAPIKey(t.Context(), v, "old")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.RevokeAPIKey(t.Context(), v, key.Credential.ID); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			before store.Time
			left   int
		}{{store.Now().Add(-time.Hour), 2}, {store.Now().Add(time.Second), 1}} {
			if _, err := s.Prune(t.Context(), c.before); err != nil {
				t.Fatal(err)
			}
			keys, err := s.APIKeys(t.Context(), v.BusinessID)
			if err != nil || len(keys) != c.left || keys[len(keys)-1].RevokedAt != nil {
				t.Errorf("%d keys are left, %v, want %d", len(keys), err, c.left)
			}
		}
	})
}

func TestListsOfCredentialsAreBounded(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		var first string
		for i := range 105 {
			made, err := s.CreateAPIKey(t.Context(), v, "a key")
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 { // the oldest, and live
				first = made.Credential.ID
				continue
			}
			if _, err := s.RevokeAPIKey(t.Context(), v, made.Credential.ID); err != nil {
				t.Fatal(err)
			}
		}
		keys, err := s.APIKeys(t.Context(), v.BusinessID)
		if err != nil {
			t.Fatal(err)
		}
		revoked, live := 0, map[string]bool{}
		for _, k := range keys {
			if k.RevokedAt != nil {
				revoked++
			} else {
				live[k.ID] = true
			}
		}
		if revoked != 100 || !live[first] {
			t.Errorf("%d of 104 revoked keys are listed; the live one: %v", revoked, live[first])
		}
	})
}
