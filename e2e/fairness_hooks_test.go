package e2e_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // asks the database what a server has done there
)

// What one business does to its deliveries, and what another one notices of it: nothing.

// shop is a business with an agent and an endpoint that answers at once.
type shop struct {
	tenant
	t     *testing.T
	s     *server
	agent string
	in    *receiver
}

// shop makes a business with its endpoint, for run.finished.
func (f *fleet) shop(name string) *shop {
	f.t.Helper()
	b := &shop{tenant: f.tenant(name), t: f.t, s: f.replicas[0], in: receive(f.t, nil)}
	b.agent = at(b.s.query(b.token, `{ agents { nodes { id } } }`, nil), "agents", "nodes", 0, "id").(string)
	b.register(b.in.URL, "RUN_FINISHED")
	return b
}

func (b *shop) register(url string, types ...string) (id string) {
	b.t.Helper()
	made := b.s.query(b.token, `mutation($url: String!, $events: [EventType!]!) { createWebhookEndpoint(input: {url: $url, events: $events}) { endpoint { id } } }`,
		object{"url": url, "events": types})
	return at(made, "createWebhookEndpoint", "endpoint", "id").(string)
}

// chat has the shop's agent chat, in a new session.
func (b *shop) chat() object {
	b.t.Helper()
	status, _, answer := b.s.call("POST", "/agents/"+b.agent+"/chat", withKey(b.key), `{"message":"When do you open?","channel":"sms"}`)
	if status != http.StatusOK {
		b.t.Fatalf("chat: %d %v", status, answer)
	}
	return answer.(object)
}

// pace is how long each of some chats took, and each of their deliveries after it; and how far the attack went meanwhile.
type pace struct {
	chats, deliveries []time.Duration
	attacks           []int64
}

// paced is how many chats are measured.
const paced = 15

// pace chats, and waits for each one's delivery. The attack counts its own progress.
func (b *shop) pace(attack *atomic.Int64) (out pace) {
	b.t.Helper()
	for range paced {
		began, was := time.Now(), attack.Load()
		answer := b.chat()
		answered := time.Now()
		if h := b.in.wait(); at(h.doc, "event", "data", "session_id") != at(answer, "session_id") {
			b.t.Fatalf("something else came: %s", h.body)
		}
		out.chats = append(out.chats, answered.Sub(began))
		out.deliveries = append(out.deliveries, time.Since(answered))
		out.attacks = append(out.attacks, attack.Load()-was)
	}
	return out
}

// keepsPace compares a business's pace under an attack with that before: the p90 is at most three times as long, or a second. A
// machine that is busy with other tests slows the attack, too: what takes longer is a fault if the attack has gone on meanwhile, by
// more than it may.
func keepsPace(t *testing.T, before, during pace, may int64) {
	t.Helper()
	went := p90(during.attacks)
	for what, of := range map[string][2][]time.Duration{
		"chats": {before.chats, during.chats}, "deliveries": {before.deliveries, during.deliveries},
	} {
		was, is := p90(of[0]), p90(of[1])
		t.Logf("%s: p90 %v before, %v under the attack, which went on by %d", what, was.Round(time.Millisecond/10), is.Round(time.Millisecond/10), went)
		if is > max(3*was, time.Second) && went > may {
			t.Errorf("%s: p90 %v before, %v under the attack, which went on by %d, and not by %d", what, was, is, went, may)
		}
	}
}

func p90[N cmp.Ordered](of []N) N {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)*9/10]
}

// hanging is a receiver that never answers. It counts the requests that it has.
func hanging(t *testing.T) (r *receiver, has *atomic.Int64) {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	has = new(atomic.Int64)
	r = receive(t, func(_ int, _ http.ResponseWriter, req *http.Request) {
		has.Add(1)
		defer has.Add(-1)
		select {
		case <-ctx.Done():
		case <-req.Context().Done():
		}
	})
	go func() {
		for range r.came { // it has room for some only
			continue
		}
	}()
	t.Cleanup(func() { end(); r.Close(); close(r.came) })
	return r, has
}

