package e2e_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the database of production

	"parley/e2e/servers"
)

// fleet are replicas on one PostgreSQL and one Redis, as in production.
type fleet struct {
	t        *testing.T
	database string
	bell     *servers.Server
	env      []string
	dir      string // where commands run; empty: here
	replicas []*server
}

// production starts n replicas at the same moment, on an empty database.
func production(t *testing.T, n int, env ...string) *fleet {
	t.Helper()
	return productionOn(t, servers.Database(t), n, env...)
}

func productionOn(t *testing.T, database string, n int, env ...string) *fleet {
	t.Helper()
	f := fleetOn(t, database, env...)
	f.start(n, binary)
	return f
}

// fleetOn has PostgreSQL and Redis, and no replicas yet.
func fleetOn(t *testing.T, database string, env ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, database: database, bell: servers.Redis(t)}
	f.env = append([]string{
		"PARLEY_DATABASE_URL=" + f.database, "PARLEY_REDIS_URL=redis://" + f.bell.Addr,
		"PARLEY_SECRET_KEY=" + base64.StdEncoding.EncodeToString(make([]byte, 32)),
		"PARLEY_ADDR=127.0.0.1:0", "PARLEY_BOOTSTRAP_API_KEY=" + apiKey, "PARLEY_BOOTSTRAP_TOKEN=" + token,
		"PARLEY_ALLOW_PRIVATE_WEBHOOKS=true", "PARLEY_DELIVERY_BACKOFF=50ms", "PARLEY_DRAIN_DELAY=0s",
	}, env...)
	return f
}

// start starts n replicas at the same moment, in place of those that were.
func (f *fleet) start(n int, binary string) {
	f.t.Helper()
	f.replicas = nil
	for range n {
		s := &server{t: f.t, binary: binary, dir: f.t.TempDir(), env: f.env}
		f.replicas = append(f.replicas, s)
		s.launch()
	}
	for _, s := range f.replicas {
		s.waitUp()
	}
}

// inLine waits until so many turns wait in line for a session.
func (f *fleet) inLine(n int) {
	f.t.Helper()
	f.counts(fmt.Sprint(n, " in line"), "SELECT COUNT(*) FROM session_line", n)
}

// running waits until one turn runs.
func (f *fleet) running() {
	f.t.Helper()
	f.counts("running", "SELECT COUNT(*) FROM runs WHERE status = 'running'", 1)
}

// db is the replicas' database.
func (f *fleet) db() *sql.DB { return openPostgres(f.t, f.database) }

