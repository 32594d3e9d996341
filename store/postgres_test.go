package store_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/store"
)

// TestALateAnswerIsNobodyElses: a prepared statement whose caller gave up leaves nothing to whoever asks next.
func TestALateAnswerIsNobodyElses(t *testing.T) {
	t.Parallel()
	db := store.OpenPool(servers.Database(t))
	defer func() { _ = db.Close() }()
	stmt, err := db.PrepareContext(t.Context(), "SELECT $1::text FROM pg_sleep($2::float8)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stmt.Close() }()
	ask := func(ctx context.Context, who string, sleep float64) (said string, err error) {
		err = stmt.QueryRowContext(ctx, who, sleep).Scan(&said)
		return said, err
	}
	if _, err := ask(t.Context(), "Zoe", 0); err != nil {
		t.Fatal(err)
	}
	hasty, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if said, err := ask(hasty, "Alice", 0.5); err == nil {
		t.Fatalf("Alice did not give up: %q", said)
	}
	for _, who := range []string{"Bob", "Carol"} {
		if said, err := ask(t.Context(), who, 0); err != nil || said != who {
			t.Errorf("%s was told %q, %v", who, said, err)
		}
	}
}

// TestASleeperKeepsNoLocks: PostgreSQL ends a session that leaves a transaction alone for as long as a shard's lease.
func TestASleeperKeepsNoLocks(t *testing.T) {
	t.Parallel()
	db := store.OpenPool(servers.Database(t))
	defer func() { _ = db.Close() }()
	var limit string
	if err := db.QueryRowContext(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&limit); err != nil || limit != store.ShardLease.String() {
		t.Errorf("a transaction may be left alone for %q, %v", limit, err)
	}
}

// TestARestartCostsOneRead: when PostgreSQL has ended and is back, one connection finds out for the whole pool.
func TestARestartCostsOneRead(t *testing.T) {
	t.Parallel()
	pg := servers.NewPostgres(t)
	db := store.OpenPool(pg.Database(t))
	defer func() { _ = db.Close() }()
	const connections = 8
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	var open []*sql.Conn
	for range connections {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
	pg.Kill()
	pg.Up()
	for probe := store.OpenPool(pg.URL("postgres")); probe.PingContext(t.Context()) != nil; { // it is starting up
		continue
	}
	failed := 0
	for range 3 * connections {
		if _, err := db.ExecContext(t.Context(), "SELECT 1"); err != nil {
			failed++
		}
	}
	if failed > 1 {
		t.Errorf("%d reads failed", failed)
	}
}
