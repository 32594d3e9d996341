package store_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/egress"
	"parley/store"
	"parley/store/hook"
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
	if err := db.QueryRowContext(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&limit); err != nil || limit != hook.ShardLease.String() {
		t.Errorf("a transaction may be left alone for %q, %v", limit, err)
	}
}

// TestARestartCostsNoRead: when PostgreSQL has ended and is back, whether it was killed or stopped, what is left of its connections
// is not used.
func TestARestartCostsNoRead(t *testing.T) {
	t.Parallel()
	pg := servers.NewPostgres(t)
	db := store.OpenPool(pg.Database(t))
	defer func() { _ = db.Close() }()
	const connections = 8
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	probe := store.OpenPool(pg.URL("postgres"))
	defer func() { _ = probe.Close() }()
	for name, end := range map[string]func(){"killed": pg.Kill, "stopped": pg.Stop} {
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
		end()
		pg.Up()
		for probe.PingContext(t.Context()) != nil { // it is starting up
			continue
		}
		for range 3 * connections {
			if _, err := db.ExecContext(t.Context(), "SELECT 1"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestNoMoreConnections: where PostgreSQL lets nobody in, callers are told to come back, and come back.
func TestNoMoreConnections(t *testing.T) {
	t.Parallel()
	database := servers.Database(t)
	db := store.OpenPool(database)
	defer func() { _ = db.Close() }()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	role := "r" + u.Path[1:] // PostgreSQL's own user has no limit
	do := func(statements ...string) {
		t.Helper()
		for _, statement := range statements {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	do("CREATE ROLE "+role+" LOGIN", "GRANT ALL ON SCHEMA public TO "+role)
	u.User = url.User(role)
	s := open(t, func(c *store.Config) { c.URL = u.String() })
	v := newBusiness(t, s)
	turn := begin(t, s, v, "")
	do("ALTER ROLE "+role+" CONNECTION LIMIT 0", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+role+"'")
	for what, ask := range map[string]func() error{
		"a write": func() error { return s.FailTurn(t.Context(), turn.Run, store.RunInterrupted) },
		"a read":  func() error { _, err := s.Extent(t.Context(), v.BusinessID); return err },
	} {
		for range 3 { // the first may only find out that its connection has ended
			err := ask()
			if told, ok := store.AsError(err); !ok || !errors.Is(told, store.ErrUnavailable) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	do("ALTER ROLE " + role + " CONNECTION LIMIT -1")
	if err := s.FailTurn(t.Context(), turn.Run, store.RunInterrupted); err != nil {
		t.Errorf("there is room again: %v", err)
	}
}

// TestASleeperIsToldToComeBack: a batch whose transaction PostgreSQL has ended, since nothing came for so long, was lost with its
// connection: nothing is wrong with what it wrote.
func TestASleeperIsToldToComeBack(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	db, other := store.OpenPool(url), store.OpenPool(url)
	defer func() { _, _ = db.Close(), other.Close() }()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), "SET idle_in_transaction_session_timeout = 1"); err != nil {
		t.Fatal(err)
	}
	for asleep := true; asleep; {
		err := other.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend')`).Scan(&asleep)
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err = tx.ExecContext(t.Context(), "SELECT 1")
	if told, ok := store.AsError(err); !ok || !errors.Is(told, store.ErrUnavailable) {
		t.Errorf("it was told %v", err)
	}
}

// TestASwitchoverIsFollowed: connections to a server that takes no writes any more are left for what the address leads to now. Here they
// are sessions that have become read-only, where new ones are not.
func TestASwitchoverIsFollowed(t *testing.T) {
	t.Parallel()
	pg := servers.NewPostgres(t)
	url := pg.Database(t)
	s := open(t, func(c *store.Config) { c.URL = url })
	h := hook.New(hook.Config{Store: s, NewSecret: egress.NewSecret})
	v := newBusiness(t, s)
	turn := begin(t, s, v, "")
	if _, err := h.TakeShards(t.Context(), "replica", 1); err != nil {
		t.Fatal(err)
	}
	admin, err := dial(t, url).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	do := func(statement string) {
		t.Helper()
		if _, err := admin.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	do("SET default_transaction_read_only = off")
	do("ALTER SYSTEM SET default_transaction_read_only = on")
	do("SELECT pg_reload_conf()")
	ways := map[string]func() error{
		"a turn":   func() error { return s.KeepTurns(t.Context(), []string{turn.Run.ID}, time.Minute) },
		"in bulk":  func() error { return s.WriteAside(&store.Write{Apply: keepNothing}) },
		"a shard":  func() error { _, err := h.TakeShards(t.Context(), "replica", 1); return err },
		"a lease":  func() error { _, _, err := h.RenewShards(t.Context(), "replica"); return err },
		"a change": func() error { return s.Change("", 0, keepNothing) },
	}
	for what, write := range ways {
		err := write()
		for err == nil { // it has not heard of it yet
			err = write()
		}
		if told, ok := store.AsError(err); !ok || !errors.Is(told, store.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	do("ALTER DATABASE " + strings.Split(strings.Split(url, "/")[3], "?")[0] + " SET default_transaction_read_only = off")
	for what, write := range ways {
		if err := write(); err != nil {
			t.Errorf("%s, afterwards: %v", what, err)
		}
	}
	finish(t, s, turn)
}

func keepNothing(ctx context.Context, t *store.Tx) error {
	_, err := t.NewRaw("UPDATE sessions SET locked_until = locked_until WHERE id = 'none'").Exec(ctx)
	return err
}

// TestASilentServerIsAway: who waits for an answer that does not come, over a connection that does not end, is told to come back.
func TestASilentServerIsAway(t *testing.T) { //nolint:paralleltest // it changes for how long an answer is waited for
	t.Cleanup(store.HaveAnswersWithin(time.Second))
	pg := servers.NewPostgres(t)
	url := pg.Database(t)
	s := open(t, func(c *store.Config) { c.URL = url })
	v := newBusiness(t, s)
	pg.Pause()
	t.Cleanup(pg.Resume)
	for what, ask := range map[string]func() error{
		"a read":  func() error { _, err := s.Extent(t.Context(), v.BusinessID); return err },
		"a write": func() error { return s.Change("", 0, keepNothing) },
	} {
		err := ask()
		if told, ok := store.AsError(err); !ok || !errors.Is(told, store.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	pg.Resume()
	finish(t, s, begin(t, s, v, ""))
}

// TestPoolers: one that gives each transaction another session is refused with one line that says what to do; one in session mode is not.
func TestPoolers(t *testing.T) {
	t.Parallel()
	sealer, err := store.NewSealer(secretKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s, err := store.Open(t.Context(), store.Config{URL: servers.PgBouncer(t, servers.Database(t), mode), Sealer: sealer, SessionTTL: time.Hour})
			if err == nil {
				defer func() { _ = s.Close() }()
			}
			switch {
			case mode == "session" && err != nil:
				t.Error(err)
			case mode == "session":
				finish(t, s, begin(t, s, newBusiness(t, s), ""))
			case err == nil || !strings.Contains(err.Error(), "set the pooler's pool_mode to session") || strings.Contains(err.Error(), "\n"):
				t.Errorf("it was opened: %v", err)
			}
		})
	}
}
