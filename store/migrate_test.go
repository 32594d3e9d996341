package store_test

import (
	"database/sql"
	"testing"

	"github.com/uptrace/bun/driver/pgdriver"

	"parley/e2e/servers"
	"parley/store"
)

// TestAMigrationMayTakeLong: a statement of a migration may take longer than the driver lets any other statement take. It waits
// here for a lock, until another statement was given up on the same terms.
func TestAMigrationMayTakeLong(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	db := sql.OpenDB(pgdriver.NewConnector(pgdriver.WithDSN(url)))
	defer func() { _ = db.Close() }()
	blocking, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = blocking.Rollback() }()
	if _, err := blocking.ExecContext(t.Context(), "CREATE TABLE settings (name TEXT)"); err != nil { // the first of the first migration
		t.Fatal(err)
	}
	hasty := url + "&read_timeout=2s"
	opened := make(chan error, 1)
	go func() {
		sealer, err := store.NewSealer(secretKey)
		if err == nil {
			var s *store.Store
			if s, err = store.Open(t.Context(), store.Config{URL: hasty, Sealer: sealer}); err == nil {
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
	other := sql.OpenDB(pgdriver.NewConnector(pgdriver.WithDSN(hasty)))
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