func openPostgres(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// counts waits until a query of the database counts n.
func (f *fleet) counts(what, query string, n int) {
	f.t.Helper()
	db := f.db()
	defer func() { _ = db.Close() }()
	eventually(f.t, what, func() bool {
		var got int
		err := db.QueryRow(query).Scan(&got)
		return err == nil && got == n
	})
}

// tenant is a business with credentials of its own.
type tenant struct{ id, key, token string }

var secretLine = regexp.MustCompile(`(?m)^(business|API key|access token) +(\S+)$`)

// tenant makes another business, beside the running servers.
func (f *fleet) tenant(name string) tenant {
	f.t.Helper()
	cmd := exec.Command(binary, "business", "create", name)
	cmd.Env, cmd.Dir = append(clean(), f.env...), f.dir
	out, err := cmd.Output()
	found := secretLine.FindAllSubmatch(out, -1)
	if err != nil || len(found) != 3 {
		f.t.Fatalf("%v: %s", err, out)
	}
	made := tenant{string(found[0][2]), string(found[1][2]), string(found[2][2])}
	f.replicas[0].query(made.token, `mutation { createAgent(input: {name: "shop", prompt: "We sell tea. We open at nine."}) { id } }`, nil)
	return made
}

// inbox counts what came to a receiver.
type inbox struct {
	*receiver
	mu       sync.Mutex
	requests map[string]int     // by event
	last     map[string]float64 // by session: the highest sequence so far
	disorder []string
}

func newInbox(t *testing.T) *inbox {
	in := &inbox{requests: map[string]int{}, last: map[string]float64{}}
	in.receiver = receive(t, nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for h := range in.came {
			in.take(h)
		}
	}()
	t.Cleanup(func() {
		in.Close()
		close(in.came)
		<-done
	})
	return in
}

func (in *inbox) take(h hook) {
	in.mu.Lock()
	defer in.mu.Unlock()
	id, session := h.header.Get("Webhook-Id"), fmt.Sprint(at(h.doc, "event", "data", "session_id"))
	sequence, _ := at(h.doc, "event", "data", "sequence").(float64)
	if in.requests[id]++; in.requests[id] > 1 {
		return
	}
	if sequence != in.last[session]+1 {
		in.disorder = append(in.disorder, fmt.Sprintf("%s: %v after %v", session, sequence, in.last[session]))
	}
	in.last[session] = max(in.last[session], sequence)
}

func (in *inbox) counts() (events, requests int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, n := range in.requests {
		requests += n
	}
	return len(in.requests), requests
}

// TestReplicas: three replicas share the deliveries of several businesses, whoever takes their chats; each event is sent
// once, in its session's order, and seen on the feeds of all of them. One that stops hands its part over without a double;
// one that dies hands it over within its lease.
func TestReplicas(t *testing.T) {
	t.Parallel()
	f := production(t, 3)
	in := newInbox(t)
	var tenants []tenant
	for i := range 6 {
		tenants = append(tenants, f.tenant(fmt.Sprint("tenant ", i)))
	}
	sessions := map[string]any{}
	agents := map[string]string{}
	for _, x := range tenants {
		status, _, answer := f.replicas[0].call("POST", "/v1/webhooks", withToken(x.token), encode(object{"url": in.URL, "events": everything}))
		if status != http.StatusCreated {
			t.Fatalf("register: %d %v", status, answer)
		}
		agents[x.id] = at(f.replicas[0].query(x.token, `{ agents { nodes { id } } }`, nil), "agents", "nodes", 0, "id").(string)
	}
	expected := 0
	// round has a turn of each business's session on each replica that is alive, all businesses at once.
	round := func(alive ...*server) {
		t.Helper()
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, x := range tenants {
			wg.Go(func() {
				for _, s := range alive {
					mu.Lock()
					body := object{"message": "When do you open?", "channel": "sms", "session_id": sessions[x.id]}
					mu.Unlock()
					status, _, raw, err := s.try(context.Background(), "POST", "/agents/"+agents[x.id]+"/chat", withKey(x.key), encode(body))
					if err != nil || status != http.StatusOK {
						t.Errorf("chat: %d %s %v", status, raw, err)
						return
					}
					var answer object
					_ = decode(bytes.NewReader(raw), &answer)
					mu.Lock()
					sessions[x.id] = answer["session_id"]
					expected += 3
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	}
	arrived := func(what string) {
		t.Helper()
		eventually(t, what, func() bool {
			events, _ := in.counts()
			return events == expected
		})
		in.mu.Lock()
		defer in.mu.Unlock()
		if len(in.disorder) > 0 {
			t.Errorf("%s, in disorder: %v", what, in.disorder)
		}
	}
	a, b, c := f.replicas[0], f.replicas[1], f.replicas[2]
	from := object{"after": at(a.query(tenants[0].token, `{feedCursor}`, nil), "feedCursor")}
	feeds := []*subscriber{a.subscribe(tenants[0].token, eventsLive, from), b.subscribe(tenants[0].token, eventsLive, from), c.subscribe(tenants[0].token, eventsLive, from)}
	round(a, b, c)
	round(c, b, a)
	arrived("shared out")
	for i, feed := range feeds {
		for sequence := 1.0; sequence <= 18; sequence++ {
			if got := at(feed.wait(), "events", "node", "sequence"); got != sequence {
				t.Fatalf("replica %d shows event %v, not %v", i, got, sequence)
			}
		}
	}
	if events, requests := in.counts(); events != requests {
		t.Errorf("%d requests for %d events", requests, events)
	}

	if code := b.stop(); code != 0 {
		t.Errorf("a replica ended with %d:\n%s", code, b.log())
	}
	round(a, c)
	arrived("handed over at a stop")
	if events, requests := in.counts(); events != requests {
		t.Errorf("%d requests for %d events after a stop", requests, events)
	}

	c.kill()
	round(a)
	round(a)
	arrived("handed over at a death")
	events, requests := in.counts()
	t.Logf("%d events, %d requests", events, requests)

	b.up() // and it takes its part again
	round(a, b)
	arrived("shared out again")
}

// TestTurnsAcrossReplicas has turns of one session come to three replicas, one after the other, while the first is still
// running: they are served in the order in which they came. An agent set to REJECT refuses all but the first at once.
func TestTurnsAcrossReplicas(t *testing.T) {
	t.Parallel()
	f := production(t, 3, "PARLEY_EMBEDDED_MODEL_LATENCY=3s")
	session := f.replicas[0].chat("Hello", "")["session_id"].(string)
	var turns sync.WaitGroup
	say := func(i int) {
		s := f.replicas[i%len(f.replicas)]
		turns.Go(func() {
			body := encode(object{"message": fmt.Sprint("turn ", i), "channel": "whatsapp", "session_id": session})
			status, _, raw, err := s.try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey), body)
			if err != nil || status != http.StatusOK {
				t.Errorf("turn %d: %d %s %v", i, status, raw, err)
			}
		})
	}
	const n = 7
	say(0)
	f.running()
	for i := 1; i < n; i++ {
		say(i)
		f.inLine(i)
	}
	turns.Wait()
	var said []string
	for _, e := range at(f.replicas[0].query(token, `{ events(first: 100, filter: {types: [MESSAGE_CREATED]}) { nodes { direction data } } }`, nil), "events", "nodes").([]any) {
		if at(e, "direction") == "INBOUND" {
			said = append(said, at(e, "data", "text").(string))
		}
	}
	if got := strings.Join(said, ", "); got != "Hello, turn 0, turn 1, turn 2, turn 3, turn 4, turn 5, turn 6" {
		t.Errorf("served in the order %s", got)
	}
	f.inLine(0)

	f.replicas[0].query(token, `mutation { updateAgent(id: "demo", input: {onConcurrent: REJECT}) { id } }`, nil)
	say(0)
	f.running()
	body := encode(object{"message": "at the same time", "channel": "whatsapp", "session_id": session})
	if status, _, answer := f.replicas[1].call("POST", "/agents/demo/chat", withKey(apiKey), body); status != http.StatusConflict || at(answer, "code") != "session_busy" {
		t.Errorf("an agent that rejects, on another replica: %d %v", status, answer)
	}
	turns.Wait()
}

// TestReplicaDiesInATurn kills a replica while an agent thinks there: another one ends the run as failed, once, and the
// session goes on.
func TestReplicaDiesInATurn(t *testing.T) {
	t.Parallel()
	f := production(t, 2, "PARLEY_EMBEDDED_MODEL_LATENCY=500ms")
	dying, other := f.replicas[0], f.replicas[1]
	session := dying.chat("Hello", "")["session_id"].(string)
	live := other.subscribe(token, eventsLive, nil)
	go func() {
		_, _, _, _ = dying.try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey),
			encode(object{"message": "Lost?", "channel": "whatsapp", "session_id": session}))
	}()
	for at(live.wait(), "events", "node", "data", "text") != "Lost?" { // stored, and seen here
		continue
	}
	dying.kill()
	other.chat("Again", session) // waits for the dead replica's turn to be given up
	var types []string
	for len(types) < 4 {
		node := at(live.wait(), "events", "node")
		types = append(types, fmt.Sprint(at(node, "type")))
		if at(node, "type") == "RUN_FAILED" && at(node, "data", "error_class") != "interrupted" {
			t.Errorf("it failed as %v", node)
		}
	}
	if got := strings.Count(strings.Join(types, " "), "RUN_FAILED"); got != 1 {
		t.Errorf("after the death: %v", types)
	}
}

// TestStopWithoutPostgres stops a server whose database is away while a delivery is in flight: it ends in time all the same.
func TestStopWithoutPostgres(t *testing.T) {
	t.Parallel()
	pg := servers.NewPostgres(t)
	f := productionOn(t, pg.Database(t), 1)
	s := f.replicas[0]
	arrived, answer := make(chan struct{}, 10), make(chan struct{})
	r := receive(t, func(int, http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-answer
	})
	s.register(r.URL, "run.finished")
	s.chat("Hello", "")
	<-arrived
	pg.Kill()
	close(answer)
	if code := s.stop(); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, s.log())
	}
}

