package e2e_test

import (
	"bytes"
	"context"
	"database/sql"
	"net/http"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	_ "modernc.org/sqlite" // the database of the embedded mode

	"parley/e2e/servers"
)

const (
	endpointInFlight = 8   // attempts to one endpoint at once (contract, section 5)
	oneBatch         = 500 // outcomes in one transaction (architecture, point 5)
)

// db is the servers' database.
func (r *rig) db() *sql.DB {
	r.t.Helper()
	if r.database != "" {
		return openPostgres(r.t, r.database)
	}
	db, err := sql.Open("sqlite", filepath.Join(r.servers[0].dir, "parley.db"))
	if err != nil {
		r.t.Fatal(err)
	}
	return db
}

// crashed allows for the doubles of a server that has just died, or lost its hold: what the receiver had, and the database does
// not know of, in flight or in the batch that was not written, and what was on its way to the receiver.
func (r *rig) crashed() {
	r.t.Helper()
	db := r.db()
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(r.t.Context(), `SELECT event_id FROM deliveries WHERE due IS NOT NULL`)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	r.mu.Lock()
	defer r.mu.Unlock()
	unwritten := 0
	for rows.Next() {
		var event string
		if err := rows.Scan(&event); err != nil {
			r.t.Fatal(err)
		}
		if r.arrived[event] {
			unwritten++
		}
	}
	if err := rows.Err(); err != nil {
		r.t.Fatal(err)
	}
	if most := len(r.servers)*endpointInFlight + oneBatch; unwritten > most {
		r.t.Errorf("%d deliveries had arrived that the database does not know of; %d are in flight and one batch", unwritten, most)
	}
	r.allowed += unwritten + endpointInFlight
}

// caller is who chats: an API key, and an agent of its business.
type caller struct{ key, agent string }

// business makes another business beside the running servers, with an agent, and an endpoint at the same receiver.
func (r *rig) business(name string) caller {
	r.t.Helper()
	s := r.servers[0]
	made := (&fleet{t: r.t, env: s.env, dir: s.dir, replicas: r.servers}).tenant(name)
	status, _, answer := s.call("POST", "/v1/webhooks", withToken(made.token), encode(object{"url": r.received.URL, "events": everything}))
	if status != http.StatusCreated {
		r.t.Fatalf("register: %d %v", status, answer)
	}
	agent := at(s.query(made.token, `{ agents { nodes { id } } }`, nil), "agents", "nodes", 0, "id").(string)
	return caller{made.key, agent}
}

// sleep has clients leave a server alone; nil: none.
func (r *rig) sleep(s *server) { r.asleep.Store(s) }

// pick is a server that is awake.
func (r *rig) pick() *server {
	s := r.servers[r.random(len(r.servers))]
	for s == r.asleep.Load() {
		s = r.servers[r.random(len(r.servers))]
	}
	return s
}

// pauseReplica stops a replica in the middle of whatever it does, for longer than its lease: the other has taken everything over
// when it wakes up, and what it then still writes changes nothing.
func pauseReplica(r *rig) {
	victim := r.servers[r.random(len(r.servers))]
	db := r.db()
	defer func() { _ = db.Close() }()
	owners := func(n int) func() bool {
		return func() bool {
			var got int
			err := db.QueryRow("SELECT COUNT(DISTINCT owner) FROM shards WHERE owner <> ''").Scan(&got)
			return err == nil && got == n
		}
	}
	eventually(r.t, "shared out", owners(2))
	r.sleep(victim)
	_ = victim.cmd.Process.Signal(syscall.SIGSTOP)
	defer func() { _ = victim.cmd.Process.Signal(syscall.SIGCONT) }() // if this fails, who waits for its answers is not to hang
	r.crashed()
	eventually(r.t, "taken over from one that sleeps", owners(1))
	r.more(5)
	_ = victim.cmd.Process.Signal(syscall.SIGCONT)
	r.sleep(nil)
	r.more(20)
}

// pausePostgres stops PostgreSQL with all its backends, until the servers have noticed.
func pausePostgres(r *rig) {
	r.postgres.Pause()
	eventually(r.t, "PostgreSQL is silent", func() bool {
		status, _, _, err := r.servers[0].try(context.Background(), "GET", "/readyz", nil, "")
		return err == nil && status == http.StatusServiceUnavailable
	})
	r.postgres.Resume()
	r.allowed += len(r.servers) * (endpointInFlight + oneBatch) // nobody can ask what it did not hear of
	r.more(20)
}

// loseRedis takes Redis away from one replica alone.
func loseRedis(r *rig) {
	one := r.servers[len(r.servers)-1]
	state := func(want string) {
		eventually(r.t, "redis "+want+" at one replica", func() bool { return r.redisAt(one) == want })
	}
	r.toRedis.Sever()
	state("degraded")
	r.more(30)
	r.toRedis.Mend()
	state("ok")
	r.more(10)
}

// doubts are what becomes of commits on their way to PostgreSQL.
type doubts struct {
	left  atomic.Int64 // how many commits are still to be left in doubt
	met   atomic.Int64 // that were
	asked atomic.Int64 // how often a server wanted to know what became of one
}

// judge cuts connections in a commit, which reaches PostgreSQL or not, by turns. Of the questions what became of it every other
// one goes unanswered.
func (d *doubts) judge(said []byte) servers.Fate {
	switch {
	case bytes.Contains(said, []byte("commit\x00")) && d.left.Add(-1) >= 0:
		if d.met.Add(1)%2 == 0 {
			return servers.Unanswered
		}
		return servers.Lost
	case bytes.Contains(said, []byte("SET created_at = batches.created_at")) && d.asked.Add(1)%2 == 1:
		return servers.Unanswered
	}
	return servers.Passed
}

// doubtCommits cuts connections to PostgreSQL between a commit and its answer.
func doubtCommits(r *rig) {
	target := r.doubts.met.Load() + 6
	r.doubts.left.Store(6)
	eventually(r.t, "in doubt", func() bool { return r.doubts.met.Load() >= target })
	r.allowed += len(r.servers) * endpointInFlight // shards may change hands meanwhile
	r.more(20)
}

// stopSlowly stops a server while attempts are in flight at a slow receiver.
func stopSlowly(r *rig) {
	eventually(r.t, "in flight at a slow receiver", func() bool { return r.slow.Load() > 0 })
	stopServer(r)
}

func stopServer(r *rig) {
	victim := r.servers[r.random(len(r.servers))]
	if code := victim.stop(); code != 0 {
		r.t.Errorf("a server ended with %d:\n%s", code, victim.log())
	}
	victim.up()
}

// answerSlowly takes two seconds for an answer.
func answerSlowly(r *rig, req *http.Request) {
	r.slow.Add(1)
	defer r.slow.Add(-1)
	select {
	case <-req.Context().Done():
	case <-time.After(2 * time.Second):
	}
}

// through is a URL with another host.
func through(raw, addr string) string {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err)
	}
	u.Host = addr
	return u.String()
}
