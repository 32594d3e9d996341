package hook_test

import (
	"context"
	"database/sql"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/egress"
	"parley/store"
	"parley/store/hook"
)

func TestMain(m *testing.M) {
	code := m.Run()
	servers.StopShared()
	os.Exit(code)
}

// config is what a test's store and hooks are opened with.
type config struct {
	store.Config
	hook hook.Config
}

// opener opens a store of the test's own, with its hooks.
type opener func(t *testing.T, change func(*config)) (*store.Store, *hook.Hooks)

// onBoth runs a contract test on SQLite and on PostgreSQL.
func onBoth(t *testing.T, test func(t *testing.T, open opener)) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		url := "file:" + filepath.Join(t.TempDir(), "parley.db")
		test(t, func(t *testing.T, change func(*config)) (*store.Store, *hook.Hooks) { return open(t, url, change) })
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		url := servers.Database(t)
		test(t, func(t *testing.T, change func(*config)) (*store.Store, *hook.Hooks) { return open(t, url, change) })
	})
}

func open(t *testing.T, url string, change func(*config)) (*store.Store, *hook.Hooks) {
	t.Helper()
	sealer, err := store.NewSealer(base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	cfg := config{Config: store.Config{URL: url, SessionTTL: time.Hour, Sealer: sealer}, hook: hook.Config{NewSecret: egress.NewSecret}}
	if change != nil {
		change(&cfg)
	}
	s, err := store.Open(t.Context(), cfg.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg.hook.Store = s
	return s, hook.New(cfg.hook)
}

// dial opens a database beside the stores, as any client could.
func dial(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", url+"?_pragma=busy_timeout(5000)")
	if store.IsPostgres(url) {
		db, err = sql.Open("pgx", url)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// newBusiness makes a business with an agent "demo", and its viewer.
func newBusiness(t *testing.T, s *store.Store) *store.Viewer {
	t.Helper()
	made, err := s.CreateBusiness(t.Context(), store.BusinessInput{Name: "test", Agent: &store.Agent{
		ID: "demo", Name: "Demo", OnConcurrent: store.Enqueue, Knowledge: []store.Knowledge{{Title: "T", Text: "A fact."}},
		ChannelProfiles: []store.ChannelProfile{}, Model: store.Model{Provider: store.ProviderEmbedded},
	}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.Authenticate(t.Context(), store.KindAccessToken, made.Token)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func newEndpoint(t *testing.T, h *hook.Hooks, v *store.Viewer, types ...store.EventType) *hook.Endpoint {
	t.Helper()
	p, secret, err := h.CreateEndpoint(t.Context(), v, hook.EndpointInput{URL: ptr("https://example.com/hook"), Events: types})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := h.SigningSecrets(p.ID, p.Secrets, store.Now()); err != nil || len(got) != 1 || got[0] != secret {
		t.Fatalf("secrets: %v, %v", got, err)
	}
	return p
}

// takeAll takes all shards, and returns the holds by shard.
func takeAll(t *testing.T, h *hook.Hooks, replica string) map[int]hook.Hold {
	t.Helper()
	taken, err := h.TakeShards(t.Context(), replica, hook.Shards)
	if err != nil || len(taken) != hook.Shards {
		t.Fatalf("took %d shards, %v", len(taken), err)
	}
	of := map[int]hook.Hold{}
	for _, x := range taken {
		of[x.Shard] = x
	}
	return of
}

// bench is a store with a business, an endpoint that wants run.finished, and all shards, where a test plays the worker.
type bench struct {
	t     *testing.T
	s     *store.Store
	h     *hook.Hooks
	v     *store.Viewer
	p     *hook.Endpoint
	holds map[int]hook.Hold
}

func newBench(t *testing.T, open opener, change func(*config)) *bench {
	t.Helper()
	s, h := open(t, change)
	v := newBusiness(t, s)
	return &bench{t, s, h, v, newEndpoint(t, h, v, store.RunFinished), takeAll(t, h, "replica")}
}

func (b *bench) shard() int { return hook.ShardOf(b.v.BusinessID) }

func (b *bench) hold() hook.Hold { return b.holds[b.shard()] }

// turnInput is a turn's of a business, of a new session where none is named.
func turnInput(v *store.Viewer, session string) store.TurnInput {
	return store.TurnInput{
		BusinessID: v.BusinessID, AgentID: "demo", Model: "embedded", SessionID: session, Channel: store.WhatsApp, Text: "Hello", Lease: time.Minute,
	}
}

// turn has a business's agent answer once: two events message.created, and one run.finished. It returns the session.
func turn(t *testing.T, s *store.Store, v *store.Viewer, session string) string {
	t.Helper()
	begun, err := s.BeginTurn(t.Context(), turnInput(v, session))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.FinishTurn(t.Context(), begun, "Hi"); err != nil {
		t.Fatal(err)
	}
	return begun.SessionID
}

func (b *bench) turns(n int) {
	b.t.Helper()
	for range n {
		turn(b.t, b.s, b.v, "")
	}
}

func events(t *testing.T, s *store.Store, v *store.Viewer) []*store.Event {
	t.Helper()
	extent, err := s.Extent(t.Context(), v.BusinessID)
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.EventsAfter(t.Context(), v.BusinessID, 0, extent.Last, nil, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// next are the first attempts that wait for an endpoint in their turn.
func (b *bench) next(endpoint string) []*hook.Job {
	b.t.Helper()
	jobs, err := b.h.Next(b.t.Context(), b.shard(), endpoint, 0, 10_000)
	if err != nil {
		b.t.Fatal(err)
	}
	return jobs
}

// due is what is due now for an endpoint out of its turn.
func (b *bench) due(endpoint string) []*hook.Job {
	b.t.Helper()
	jobs, err := b.h.Due(b.t.Context(), b.shard(), endpoint, b.s.Now(), 10_000)
	if err != nil {
		b.t.Fatal(err)
	}
	return jobs
}

// waits is all that may be sent to the bench's endpoint now.
func (b *bench) waits() []*hook.Job {
	b.t.Helper()
	return append(b.next(b.p.ID), b.due(b.p.ID)...)
}

// event makes an event that the bench's endpoint wants, and returns its delivery.
func (b *bench) event() *hook.Job {
	b.t.Helper()
	b.turns(1)
	jobs := b.next(b.p.ID)
	if len(jobs) == 0 {
		b.t.Fatal("nothing waits")
	}
	return jobs[len(jobs)-1]
}

// outcome is one of an attempt of a job that has just been made.
func (b *bench) outcome(job *hook.Job, status store.DeliveryStatus, next *store.Time) *hook.Outcome {
	o := &hook.Outcome{Job: job, Hold: b.hold(), Status: status, Next: next, URL: "https://example.com/hook", Attempt: &hook.Attempt{
		Number: job.Attempts + 1, Trigger: job.Trigger, StartedAt: b.s.Now(), NextAttemptAt: next,
	}}
	if status == store.Delivered {
		o.Attempt.StatusCode = ptr(200)
	} else {
		o.Attempt.StatusCode, o.Attempt.Error = ptr(500), ptr("http_500")
	}
	return o
}

func (b *bench) record(outcomes ...*hook.Outcome) hook.Recorded {
	b.t.Helper()
	recorded, err := b.h.Record(b.t.Context(), outcomes)
	if err != nil {
		b.t.Fatal(err)
	}
	return recorded
}

// end records one attempt of each job, and returns how many counted.
func (b *bench) end(status store.DeliveryStatus, next *store.Time, jobs ...*hook.Job) (counted int) {
	b.t.Helper()
	var outcomes []*hook.Outcome
	for _, j := range jobs {
		outcomes = append(outcomes, b.outcome(j, status, next))
	}
	for _, ids := range b.record(outcomes...).Changed {
		counted += len(ids)
	}
	return counted
}

// fresh is a job as its row has it now; nil if it waits no more.
func (b *bench) fresh(job *hook.Job) *hook.Job {
	b.t.Helper()
	jobs, err := b.h.Due(b.t.Context(), b.shard(), job.EndpointID, b.s.Now().Add(1000*time.Hour), 10_000)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, j := range append(jobs, b.next(job.EndpointID)...) {
		if j.ID() == job.ID() {
			return j
		}
	}
	return nil
}

func (b *bench) delivery(id string) *hook.Delivery {
	b.t.Helper()
	d, err := b.h.Delivery(b.t.Context(), b.v.BusinessID, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

func (b *bench) deliveries() []*hook.Delivery {
	b.t.Helper()
	return deliveries(b.t, b.h, b.v, hook.DeliveryFilter{}, 100)
}

// deliveries reads a business's deliveries in pages.
func deliveries(t *testing.T, h *hook.Hooks, v *store.Viewer, filter hook.DeliveryFilter, first int) (all []*hook.Delivery) {
	t.Helper()
	for page := (store.PageInput{First: first}); ; {
		c, err := h.Deliveries(t.Context(), v.BusinessID, filter, page)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c.Nodes()...)
		if !c.PageInfo.HasNextPage {
			return all
		}
		page.After = c.PageInfo.EndCursor
	}
}

func (b *bench) attempts(id string) []*hook.Attempt {
	b.t.Helper()
	key := b.delivery(id).Key()
	of, err := b.h.AttemptsOf(b.t.Context(), []string{key})
	if err != nil {
		b.t.Fatal(err)
	}
	return of[key]
}

func (b *bench) status(id string, want store.DeliveryStatus, attempts int) {
	b.t.Helper()
	d := b.delivery(id)
	if d.Status != want || d.Attempts != attempts {
		b.t.Errorf("the delivery is %+v, want %s after %d attempts", d, want, attempts)
	}
	if waits := want == store.Pending || want == store.Retrying; waits && d.NextAttemptAt() == nil {
		b.t.Errorf("the delivery is %+v, and waits for nothing", d)
	}
	if all := b.attempts(id); len(all) != attempts || !slices.IsSortedFunc(all, func(a, b *hook.Attempt) int { return a.Number - b.Number }) {
		b.t.Errorf("%d attempts are on record, want %d", len(all), attempts)
	}
}

func (b *bench) set(endpoint string, status store.EndpointStatus) {
	b.t.Helper()
	if _, err := b.h.UpdateEndpoint(b.t.Context(), b.v, endpoint, hook.EndpointInput{Status: &status}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) endpoint(id string) *hook.Endpoint {
	b.t.Helper()
	p, err := b.h.Endpoint(b.t.Context(), b.v.BusinessID, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

func (b *bench) resend(id string) error {
	_, err := b.h.Redeliver(b.t.Context(), b.v, id)
	return err
}

func (b *bench) refused(what string, err error, reason string) {
	b.t.Helper()
	refused(b.t, what, err, reason)
}

func refused(t *testing.T, what string, err error, reason string) {
	t.Helper()
	if e, ok := store.AsError(err); !ok || e.Reason != reason {
		t.Errorf("%s: %v, want %s", what, err, reason)
	}
}

// takenOver has another replica take all shards.
func (b *bench) takenOver(by string) {
	b.t.Helper()
	if b.h.Shared() {
		var holds []hook.Hold
		for _, x := range b.holds {
			holds = append(holds, x)
		}
		if err := b.h.GiveShards(b.t.Context(), holds); err != nil {
			b.t.Fatal(err)
		}
	}
	b.holds = takeAll(b.t, b.h, by)
}

// sql runs a statement of a test's.
func execute(t *testing.T, s *store.Store, query string, args ...any) {
	t.Helper()
	err := s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.NewRaw(query, args...).Exec(ctx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// multiply gives an endpoint so many more deliveries that wait for their first attempt, of events that there are none of.
func (b *bench) multiply(endpoint string, n int) {
	b.t.Helper()
	execute(b.t, b.s, `INSERT INTO deliveries (endpoint_id, seq, event_id, business_id, shard, type, lane, status, due, epoch, created_at, updated_at)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		SELECT id, 1000 + i, 'evt_' || i, business_id, shard, 'run.finished', 'ses_1', 'pending', 0, epoch, 0, 0 FROM n CROSS JOIN endpoints WHERE id = ?`, n, endpoint)
	execute(b.t, b.s, "UPDATE businesses SET seq = seq + 1000 + ? WHERE id = ?", n, b.v.BusinessID)
}

// rows counts rows.
func (b *bench) rows(of string, args ...any) (n int) {
	b.t.Helper()
	if err := b.s.Reader().NewRaw("SELECT COUNT(*) FROM "+of, args...).Scan(b.t.Context(), &n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func ptr[T any](v T) *T { return &v }
