package store_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"parley/store"
)

func TestOpenRefusesWithOneClearLine(t *testing.T) {
	t.Parallel()
	ready := func(t *testing.T) (dir, url string) {
		dir = t.TempDir()
		url = "file:" + filepath.Join(dir, "parley.db")
		s, err := store.Open(t.Context(), store.Config{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return dir, url
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir, url string)
		want  string
	}{
		"newer version": {func(t *testing.T, dir, _ string) {
			db, err := sql.Open("sqlite", filepath.Join(dir, "parley.db"))
			if err != nil {
				t.Fatal(err)
			}
			b := bun.NewDB(db, sqlitedialect.New())
			defer func() { _ = b.Close() }()
			if _, err := b.Exec("INSERT INTO migrations (name, group_id) VALUES ('29990101000000', 9)"); err != nil {
				t.Fatal(err)
			}
		}, "newer version"},
		"not a database": {func(t *testing.T, dir, _ string) {
			if err := os.WriteFile(filepath.Join(dir, "parley.db"), []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a database"},
		"another key": {func(t *testing.T, dir, _ string) {
			if err := os.Remove(filepath.Join(dir, "parley.db.key")); err != nil {
				t.Fatal(err)
			}
		}, "not the one that this database was made with"},
		"broken key": {func(t *testing.T, dir, _ string) {
			if err := os.WriteFile(filepath.Join(dir, "parley.db.key"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "32 bytes"},
		"in use": {func(t *testing.T, _, url string) {
			s, err := store.Open(t.Context(), store.Config{URL: url, Exclusive: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
		}, "in use by another server"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, url := ready(t)
			c.spoil(t, dir, url)
			s, err := store.Open(t.Context(), store.Config{URL: url, Exclusive: true})
			if err == nil {
				_ = s.Close()
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q, want one line with %q", err, c.want)
			}
		})
	}
}

func TestKeyFileIsForItsOwnerAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Config{URL: "file:" + filepath.Join(dir, "parley.db")})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "parley.db.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestDatabaseIsPrivate: nobody but its owner may read the database, nor what SQLite keeps beside it.
func TestDatabaseIsPrivate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), store.Config{URL: "file:" + filepath.Join(dir, "parley.db"), Exclusive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	newBusiness(t, s)
	for _, name := range []string{"parley.db", "parley.db-wal", "parley.db-shm", "parley.db.key", "parley.db.lock"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if mode := info.Mode(); mode != 0o600 {
			t.Errorf("%s has the mode %v", name, mode)
		}
	}
}

func TestFirstBusinessIsMadeOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		for i := range 2 {
			made, err := s.CreateBusiness(t.Context(), store.BusinessInput{Name: "demo", IfEmpty: true})
			if err != nil || (made != nil) != (i == 0) {
				t.Errorf("start %d: %v, %v", i+1, made, err)
			}
		}
		if n, bootstrapped, err := s.Origin(t.Context()); n != 1 || !bootstrapped || err != nil {
			t.Errorf("%d businesses, bootstrapped %v, %v", n, bootstrapped, err)
		}
	})
}

// TestNoFirstBusinessBesideAnother: a business that was made before the first start takes the demo's place.
func TestNoFirstBusinessBesideAnother(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		made, err := s.CreateBusiness(t.Context(), store.BusinessInput{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if demo, err := s.CreateBusiness(t.Context(), store.BusinessInput{Name: "demo", IfEmpty: true}); demo != nil || err != nil {
			t.Errorf("a demo beside it: %v, %v", demo, err)
		}
		if n, bootstrapped, err := s.Origin(t.Context()); n != 1 || bootstrapped || err != nil {
			t.Errorf("%d businesses, bootstrapped %v, %v", n, bootstrapped, err)
		}
		for secret, want := range map[string]bool{made.APIKey: true, made.APIKey + "x": false, made.Token: false, "": false} {
			if live, err := s.IsLive(t.Context(), store.KindAPIKey, secret); live != want || err != nil {
				t.Errorf("IsLive of %.5s…: %v, %v", secret, live, err)
			}
		}
	})
}

func TestCredentials(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		made, err := s.CreateBusiness(t.Context(), store.BusinessInput{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		key, err := s.Authenticate(t.Context(), store.KindAPIKey, made.APIKey)
		if err != nil || key.RequireChat() != nil || key.Require(store.ScopeRead) == nil {
			t.Errorf("an API key may chat and nothing else: %v, %v", key, err)
		}
		token, err := s.Authenticate(t.Context(), store.KindAccessToken, made.Token)
		if err != nil || token.RequireChat() != nil || token.Require(store.ScopeAdmin) != nil {
			t.Errorf("an ADMIN token may everything: %v, %v", token, err)
		}
		for _, wrong := range []string{"", "sk_", made.APIKey + "x", made.Token} {
			if _, err := s.Authenticate(t.Context(), store.KindAPIKey, wrong); err == nil {
				t.Errorf("%q was let in", wrong)
			}
		}
	})
}

func TestFeedCursors(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, func(c *store.Config) { c.SessionTTL = time.Hour })
		v, stranger := newBusiness(t, s), newBusiness(t, s)
		finish(t, s, begin(t, s, v, ""))
		all := events(t, s, v)
		if seq, err := s.ResumeAt(t.Context(), v.BusinessID, all[1].FeedEdge().Cursor); err != nil || seq != 2 {
			t.Errorf("resumed at %d, %v", seq, err)
		}
		for name, c := range map[string]struct {
			cursor string
			code   store.Code
		}{
			"foreign": {store.Cursor{BusinessID: stranger.BusinessID, Seq: 0}.String(), store.CodeInvalid},
			"garbled": {all[1].FeedEdge().Cursor + "A", store.CodeInvalid},
			"empty":   {"", store.CodeInvalid},
			"future":  {store.Cursor{BusinessID: v.BusinessID, Seq: 4}.String(), store.CodeCursorExpired},
		} {
			_, err := s.ResumeAt(t.Context(), v.BusinessID, c.cursor)
			if e, ok := store.AsError(err); !ok || e.Code != c.code {
				t.Errorf("%s: %v, want %s", name, err, c.code)
			}
		}
		page, err := s.Events(t.Context(), v.BusinessID, nil, store.EventPage{Last: ptr(2)})
		if err != nil || len(page.Edges) != 2 || page.Edges[1].Node.Seq != 3 || !page.PageInfo.HasPreviousPage || page.PageInfo.HasNextPage {
			t.Errorf("the last two: %+v, %v", page, err)
		}
		page, err = s.Events(t.Context(), v.BusinessID, nil, store.EventPage{First: ptr(1), After: &all[0].FeedEdge().Cursor})
		if err != nil || len(page.Edges) != 1 || page.Edges[0].Node.Seq != 2 || !page.PageInfo.HasNextPage {
			t.Errorf("the one after the first: %+v, %v", page, err)
		}
	})
}

// TestInterruptedMigrationIsFinished: a start that was killed half way leaves nothing in the way of the next one, whichever part
// of the migration had been done.
func TestInterruptedMigrationIsFinished(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, func(c *store.Config) {
			raw, err := os.ReadFile("migrations/20261121000000_initial.tx.up.sql")
			if err != nil {
				t.Fatal(err)
			}
			db := dial(t, c.URL)
			for _, statement := range strings.Split(string(raw), "--bun:split")[:5] {
				if _, err := db.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
		})
		finish(t, s, begin(t, s, newBusiness(t, s), ""))
	})
}