// chatting has a business chat with its agents, one after the other and each time in a new session, from some clients at once, until
// the test ends or stop is called.
func (b *shop) chatting(clients int, agents ...string) (chats *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	chats = new(atomic.Int64)
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for ctx.Err() == nil {
				agent := agents[int(chats.Add(1))%len(agents)]
				status, _, raw, err := b.s.try(ctx, "POST", "/agents/"+agent+"/chat", withKey(b.key), `{"message":"When do you open?","channel":"sms"}`)
				if ctx.Err() == nil && (err != nil || status != http.StatusOK) {
					b.t.Errorf("chat: %d %s %v", status, raw, err)
					return
				}
			}
		})
	}
	stop = func() { cancel(); running.Wait() }
	b.t.Cleanup(stop)
	return chats, stop
}

// many runs the same field of a mutation n times, 20 in a request, and returns what it answers to each.
func (s *server) many(token string, n int, field func(i int) string) (out []any) {
	s.t.Helper()
	for begin := 0; begin < n; begin += 20 {
		var query strings.Builder
		some := min(20, n-begin)
		for i := range some {
			fmt.Fprintf(&query, "f%d: %s ", i, field(begin+i))
		}
		data := s.query(token, "mutation { "+query.String()+"}", nil)
		for i := range some {
			out = append(out, at(data, fmt.Sprint("f", i)))
		}
	}
	return out
}

// rounds is how many chats each of an attack's clients may have while another business has one chat and its delivery: it has to wait
// for what is being committed, three times, and for a few others that come with its own.
const rounds = 10

// patientDeliveries is longer than any of these tests takes: what hangs, hangs.
const patientDeliveries = "PARLEY_DELIVERY_TIMEOUT=10m"

// TestHangingAgentWebhooks: 300 agents of A have webhooks of their own at a receiver that hangs, each with ten conversations that wait
// for it, and A chats on. A has its part of the attempts in flight, and B's deliveries keep their pace: they share nothing with attempts
// that never end.
func TestHangingAgentWebhooks(t *testing.T) {
	t.Parallel()
	const agents, conversations = 300, 10
	const part = 4096 / 2 // of all attempts in flight: half of what the others leave
	f := production(t, 1, patientDeliveries, fmt.Sprintf("PARLEY_MAX_ENDPOINTS=%d", agents+2))
	a, b := f.shop("A"), f.shop("B")
	r, has := hanging(t)
	var mu sync.Mutex
	var ids []string
	var making sync.WaitGroup
	for range agents / 20 {
		making.Go(func() {
			made := a.s.many(a.token, 20, func(int) string {
				return fmt.Sprintf(`createAgent(input: {name: "A", prompt: "We sell tea.", webhookUrl: %q}) { id }`, r.URL)
			})
			mu.Lock()
			defer mu.Unlock()
			for _, m := range made {
				ids = append(ids, at(m, "id").(string))
			}
		})
	}
	making.Wait()
	before := b.pace(new(atomic.Int64))
	for range conversations {
		a.chat()
	}
	// Each of the agents' endpoints is to get what A's first agent has said, as if it were its own.
	_, err := f.open().ExecContext(t.Context(), `INSERT INTO deliveries (endpoint_id, seq, event_id, business_id, shard, type, lane, status, due, epoch, created_at, updated_at)
		SELECT p.id, d.seq, d.event_id, d.business_id, d.shard, d.type, d.lane, 'pending', 0, p.epoch, d.created_at, d.updated_at
		FROM endpoints AS p JOIN deliveries AS d ON d.business_id = p.business_id WHERE p.agent_id IS NOT NULL AND p.business_id = $1`, a.id)
	if err != nil {
		t.Fatal(err)
	}
	chats, _ := a.chatting(4, ids...)
	eventually(t, "hanging", func() bool { return has.Load() >= part-10 })
	during := b.pace(chats)
	t.Logf("%d attempts hang after %d chats", has.Load(), chats.Load())
	if has.Load() > part {
		t.Errorf("one business has %d attempts in flight", has.Load())
	}
	keepsPace(t, before, during, 4*rounds)
}

