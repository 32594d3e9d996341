package e2e_test

import (
	"context"
	"database/sql"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"parley/e2e/servers"
)

// TestAStandbyForAMoment: the address of PostgreSQL leads to a hot standby for a moment, once by mistake, and once while that one is
// being promoted. Callers are told to come back, and never of an internal error; the probe says so; and no connection stays with a
// server that takes no writes.
func TestAStandbyForAMoment(t *testing.T) {
	t.Parallel()
	primary := servers.NewPostgres(t)
	database := primary.Database(t)
	relay := (&servers.Relay{To: primary.Addr}).Start(t)
	f := productionOn(t, through(database, relay.Addr), 2)
	standby := servers.NewStandby(t, primary)
	in := newInbox(t)
	f.replicas[0].register(in.URL, everything...)
	f.replicas[0].chat("Hello", "")

	ctx, stop := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	t.Cleanup(func() { stop(); clients.Wait() })
	var told atomic.Int64 // chats that were answered
	for i := range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				body := `{"message":"Hello","channel":"sms"}`
				status, header, raw, err := f.replicas[i%2].try(ctx, "POST", "/agents/demo/chat", withKey(apiKey), body)
				switch {
				case ctx.Err() != nil:
				case err != nil:
					t.Errorf("chat: %v", err)
				case status == http.StatusOK:
					told.Add(1)
				case status != http.StatusServiceUnavailable || header.Get("Retry-After") == "":
					t.Errorf("chat: %d %v %s", status, header, raw)
				}
			}
		})
	}
	ready := func(want int) func() bool {
		return func() bool {
			for _, s := range f.replicas {
				status, _, _, err := s.try(ctx, "GET", "/readyz", nil, "")
				if err != nil || status != want {
					return false
				}
			}
			return true
		}
	}
	more := func(what string) {
		t.Helper()
		began := time.Now()
		eventually(t, what+": ready", ready(http.StatusOK))
		target := told.Load() + 20
		eventually(t, what+": chats", func() bool { return told.Load() >= target })
		t.Logf("%s: %v until all replicas are ready and 20 chats were answered", what, time.Since(began).Round(10*time.Millisecond))
	}
	more("at the primary")

	relay.Lead(standby.Addr)
	relay.Sever()
	relay.Mend()
	eventually(t, "not ready at a standby", ready(http.StatusServiceUnavailable))
	relay.Lead(primary.Addr) // what is connected stays where it is
	more("at the primary again")

	db := openAt(t, through(database, standby.Addr))
	stop()
	clients.Wait()
	end := ""
	if err := openAt(t, database).QueryRowContext(t.Context(), "SELECT pg_current_wal_lsn()").Scan(&end); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the standby has it all", func() bool {
		var all bool
		return db.QueryRowContext(t.Context(), "SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn", end).Scan(&all) == nil && all
	})
	relay.Lead(standby.Addr)
	relay.Sever()
	relay.Mend()
	ctx = t.Context()
	eventually(t, "not ready at a standby", ready(http.StatusServiceUnavailable))
	if status, header, answer := f.replicas[0].call("POST", "/agents/demo/chat", withKey(apiKey), `{"message":"Hello","channel":"sms"}`); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("a chat at a standby: %d %v %v", status, header, answer)
	}
	primary.Kill()
	if _, err := db.ExecContext(t.Context(), "SELECT pg_promote()"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	eventually(t, "ready after the promotion", ready(http.StatusOK))
	for _, s := range f.replicas {
		s.chat("Hello", "")
		told.Add(1)
	}
	t.Logf("%v from the promotion until all replicas are ready and have answered a chat", time.Since(began).Round(10*time.Millisecond))
	eventually(t, "everything is delivered", func() bool {
		events, _ := in.counts()
		return events >= 3*int(told.Load()+1)
	})
}

func openAt(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
