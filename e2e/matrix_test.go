package e2e_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"parley/e2e/servers"
)

// The crash matrix (docs/operations.md): what must hold whatever dies. Each cell is a load of chats, with one failure again
// and again, and the same four promises checked after it. CI makes few rounds of it; more with
//
//	go test ./e2e -run TestCrashMatrix -crash.rounds 20 -crash.seed 7 -timeout 2h
var (
	crashRounds = flag.Int("crash.rounds", 1, "how often each failure of the crash matrix happens")
	crashSeed   = flag.Uint64("crash.seed", 1, "the seed of what is random in the crash matrix")
	crashUpdate = flag.Bool("crash.update", false, "write the crash matrix into docs/operations.md")
)

// failure is a column of the matrix. It happens while clients chat.
type failure struct {
	name       string
	point      string           // of a replica that kills itself there
	strike     func(r *rig)     // or what is done to the servers, once
	production bool             // it needs Redis and PostgreSQL
	answer     http.HandlerFunc // or what the receiver does to a part of the requests
	slow       bool             // or the receiver takes its time for a part of them
	relayed    bool             // the last replica has a way of its own to Redis
	several    bool             // more businesses chat, each with an endpoint of its own
}

var failures = []failure{
	{name: "kill -9 before a commit", point: "commit.before"},
	{name: "kill -9 after a commit", point: "commit.after"},
	{name: "kill -9 before a send", point: "send.before"},
	{name: "kill -9 after a send", point: "send.after"},
	{name: "kill -9 before an outcome is written", point: "record.before"},
	{name: "kill -9 after an outcome is written", point: "record.after"},
	{name: "kill -9 at any moment", strike: func(r *rig) {
		victim := r.servers[r.random(len(r.servers))]
		victim.kill()
		r.crashed()
		victim.up()
	}},
	{name: "kill -9 at any moment, several businesses at once", several: true, strike: func(r *rig) {
		victim := r.servers[r.random(len(r.servers))]
		victim.kill()
		r.crashed()
		victim.up()
	}},
	{name: "stop (SIGTERM) at any moment", strike: stopServer},
	{name: "stop (SIGTERM) with slow attempts in flight", strike: stopSlowly, slow: true},
	{name: "a replica sleeps for longer than its lease (SIGSTOP)", production: true, strike: pauseReplica},
	{name: "receiver resets in mid-body", answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte("half"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}},
	{name: "Redis restarts, empty", production: true, strike: func(r *rig) {
		r.bell.Kill()
		r.redis("degraded")
		r.bell.Up()
		r.redis("ok")
	}},
	{name: "Redis is flushed", production: true, strike: func(r *rig) { r.bell.Command("FLUSHALL") }},
	{name: "Redis pauses", production: true, strike: func(r *rig) {
		_ = r.bell.Signal(syscall.SIGSTOP)
		r.more(20)
		_ = r.bell.Signal(syscall.SIGCONT)
		r.redis("ok")
	}},
	{name: "one replica alone loses Redis", production: true, strike: loseRedis, relayed: true},
	{name: "PostgreSQL pauses", production: true, strike: pausePostgres},
	{name: "the connection is lost in a commit", production: true, strike: doubtCommits},
	{name: "PostgreSQL restarts after a kill -9", production: true, strike: func(r *rig) {
		r.postgres.Kill()
		eventually(r.t, "PostgreSQL is away", func() bool {
			status, _, _, err := r.servers[0].try(context.Background(), "GET", "/readyz", nil, "")
			return err == nil && status == http.StatusServiceUnavailable
		})
		r.postgres.Up()
		r.allowed += len(r.servers) * (endpointInFlight + oneBatch)
	}},
}