// TestHangingEndpoints: all of A's 100 endpoints hang while it chats. B's deliveries keep their pace, and the database writes each
// delivery that waits once, and never again.
func TestHangingEndpoints(t *testing.T) {
	t.Parallel()
	f := production(t, 1, patientDeliveries)
	a, b := f.shop("A"), f.shop("B")
	r, has := hanging(t)
	a.s.many(a.token, 99, func(int) string {
		return fmt.Sprintf(`createWebhookEndpoint(input: {url: %q, events: [MESSAGE_CREATED, RUN_FINISHED]}) { endpoint { id } }`, r.URL)
	})
	before := b.pace(new(atomic.Int64))
	chats, stop := a.chatting(4, a.agent)
	eventually(t, "hanging", func() bool { return has.Load() >= 400 })
	during := b.pace(chats)
	stop()
	t.Logf("%d attempts hang after %d chats", has.Load(), chats.Load())
	keepsPace(t, before, during, 4*rounds)
	f.replicas[0].kill() // PostgreSQL tells what a session has done when it ends

	db := f.open()
	f.counts("gone", "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'parley%'", 0)
	rows := number(t, db, "SELECT COUNT(*) FROM deliveries")
	// Or wait for a retry: they hung for too long.
	ended := number(t, db, "SELECT COUNT(*) FROM deliveries WHERE due IS NULL OR attempts > 0")
	made := number(t, db, "SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'deliveries'")
	changed := number(t, db, "SELECT n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE relname = 'deliveries'")
	attempts := number(t, db, "SELECT n_tup_ins + n_tup_upd FROM pg_stat_user_tables WHERE relname = 'attempts'")
	t.Logf("%d deliveries, of which %d have ended: %d rows made, %d changed; %d attempts beside them", rows, ended, made, changed, attempts)
	if rows < 5000 || made != rows || changed > ended || attempts > 0 {
		t.Errorf("%d deliveries, of which %d have ended: %d rows made, %d changed; %d attempts beside them", rows, ended, made, changed, attempts)
	}
}

// open is the fleet's database.
func (f *fleet) open() *sql.DB {
	f.t.Helper()
	return openAt(f.t, f.database)
}

func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// TestReplaysToManyEndpoints: A has everything replayed to 100 endpoints. B's chats and deliveries keep their pace.
func TestReplaysToManyEndpoints(t *testing.T) {
	t.Parallel()
	f := production(t, 1)
	a, b := f.shop("A"), f.shop("B")
	since := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	chats, stop := a.chatting(8, a.agent)
	eventually(t, "chatted", func() bool { return chats.Load() >= 100 })
	stop()
	var came atomic.Int64
	r := receive(t, func(int, http.ResponseWriter, *http.Request) { came.Add(1) })
	go func() {
		for range r.came {
			continue
		}
	}()
	var ids []string
	for _, made := range a.s.many(a.token, 99, func(int) string {
		return fmt.Sprintf(`createWebhookEndpoint(input: {url: %q, events: [MESSAGE_CREATED, RUN_FINISHED]}) { endpoint { id } }`, r.URL)
	}) {
		ids = append(ids, at(made, "endpoint", "id").(string))
	}
	before := b.pace(&came)
	total := 0.0
	for _, made := range a.s.many(a.token, len(ids), func(i int) string {
		return fmt.Sprintf(`replayEvents(endpointId: %q, since: %q, failedOnly: false) { total }`, ids[i], since)
	}) {
		total += at(made, "total").(float64)
	}
	eventually(t, "replaying", func() bool { return came.Load() > 100 })
	during := b.pace(&came)
	t.Logf("%d of %.0f are replayed", came.Load(), total)
	if float64(came.Load()) >= total {
		t.Error("the replays were over before they could be in anyone's way")
	}
	keepsPace(t, before, during, 450) // some outcomes and replayed rows come with its commits, too
}