// TestPostgresAway takes the database away: callers are told to come back, the probe says so, and when it is back everything
// goes on without a restart, a subscriber that was there all along too.
func TestPostgresAway(t *testing.T) {
	t.Parallel()
	pg := servers.NewPostgres(t)
	f := productionOn(t, pg.Database(t), 1)
	s := f.replicas[0]
	in := newInbox(t)
	s.register(in.URL, everything...)
	live := s.subscribe(token, eventsLive, nil)
	session := s.chat("Hello", "")["session_id"].(string)
	for range 3 {
		live.wait()
	}
	pg.Kill()
	eventually(t, "not ready", func() bool {
		status, _, body := s.call("GET", "/readyz", nil, "")
		return status == http.StatusServiceUnavailable && at(body, "database") == "unavailable"
	})
	for name, call := range map[string]func() (int, http.Header, any){
		"chat": func() (int, http.Header, any) {
			return s.call("POST", "/agents/demo/chat", withKey(apiKey), encode(object{"message": "Hello", "channel": "whatsapp", "session_id": session}))
		},
		"webhooks": func() (int, http.Header, any) { return s.call("GET", "/v1/webhooks", withToken(token), "") },
		"register": func() (int, http.Header, any) {
			return s.call("POST", "/v1/webhooks", withToken(token), encode(object{"url": in.URL, "events": everything}))
		},
	} {
		if status, header, answer := call(); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || at(answer, "code") != "unavailable" {
			t.Errorf("%s: %d %v %v", name, status, header, answer)
		}
	}
	if code, _ := s.refused(withToken(token), `{ viewer { scope } }`, nil); code != "UNAVAILABLE" {
		t.Errorf("GraphQL: %v", code)
	}
	if status, _, _ := s.call("GET", "/healthz", nil, ""); status != http.StatusOK {
		t.Errorf("the process does not live: %d", status)
	}
	pg.Up()
	s.waitReady()
	s.chat("Again", session)
	for range 3 {
		live.wait()
	}
	eventually(t, "delivered", func() bool {
		events, _ := in.counts()
		return events == 6
	})
}