// TestCrashMatrix produces the matrix.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	deadly := filepath.Join(filepath.Dir(binary), "parley-failpoints")
	build := exec.Command("go", append(append([]string{"build"}, buildFlags...), "-tags", "failpoints", "-o", deadly, "parley")...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server with fail points: %v\n%s", err, out)
	}
	var mu sync.Mutex
	cells := map[string]string{}
	t.Run("cells", func(t *testing.T) {
		gate := make(chan struct{}, 3) // cells at a time: they are for two cores
		for i, f := range failures {
			for _, mode := range []string{"embedded", "production"} {
				if f.production && mode == "embedded" {
					continue
				}
				t.Run(mode+"/"+f.name, func(t *testing.T) {
					t.Parallel()
					gate <- struct{}{}
					defer func() { <-gate }()
					r := newRig(t, mode, deadly, f, rand.New(rand.NewPCG(*crashSeed, uint64(i))))
					cell := r.run()
					mu.Lock()
					defer mu.Unlock()
					cells[mode+"/"+f.name] = cell
				})
			}
		}
	})
	var table strings.Builder
	table.WriteString("| what happens | embedded | production, 2 replicas |\n|---|---|---|\n")
	for _, f := range failures {
		fmt.Fprintf(&table, "| %s | %s | %s |\n", f.name, cellOr(cells["embedded/"+f.name]), cellOr(cells["production/"+f.name]))
	}
	t.Logf("after %d rounds, seed %d:\n%s", *crashRounds, *crashSeed, &table)
	if *crashUpdate && !t.Failed() {
		const begin, end = "<!-- the matrix begins -->\n", "<!-- the matrix ends -->\n"
		const page = "../docs/operations.md"
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, _ := strings.Cut(string(raw), begin)
		_, after, found := strings.Cut(rest, end)
		if !found {
			t.Fatal("the page has no place for the matrix")
		}
		note := fmt.Sprintf("%d rounds of each, seed %d.\n\n", *crashRounds, *crashSeed)
		if err := os.WriteFile(page, []byte(before+begin+note+table.String()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func cellOr(cell string) string {
	if cell == "" {
		return "·"
	}
	return cell
}

// rig is a load with everything that checks it.
type rig struct {
	t        *testing.T
	f        failure
	servers  []*server
	bell     *servers.Server
	postgres *servers.Postgres
	received *receiver

	callers  []caller
	database string         // its address; empty: a SQLite file
	toRedis  *servers.Relay // through which the last replica reaches Redis
	doubts   doubts         // of commits, on the way of all of them to PostgreSQL
	asleep   atomic.Pointer[server]
	slow     atomic.Int64 // requests that wait at a slow receiver

	mu           sync.Mutex // guards what follows
	rnd          *rand.Rand
	acknowledged []string // ids of the messages of answered turns, the user's turn being told by its reply
	allowed      int      // doubles
	resets       int
	requests     int
	arrived      map[string]bool    // by event
	messages     map[string]bool    // by message id
	last         map[string]float64 // at the receiver, by session
	seen         map[string]bool    // on the feed, by event
	sequences    map[string]float64 // on the feed, by session
	cursor       any
}

func newRig(t *testing.T, mode, deadly string, f failure, rnd *rand.Rand) *rig {
	r := &rig{
		t: t, f: f, rnd: rnd, arrived: map[string]bool{}, messages: map[string]bool{}, last: map[string]float64{},
		seen: map[string]bool{}, sequences: map[string]float64{},
	}
	env := []string{"PARLEY_DELIVERY_RETRIES=8", "PARLEY_DELIVERY_BACKOFF=20ms"}
	if mode == "embedded" {
		r.servers = []*server{{t: t, dir: t.TempDir(), env: append([]string{
			"PARLEY_BOOTSTRAP_API_KEY=" + apiKey, "PARLEY_BOOTSTRAP_TOKEN=" + token, "PARLEY_ALLOW_PRIVATE_WEBHOOKS=true",
			"PARLEY_ADDR=" + servers.FreePort(t), "PARLEY_DRAIN_DELAY=0s",
		}, env...)}}
		r.servers[0].up()
	} else {
		r.postgres = servers.NewPostgres(t)
		r.database = r.postgres.Database(t)
		toPostgres := (&servers.Relay{To: r.postgres.Addr, Judge: r.doubts.judge}).Start(t)
		fleet := productionOn(t, through(r.database, toPostgres.Addr), 2, env...)
		r.servers, r.bell = fleet.replicas, fleet.bell
		if f.relayed {
			r.toRedis = (&servers.Relay{To: r.bell.Addr}).Start(t)
			last := r.servers[len(r.servers)-1]
			last.kill()
			last.env = append(last.env[:len(last.env):len(last.env)], "PARLEY_REDIS_URL=redis://"+r.toRedis.Addr)
			last.up()
		}
		for _, s := range r.servers {
			s.env = append(s.env[:len(s.env):len(s.env)], "PARLEY_ADDR="+s.url()[len("http://"):]) // the same after each start
		}
	}
	for _, s := range r.servers {
		s.binary = deadly
	}
	r.received = receive(t, func(_ int, w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		reset := r.f.answer != nil && r.rnd.IntN(3) == 0
		slow := r.f.slow && r.rnd.IntN(10) == 0
		if reset {
			r.resets++
		}
		r.mu.Unlock()
		switch {
		case reset:
			r.f.answer(w, req)
		case slow:
			answerSlowly(r, req)
		}
	})
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		for h := range r.received.came {
			r.take(h)
		}
	}()
	t.Cleanup(func() { r.received.Close(); close(r.received.came); <-taken })
	r.servers[0].register(r.received.URL, everything...)
	r.callers = []caller{{apiKey, "demo"}}
	if f.several {
		for i := range 5 {
			r.callers = append(r.callers, r.business(fmt.Sprint("business ", i)))
		}
	}
	r.cursor = at(r.servers[0].query(token, `{feedCursor}`, nil), "feedCursor")
	return r
}

// ask asks until there is an answer: a database that was away a moment ago may still refuse a
// request.
func (r *rig) ask(query string, variables object) (data any) {
	body := encode(object{"query": query, "variables": variables})
	eventually(r.t, "an answer", func() bool {
		status, _, raw, err := r.servers[0].try(context.Background(), "POST", "/graphql", withToken(token), body)
		var answer any
		if err != nil || status != http.StatusOK || json.Unmarshal(raw, &answer) != nil || at(answer, "errors") != nil {
			return false
		}
		data = at(answer, "data")
		return true
	})
	return data
}

func (r *rig) random(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rnd.IntN(n)
}

// take notes what came to the receiver, and checks the order of what came for the first time.
func (r *rig) take(h hook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	id := h.header.Get("Webhook-Id")
	if r.arrived[id] {
		return
	}
	r.arrived[id] = true
	if message, ok := at(h.doc, "event", "data", "message_id").(string); ok {
		r.messages[message] = true
	}
	session, _ := at(h.doc, "event", "data", "session_id").(string)
	sequence, _ := at(h.doc, "event", "data", "sequence").(float64)
	if sequence != r.last[session]+1 {
		r.t.Errorf("at the receiver event %v of %s came after %v", sequence, session, r.last[session])
	}
	r.last[session] = max(r.last[session], sequence)
}

// clientPatience is how long a client waits for an answer before it asks elsewhere, in a new session.
const clientPatience = 10 * time.Second

// client chats until ctx ends, with whichever server answers.
func (r *rig) client(ctx context.Context, as caller) {
	session := ""
	for ctx.Err() == nil {
		s := r.pick()
		body := object{"message": "When are you open?", "channel": "sms"}
		if session != "" {
			body["session_id"] = session
		}
		asking, giveUp := context.WithTimeout(context.Background(), clientPatience) // all of them may be waiting for the one that sleeps
		status, _, raw, err := s.try(asking, "POST", "/agents/"+as.agent+"/chat", withKey(as.key), encode(body))
		giveUp()
		var answer struct {
			SessionID string `json:"session_id"`
			MessageID string `json:"message_id"`
		}
		if err != nil || status != http.StatusOK || json.Unmarshal(raw, &answer) != nil {
			session = "" // it was told nothing: it begins anew
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
			continue
		}
		session = answer.SessionID
		r.mu.Lock()
		r.acknowledged = append(r.acknowledged, answer.MessageID)
		r.mu.Unlock()
	}
}

func (r *rig) answered() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.acknowledged)
}

