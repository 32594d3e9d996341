package store_test

import (
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/store"
)

// TestBatchesAreKeptForAnHour: by the database's clock, whatever the clock of the replica was that made their ids. So are the
// tombstones of those that there were none of.
func TestBatchesAreKeptForAnHour(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	s := open(t, func(c *store.Config) { c.URL = url })
	db := dial(t, url)
	fresh, old := int64(s.Now()), int64(s.Now().Add(-2*time.Hour))
	for id, at := range map[string]int64{"bat_000": fresh, "bat_001": -fresh, "bat_002": old, "bat_003": -old} { // ids of long ago
		if _, err := db.ExecContext(t.Context(), "INSERT INTO batches (id, created_at) VALUES ($1, $2)", id, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Prune(t.Context(), s.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	var left string
	if err := db.QueryRowContext(t.Context(), "SELECT string_agg(id, ' ' ORDER BY id) FROM batches").Scan(&left); err != nil || left != "bat_000 bat_001" {
		t.Errorf("left are %q, %v", left, err)
	}
}
