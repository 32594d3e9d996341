package store_test

import (
	"database/sql"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/migrate"

	"parley/e2e/servers"
	"parley/store"
)

// TestAMigrationMayTakeLong: a statement of a migration may take longer than the driver lets any other statement take. It waits
// here for a lock, until another statement was given up on the same terms.
func TestAMigrationMayTakeLong(t *testing.T) { //nolint:paralleltest // it changes for how long an answer is waited for
	t.Cleanup(store.HaveAnswersWithin(time.Second))
	url := servers.Database(t)
	db := dial(t, url)
	blocking, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = blocking.Rollback() }()
	if _, err := blocking.ExecContext(t.Context(), "CREATE TABLE settings (name TEXT)"); err != nil { // the first of the first migration
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		sealer, err := store.NewSealer(secretKey)
		if err == nil {
			var s *store.Store
			if s, err = store.Open(t.Context(), store.Config{URL: url, Sealer: sealer}); err == nil {
				err = s.Close()
			}
		}
		opened <- err
	}()
	for waiting := false; !waiting; {
		err := db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%settings%')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-opened:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
	}
	other := store.OpenPool(url)
	defer func() { _ = other.Close() }()
	if _, err := other.ExecContext(t.Context(), "SELECT pg_sleep(60)"); err == nil {
		t.Fatal("the statement that was to be given up was not")
	}
	select {
	case err := <-opened:
		t.Fatalf("the migration was given up too: %v", err)
	default:
	}
	if err := blocking.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// TestAMigrationAndItsMarkAreOne: a start that ends where a migration's mark was to be written leaves nothing of that migration, and
// the next start goes on from there. Each start here ends one migration further on.
func TestAMigrationAndItsMarkAreOne(t *testing.T) {
	t.Parallel()
	sealer, err := store.NewSealer(secretKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		own  string // where its own migrations are
		url  func(t *testing.T) (url string, db *bun.DB)
		stop string // the start that writes the mark of this name
		lift string
	}{
		"SQLite": {
			own: "sqlite",
			url: func(t *testing.T) (string, *bun.DB) {
				path := filepath.Join(t.TempDir(), "parley.db")
				db, err := sql.Open("sqlite", "file:"+path)
				if err != nil {
					t.Fatal(err)
				}
				return "file:" + path, bun.NewDB(db, sqlitedialect.New())
			},
			stop: "CREATE TRIGGER stop BEFORE INSERT ON migrations WHEN NEW.name = '%s' BEGIN SELECT RAISE(ABORT, 'stopped'); END",
			lift: "DROP TRIGGER stop",
		},
		"PostgreSQL": {
			own: "postgres",
			url: func(t *testing.T) (string, *bun.DB) {
				url := servers.Database(t)
				return url, bun.NewDB(dial(t, url), pgdialect.New())
			},
			stop: "ALTER TABLE migrations ADD CONSTRAINT stopped CHECK (name <> '%s')",
			lift: "ALTER TABLE migrations DROP CONSTRAINT stopped",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, db := c.url(t)
			defer func() { _ = db.Close() }()
			up := func() error {
				s, err := store.Open(t.Context(), store.Config{URL: url, Sealer: sealer})
				if err == nil {
					err = s.Close()
				}
				return err
			}
			if err := migrate.NewMigrator(db, migrate.NewMigrations(), migrate.WithTableName("migrations")).Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob("migrations/*.sql")
			own, err2 := filepath.Glob("migrations/" + c.own + "/*.sql")
			if err != nil || err2 != nil || len(files) < 2 || len(own) == 0 {
				t.Fatal(files, own, err, err2)
			}
			var marks []string
			for _, file := range append(files, own...) {
				mark, _, _ := strings.Cut(filepath.Base(file), "_")
				marks = append(marks, mark)
			}
			slices.Sort(marks)
			for _, mark := range marks {
				if _, err := db.ExecContext(t.Context(), fmt.Sprintf(c.stop, mark)); err != nil {
					t.Fatal(err)
				}
				if err := up(); err == nil || !strings.Contains(err.Error(), "stopped") {
					t.Fatalf("migration %s was not stopped at its mark: %v", mark, err)
				}
				if _, err := db.ExecContext(t.Context(), c.lift); err != nil {
					t.Fatal(err)
				}
			}
			if err := up(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStartsBesideEachOther: a command that opens a SQLite file while a server starts on it for the first time migrates it with that.
func TestStartsBesideEachOther(t *testing.T) {
	t.Parallel()
	sealer, err := store.NewSealer(secretKey)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		url := "file:" + filepath.Join(t.TempDir(), "parley.db")
		var starts sync.WaitGroup
		for range 4 {
			starts.Go(func() {
				s, err := store.Open(t.Context(), store.Config{URL: url, Sealer: sealer})
				if err == nil {
					err = s.Close()
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		starts.Wait()
	}
}

// TestTheMigrationLockIsGivenBack: also where a pooler keeps the session. Whoever waits for it says so once.
func TestTheMigrationLockIsGivenBack(t *testing.T) {
	t.Parallel()
	database := servers.Database(t)
	pooled := through(t, database, &servers.Relay{Pooled: true})
	open(t, func(c *store.Config) { c.URL = pooled })
	db := store.OpenPool(database)
	defer func() { _ = db.Close() }()
	var held int
	err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&held)
	if err != nil || held != 0 {
		t.Fatalf("%d locks are left, %v", held, err)
	}

	other := store.OpenPool(database)
	defer func() { _ = other.Close() }()
	if _, err := other.ExecContext(t.Context(), "SELECT pg_advisory_lock($1)", store.MigrationLock); err != nil {
		t.Fatal(err)
	}
	said := make(lines, 100)
	asked := make(chan error, 1)
	go func() {
		<-said
		_, err := other.ExecContext(t.Context(), "SELECT pg_advisory_unlock($1)", store.MigrationLock)
		asked <- err
	}()
	open(t, func(c *store.Config) { c.URL, c.Log = database, slog.New(slog.NewTextHandler(said, nil)) })
	if err := <-asked; err != nil || len(said) > 0 {
		t.Errorf("%v, and %d more lines", err, len(said))
	}
}

// lines are written to, line by line.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// TestDirectionsAreFilledIn has a database be as it was before events had one, with turns in it whose metadata says otherwise.
func TestDirectionsAreFilledIn(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		var url string
		s := open(t, func(c *store.Config) { url = c.URL })
		v := newBusiness(t, s)
		for _, says := range []string{"inbound", "outbound"} {
			in := turnInput(v, "")
			in.Metadata = ptr(store.JSONObject(`{"direction":"` + says + `","data":{"type":"message.created","direction":"` + says + `"}}`))
			turn, err := s.BeginTurn(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			finish(t, s, turn)
		}
		statements := []string{"DELETE FROM migrations WHERE name = '20261122100000'"}
		for _, index := range []string{"events_of_session", "events_of_conversation", "events_of_agent", "events_on_channel", "runs_of_agent", "runs_in_status"} {
			statements = append(statements, "DROP INDEX "+index)
		}
		for _, table := range []string{"events", "test_events"} {
			statements = append(statements, "ALTER TABLE "+table+" DROP COLUMN direction")
		}
		for _, statement := range statements {
			execute(t, url, statement)
		}
		s = open(t, func(c *store.Config) { c.URL = url })
		all := events(t, s, v)
		if len(all) != 6 {
			t.Fatalf("%d events", len(all))
		}
		for _, e := range all {
			if d, err := e.Details(); err != nil || e.Direction != d.Direction {
				t.Errorf("%s is %s: %s, %v", e.ID, e.Direction, e.Body, err)
			}
		}
	})
}