// more waits for so many more turns to be answered.
func (r *rig) more(n int) {
	r.t.Helper()
	target := r.answered() + n
	eventually(r.t, fmt.Sprintf("%d more turns", n), func() bool { return r.answered() >= target })
}

// redis waits until every server says how Redis is.
func (r *rig) redis(want string) {
	r.t.Helper()
	for _, s := range r.servers {
		eventually(r.t, "redis "+want, func() bool {
			return r.redisAt(s) == want
		})
	}
}

func (r *rig) redisAt(s *server) string {
	_, _, raw, err := s.try(context.Background(), "GET", "/readyz", nil, "")
	var ready struct {
		Redis string `json:"redis"`
	}
	if err != nil || json.Unmarshal(raw, &ready) != nil {
		return ""
	}
	return ready.Redis
}

// follow is a subscriber that resumes from its last cursor, at whichever server lives, until ctx ends. Each event must come
// once, and those of a session without a gap.
func (r *rig) follow(ctx context.Context) {
	for ctx.Err() == nil {
		s := r.pick()
		dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}, HandshakeTimeout: patience}
		conn, _, err := dialer.DialContext(ctx, "ws"+strings.TrimPrefix(s.url(), "http")+"/graphql", nil)
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		r.read(conn)
		stop()
		_ = conn.Close()
	}
}