// TestACommitReadsWhatItWants: A has 16,000 agents with webhooks of their own. A chat reads no more of what is wanted than it did
// before: B's nothing of A's, and A's only what its agent's endpoint wants.
func TestACommitReadsWhatItWants(t *testing.T) {
	t.Parallel()
	const many, chats = 16_000, 2 * paced
	f := production(t, 1)
	s := f.replicas[0]
	a, b := f.shop("A"), f.shop("B")
	db := f.open()
	// read counts what so many chats of each read of endpoints and of what they want, rows of tables and of indexes.
	read := func() int {
		t.Helper()
		s.kill() // PostgreSQL tells what a session has done when it ends
		gone := "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'parley%'"
		f.counts("gone", gone, 0)
		if _, err := db.ExecContext(t.Context(), "SELECT pg_stat_reset()"); err != nil {
			t.Fatal(err)
		}
		s.up()
		b.pace(new(atomic.Int64))
		a.pace(new(atomic.Int64))
		s.stop()
		f.counts("gone", gone, 0)
		return number(t, db, `SELECT (SELECT SUM(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN ('wants', 'endpoints'))
			+ (SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes WHERE relname IN ('wants', 'endpoints'))`)
	}
	few := read()
	for _, query := range []string{
		`INSERT INTO endpoints (id, business_id, agent_id, url, events, status, secrets, shard, created_at)
			SELECT 'whe_many_' || i, business_id, 'agt_many_' || i, url, '["message.created","call.ended"]', 'enabled', secrets, shard, created_at
			FROM endpoints, generate_series(1, $1) AS i WHERE business_id = $2`,
		`INSERT INTO wants (business_id, type, agent_id, endpoint_id, enabled, epoch)
			SELECT business_id, t, agent_id, id, TRUE, epoch FROM endpoints, unnest(ARRAY['message.created', 'call.ended']) AS t
			WHERE id LIKE 'whe_many_%' AND $1 > 0 AND business_id = $2`,
	} {
		if _, err := db.ExecContext(t.Context(), query, many, a.id); err != nil {
			t.Fatal(err)
		}
	}
	got := read()
	t.Logf("%d chats read %d rows, and %d where there are %d more endpoints", chats, few, got, many)
	if got > 2*few+200 {
		t.Errorf("%d chats read %d rows, and %d where there are %d more endpoints", chats, few, got, many)
	}
}

// TestAgentWebhooksCount: agents' own webhooks count against the limit of endpoints, however many are made at once and wherever.
func TestAgentWebhooksCount(t *testing.T) {
	t.Parallel()
	const most = 5
	f := production(t, 2, fmt.Sprintf("PARLEY_MAX_ENDPOINTS=%d", most))
	r := receive(t, nil)
	one := fmt.Sprintf(`e%%d: createWebhookEndpoint(input: {url: %q, events: [RUN_FINISHED]}) { endpoint { id } }
		a%%d: createAgent(input: {name: "A", webhookUrl: %q}) { id } `, r.URL, r.URL)
	var made, refused atomic.Int64
	var asking sync.WaitGroup
	for i := range 6 {
		asking.Go(func() {
			query := "mutation { " + fmt.Sprintf(one, 1, 1) + fmt.Sprintf(one, 2, 2) + "}"
			_, _, raw, err := f.replicas[i%2].try(context.Background(), "POST", "/graphql", withToken(token), encode(object{"query": query}))
			var answer object
			if err != nil || decode(strings.NewReader(string(raw)), &answer) != nil {
				t.Errorf("%s %v", raw, err)
				return
			}
			errs, _ := at(answer, "errors").([]any)
			for _, e := range errs {
				if at(e, "extensions", "code") != "BAD_USER_INPUT" || at(e, "extensions", "reason") != "limit_reached" {
					t.Errorf("an error: %v", e)
				}
			}
			made.Add(int64(4 - len(errs)))
			refused.Add(int64(len(errs)))
		})
	}
	asking.Wait()
	if n := number(t, f.open(), "SELECT COUNT(*) FROM endpoints WHERE status = 'enabled'"); n != most || made.Load() != most || refused.Load() != 24-most {
		t.Errorf("%d endpoints; %d were made and %d refused", n, made.Load(), refused.Load())
	}
	// The demo agent has none, and gets none.
	if _, reason := f.replicas[0].refused(withToken(token), fmt.Sprintf(`mutation { updateAgent(id: "demo", input: {webhookUrl: %q}) { id } }`, r.URL), nil); reason != "limit_reached" {
		t.Errorf("an agent's URL beyond the limit: %v", reason)
	}
	if status, _, answer := f.replicas[0].call("POST", "/v1/webhooks", withToken(token), encode(object{"url": r.URL, "events": everything})); status != http.StatusUnprocessableEntity {
		t.Errorf("an endpoint beyond the limit: %d %v", status, answer)
	}
}