func (r *rig) read(conn *websocket.Conn) {
	_ = conn.WriteJSON(object{"type": "connection_init", "payload": object{"Authorization": "Bearer " + token}})
	r.mu.Lock()
	after := r.cursor
	r.mu.Unlock()
	_ = conn.WriteJSON(object{"id": "1", "type": "subscribe", "payload": object{"query": eventsLive, "variables": object{"after": after}}})
	for began := false; ; {
		var m object
		if conn.ReadJSON(&m) != nil {
			return
		}
		switch m["type"] {
		case "ping":
			_ = conn.WriteJSON(object{"type": "pong"})
		case "error":
			// It is refused while the database is away, and ends when its server does. One that reads waits for the database.
			why := at(m, "payload", 0, "extensions")
			if at(why, "code") != "UNAVAILABLE" || began && at(why, "reason") != "shutting_down" {
				r.t.Errorf("the feed ended with %v", m)
			}
			return
		case "complete":
			r.t.Errorf("the feed ended without an error")
			return
		case "next":
			began = true
			r.show(at(m, "payload", "data", "events"))
		}
	}
}

func (r *rig) show(edge any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	node := at(edge, "node")
	id, _ := at(node, "id").(string)
	session, _ := at(node, "sessionId").(string)
	sequence, _ := at(node, "sequence").(float64)
	if r.seen[id] {
		r.t.Errorf("event %v of %s came twice on the feed", sequence, session)
	}
	if sequence != r.sequences[session]+1 {
		r.t.Errorf("on the feed event %v of %s came after %v", sequence, session, r.sequences[session])
	}
	r.seen[id], r.sequences[session], r.cursor = true, sequence, at(edge, "cursor")
}

// run has the failure happen, round after round, and returns the matrix's cell.
func (r *rig) run() string {
	ctx, stop := context.WithCancel(r.t.Context())
	var clients, follower sync.WaitGroup
	for i := range 6 {
		clients.Go(func() { r.client(ctx, r.callers[i%len(r.callers)]) })
	}
	following, unfollow := context.WithCancel(r.t.Context())
	follower.Go(func() { r.follow(following) })
	defer follower.Wait()
	defer unfollow()
	defer clients.Wait()
	defer stop()
	for range *crashRounds {
		r.more(5 + r.random(20))
		switch {
		case r.f.point != "":
			r.die()
		case r.f.strike != nil:
			r.f.strike(r)
		}
	}
	stop() // at once: no later bell is to heal what the last failure left
	clients.Wait()

	// What the database holds in the end is what everyone must have been told of.
	all, ends := map[string]bool{}, map[string]int{}
	after := any(nil)
	for more := true; more; {
		page := at(r.ask(`query($after: String) { events(first: 100, after: $after) { nodes { id type runId } pageInfo { hasNextPage endCursor } } }`,
			object{"after": after}), "events")
		for _, e := range at(page, "nodes").([]any) {
			all[at(e, "id").(string)] = true
			if run, ok := at(e, "runId").(string); ok && at(e, "type") != "MESSAGE_CREATED" {
				ends[run]++
			}
		}
		more, after = at(page, "pageInfo", "hasNextPage") == true, at(page, "pageInfo", "endCursor")
	}
	defer func() {
		if r.t.Failed() {
			r.tellMissing(all)
		}
	}()
	eventually(r.t, "delivered and seen", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for id := range all {
			if !r.arrived[id] || !r.seen[id] {
				return false
			}
		}
		for _, id := range r.acknowledged { // of other businesses too, whose feeds nobody reads here
			if !r.messages[id] {
				return false
			}
		}
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for run, n := range ends {
		if n != 1 {
			r.t.Errorf("run %s ended %d times", run, n)
		}
	}
	doubles := r.requests - len(r.arrived) - r.resets
	if doubles > r.allowed {
		r.t.Errorf("%d doubles at the receiver, %d are what was in flight and one batch", doubles, r.allowed)
	}
	if r.t.Failed() {
		return "✗"
	}
	return fmt.Sprintf("✓ %d turns, %d events, %d doubles", len(r.acknowledged), len(r.arrived), max(doubles, 0))
}

// tellMissing logs what has not arrived, or was not seen, with its delivery's row.
func (r *rig) tellMissing(all map[string]bool) {
	db := r.db()
	defer func() { _ = db.Close() }()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range all {
		if r.arrived[id] && r.seen[id] {
			continue
		}
		var row string
		err := db.QueryRow(`SELECT CAST(seq AS TEXT) || ' ' || status || ' due ' || COALESCE(CAST(due AS TEXT), 'never') || ' attempts ' || CAST(attempts AS TEXT) ||
			' lane ' || lane || ' updated ' || CAST(updated_at AS TEXT) FROM deliveries WHERE event_id = $1`, id).Scan(&row)
		r.t.Logf("%s: arrived %t, seen %t: %s %v", id, r.arrived[id], r.seen[id], row, err)
	}
}

// die starts every server anew with the fail point set, since only one of them does the deliveries, and waits until one has
// died of it. That one comes back without; the others take over, and after a while are started anew without it too.
func (r *rig) die() {
	r.t.Helper()
	base := make([][]string, len(r.servers))
	for i, s := range r.servers {
		s.kill()
		base[i] = s.env
		s.env = append(slices.Clone(s.env), fmt.Sprintf("PARLEY_FAILPOINT=%s=%d", r.f.point, 1+r.random(15)))
	}
	r.crashed()
	for _, s := range r.servers {
		s.launch()
	}
	died := func(s *server) bool {
		select {
		case <-s.exited:
			return true
		default:
			return false
		}
	}
	eventually(r.t, "dead at "+r.f.point, func() bool { return slices.ContainsFunc(r.servers, died) })
	first := slices.IndexFunc(r.servers, died)
	if dead := r.servers[first]; !strings.Contains(dead.log(), "failpoint "+r.f.point) {
		r.t.Errorf("it died of something else:\n%s", dead.log())
	}
	for i, s := range r.servers {
		s.env = base[i]
	}
	r.crashed()
	r.servers[first].up()
	target := r.answered() + 10
	for i, s := range r.servers {
		if i == first {
			continue
		}
		eventually(r.t, "taken over", func() bool { return died(s) || r.answered() >= target })
		s.kill()
		r.crashed()
		s.up()
	}
}
