package hook_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	"github.com/uptrace/bun/migrate"

	"parley/e2e/servers"
	"parley/store"
	"parley/store/hook"
)

// oldDatabase is one of before 22 November: with deliveries in fan-outs, in leased rows, and in rows that wait.
func oldDatabase(t *testing.T, url string) *bun.DB {
	t.Helper()
	var db *bun.DB
	if store.IsPostgres(url) {
		db = bun.NewDB(dial(t, url), pgdialect.New())
	} else {
		db = bun.NewDB(dial(t, url), sqlitedialect.New())
	}
	files, err := filepath.Glob("../migrations/202611210*.sql")
	rest, err2 := filepath.Glob("../migrations/202611211*.sql")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	old := fstest.MapFS{}
	for _, file := range append(files, rest...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		old[filepath.Base(file)] = &fstest.MapFile{Data: text}
	}
	migrations := migrate.NewMigrations()
	if err := migrations.Discover(old); err != nil {
		t.Fatal(err)
	}
	m := migrate.NewMigrator(db, migrations, migrate.WithTableName("migrations"), migrate.WithLocksTableName("migration_locks"),
		migrate.WithMarkAppliedOnSuccess(true))
	if err := m.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if group, err := m.Migrate(t.Context()); err != nil || len(group.Migrations) != 15 {
		t.Fatal(group, err)
	}
	return db
}

// filler writes rows as the old server did.
type filler struct {
	t   *testing.T
	db  *bun.DB
	biz string
	now store.Time
	evt []string // by number
}

func (f *filler) insert(table string, row map[string]any) {
	f.t.Helper()
	if _, err := f.db.NewInsert().TableExpr(table).Model(&row).Exec(f.t.Context()); err != nil {
		f.t.Fatalf("%s: %v", table, err)
	}
}

func (f *filler) endpoint(status store.EndpointStatus, types []store.EventType, more map[string]any) (id string) {
	id = store.NewID("whe")
	events, _ := json.Marshal(types)
	row := map[string]any{
		"id": id, "business_id": f.biz, "url": "https://example.com/" + id, "events": string(events), "status": string(status), "secrets": []byte("sealed"),
		"shard": hook.ShardOf(f.biz), "created_at": f.now,
	}
	for name, v := range more {
		row[name] = v
	}
	f.insert("endpoints", row)
	return id
}

// delivery writes a row of the old table deliveries.
func (f *filler) delivery(endpoint string, seq int, status store.DeliveryStatus, attempts int, more map[string]any) (id string) {
	id = store.NewID("dlv")
	row := map[string]any{
		"id": id, "business_id": f.biz, "endpoint_id": endpoint, "event_id": f.evt[seq], "seq": seq, "lane": "ses_1", "status": string(status), "attempts": attempts,
		"leased": false, "created_at": f.now - 1000, "updated_at": f.now - 500,
	}
	for name, v := range more {
		row[name] = v
	}
	f.insert("deliveries", row)
	return row["id"].(string)
}

func (f *filler) attempt(delivery string, number int, trigger store.AttemptTrigger) {
	f.insert("attempts", map[string]any{
		"delivery_id": delivery, "number": number, "trigger_name": string(trigger), "started_at": f.now - 700 + store.Time(number), "duration_ms": number,
		"status_code": 500, "error": "http_500", "response_body": "no", "dns_ms": 1, "remote_address": "[::1]:443",
	})
}

// first is the first attempt as a document.
func (f *filler) first(at store.Time, more string) string {
	return fmt.Sprintf(`{"started_at":%q,"duration_ms":7%s}`, at, more)
}

func (f *filler) test(endpoint string, status store.DeliveryStatus, attempts int, more map[string]any) (id string) {
	event := store.NewID("evt")
	f.insert("test_events", map[string]any{
		"id": event, "business_id": f.biz, "seq": 0, "type": "call.ended", "channel": "voice", "timestamp": f.now,
		"body": `{"event":{"id":"` + event + `","data":{"type":"call.ended","direction":"outbound","test":true}}}`,
	})
	row := map[string]any{"event_id": event, "seq": 0, "lane": event, "trigger_name": "test"}
	for name, v := range more {
		row[name] = v
	}
	f.evt[0] = event
	return f.delivery(endpoint, 0, status, attempts, row)
}

// TestAnOldDatabaseIsMigrated: of a database of before deliveries were one row, every delivery is there, in its state, with its attempts
// and under its id; what waited waits, and nothing else does. Another start changes nothing.
func TestAnOldDatabaseIsMigrated(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(t *testing.T) string{
		"SQLite":     func(t *testing.T) string { return "file:" + filepath.Join(t.TempDir(), "parley.db") },
		"PostgreSQL": func(t *testing.T) string { return servers.Database(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			migrateOld(t, at(t))
		})
	}
}

func migrateOld(t *testing.T, url string) {
	f := &filler{t: t, db: oldDatabase(t, url), biz: store.NewID("biz"), now: store.Now(), evt: make([]string, 14)}
	const last = 12
	f.insert("businesses", map[string]any{"id": f.biz, "name": "old", "seq": last, "pruned_seq": 0, "created_at": f.now})
	for seq := 1; seq <= last; seq++ {
		f.evt[seq] = store.NewID("evt")
		f.insert("events", map[string]any{
			"id": f.evt[seq], "business_id": f.biz, "seq": seq, "type": "run.finished", "channel": "sms", "agent_id": "demo", "session_id": "ses_1", "timestamp": f.now - 1000,
			"body": `{"event":{"id":"` + f.evt[seq] + `","data":{"type":"run.finished","direction":"outbound"}}}`,
		})
	}
	runs := []store.EventType{store.RunFinished, store.RunFailed, store.RunFinished}
	on := f.endpoint(store.Enabled, runs, nil)
	off := f.endpoint(store.Disabled, runs, map[string]any{"disabled_reason": "disabled by the business"})
	gone := f.endpoint(store.Disabled, runs, map[string]any{"deleted_at": f.now})
	own := f.endpoint(store.Enabled, []store.EventType{store.RunFinished}, map[string]any{"agent_id": "demo"})
	lost := store.NewID("whe") // there is no such endpoint
	replay := store.NewID("rpl")
	f.insert("replays", map[string]any{
		"id": replay, "business_id": f.biz, "endpoint_id": on, "shard": hook.ShardOf(f.biz), "since_at": 0, "until_at": f.now, "failed_only": true, "seq": 10,
		"last_seq": 10, "status": "running", "total": 1, "sent": 0, "created_at": f.now - 900,
	})

	// What each is to be: its id, status, attempts, and whether it waits in its turn, out of it, or not at all.
	type state struct {
		Status   store.DeliveryStatus
		Attempts int
		Waits    string
		Trigger  store.AttemptTrigger
	}
	const inTurn, now, later = "in its turn", "now", "later"
	want := map[string]state{}
	place := map[string][2]any{} // endpoint and number
	is := func(endpoint string, seq int, id string, s state) string {
		if s.Trigger == "" {
			s.Trigger = store.TriggerAutomatic
		}
		want[id], place[id] = s, [2]any{endpoint, seq}
		return id
	}
	soon, hour := f.now-100, f.now.Add(time.Hour)
	whole := f.first(f.now-700, `,"status_code":200,"dns_ms":0,"connect_ms":1,"tls_ms":2,"first_byte_ms":6,"remote_address":"[::1]:443","response_body":"<ok>"`)
	failed := f.first(f.now-700, fmt.Sprintf(`,"error":"http_500","next_attempt_at":%q`, hour))
	sole := is(on, 1, f.delivery(on, 1, store.Delivered, 1, map[string]any{"first_attempt": whole}), state{store.Delivered, 1, "", ""})
	twice := is(on, 2, f.delivery(on, 2, store.Delivered, 2, map[string]any{"first_attempt": failed}), state{store.Delivered, 2, "", ""})
	f.attempt(twice, 2, store.TriggerAutomatic)
	rows := is(on, 3, f.delivery(on, 3, store.Failed, 2, nil), state{store.Failed, 2, "", ""})
	f.attempt(rows, 1, store.TriggerAutomatic)
	f.attempt(rows, 2, store.TriggerManual)
	// The id of this one looks as if it held an event and an endpoint.
	is(on, 4, f.delivery(on, 4, store.Skipped, 0, map[string]any{"id": "dlv_01580158-0158-7158-8158-015801580158"}), state{store.Skipped, 0, "", ""})
	is(on, 5, f.delivery(on, 5, store.Pending, 0, map[string]any{"next_attempt_at": 0}), state{store.Pending, 0, inTurn, ""})
	is(on, 6, f.delivery(on, 6, store.Pending, 0, map[string]any{"next_attempt_at": hour, "leased": true}), state{store.Pending, 0, inTurn, ""})
	is(on, 7, f.delivery(on, 7, store.Retrying, 1, map[string]any{"next_attempt_at": hour, "first_attempt": failed}), state{store.Retrying, 1, later, ""})
	is(on, 8, f.delivery(on, 8, store.Retrying, 1, map[string]any{"next_attempt_at": hour, "leased": true, "first_attempt": failed}), state{store.Retrying, 1, now, ""})
	is(on, 9, f.delivery(on, 9, store.Delivered, 1, map[string]any{"next_attempt_at": soon, "trigger_name": "manual", "base": 1, "first_attempt": whole}),
		state{store.Delivered, 1, now, store.TriggerManual})
	is(on, 10, f.delivery(on, 10, store.Pending, 0, map[string]any{"next_attempt_at": soon, "trigger_name": "replay", "replay_id": replay}),
		state{store.Pending, 0, now, store.TriggerReplay})
	is(off, 5, f.delivery(off, 5, store.Pending, 0, map[string]any{"next_attempt_at": 0}), state{store.Skipped, 0, "", ""})
	is(off, 7, f.delivery(off, 7, store.Retrying, 1, map[string]any{"next_attempt_at": hour, "first_attempt": failed}), state{store.Failed, 1, "", ""})
	is(off, 8, f.delivery(off, 8, store.Delivered, 1, map[string]any{"next_attempt_at": soon, "trigger_name": "manual", "base": 1, "first_attempt": whole}),
		state{store.Delivered, 1, "", store.TriggerManual})
	is(gone, 5, f.delivery(gone, 5, store.Pending, 0, map[string]any{"next_attempt_at": 0}), state{store.Skipped, 0, "", ""})
	is(lost, 5, f.delivery(lost, 5, store.Pending, 0, map[string]any{"next_attempt_at": 0}), state{store.Skipped, 0, "", ""})
	is(lost, 7, f.delivery(lost, 7, store.Retrying, 1, map[string]any{"next_attempt_at": hour, "first_attempt": failed}), state{store.Failed, 1, "", ""})
	is(on, last, f.test(on, store.Pending, 0, map[string]any{"next_attempt_at": soon}), state{store.Pending, 0, now, store.TriggerTest})
	is(off, last, f.test(off, store.Pending, 0, map[string]any{"next_attempt_at": hour, "leased": true}), state{store.Pending, 0, now, store.TriggerTest})
	is(gone, last, f.test(gone, store.Pending, 0, map[string]any{"next_attempt_at": soon}), state{store.Skipped, 0, "", store.TriggerTest})
	tested := is(on, last, f.test(on, store.Failed, 1, nil), state{store.Failed, 1, "", store.TriggerTest})
	f.attempt(tested, 1, store.TriggerTest)
	fanOut := func(seq int, endpoints ...string) {
		var born [][2]string
		for _, p := range endpoints {
			id := store.NewID("dlv")
			born = append(born, [2]string{id, p})
			switch p {
			case off, gone:
				is(p, seq, id, state{store.Skipped, 0, "", ""})
			default:
				is(p, seq, id, state{store.Pending, 0, inTurn, ""})
			}
		}
		if seq == 12 { // one of it has a row
			is(on, seq, f.delivery(on, seq, store.Delivered, 1, map[string]any{"id": born[0][0], "first_attempt": whole}), state{store.Delivered, 1, "", ""})
		}
		list, _ := json.Marshal(born)
		f.insert("fan_outs", map[string]any{
			"event_id": f.evt[seq], "business_id": f.biz, "shard": hook.ShardOf(f.biz), "seq": seq, "lane": "ses_1", "lease_until": hour, "created_at": f.now - 1000,
			"deliveries": string(list),
		})
	}
	fanOut(11, on, off, gone, own)
	fanOut(12, on, own)

	b := &bench{t: t, v: &store.Viewer{BusinessID: f.biz}}
	b.s, b.h = open(t, url, nil)
	check := func() {
		t.Helper()
		got := map[string]state{}
		for _, d := range deliveries(t, b.h, b.v, hook.DeliveryFilter{}, 7) {
			if alone := b.delivery(d.ID()); d.ID() != alone.ID() || d.Key() != alone.Key() {
				t.Errorf("by its id %s is %+v, want %+v", d.ID(), alone, d)
			}
			s := state{d.Status, d.Attempts, "", d.Trigger}
			switch {
			case d.Due == nil:
			case *d.Due == 0:
				s.Waits = inTurn
			case *d.Due <= f.now:
				s.Waits = now
			case *d.Due == hour:
				s.Waits = later
			}
			got[d.ID()] = s
			if p := place[d.ID()]; p[0] != d.EndpointID || p[1] != int(d.Seq) {
				t.Errorf("%s is %+v, want endpoint and number %v", d.ID(), d, p)
			}
			if kind := map[bool]store.EventType{true: store.CallEnded, false: store.RunFinished}[d.Trigger == store.TriggerTest]; d.Type != kind {
				t.Errorf("%s is of the type %q", d.ID(), d.Type)
			}
			if all := b.attempts(d.ID()); len(all) != d.Attempts {
				t.Errorf("%s has %d attempts on record, want %d", d.ID(), len(all), d.Attempts)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("deliveries: %s", diff)
		}
		for _, status := range store.DeliveryStatuses {
			n := 0
			for _, s := range want {
				if s.Status == status {
					n++
				}
			}
			if all := deliveries(t, b.h, b.v, hook.DeliveryFilter{Status: &status}, 5); len(all) != n {
				t.Errorf("%d are listed as %s, want %d", len(all), status, n)
			}
		}
		for _, p := range []string{on, off, gone, own, lost} {
			var seqs []int
			for _, j := range b.next(p) {
				if want[j.ID()].Waits != inTurn || j.EndpointID != p {
					t.Errorf("next is %+v", j)
				}
				seqs = append(seqs, int(j.Seq))
			}
			var all []int
			for id, s := range want {
				if s.Waits == inTurn && place[id][0] == p {
					all = append(all, place[id][1].(int))
				}
			}
			slices.Sort(all)
			if !slices.Equal(seqs, all) {
				t.Errorf("next to %s are %v, want %v", p, seqs, all)
			}
			for _, until := range []store.Time{b.s.Now(), hour} {
				jobs, err := b.h.Due(t.Context(), b.shard(), p, until, 100)
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				for id, s := range want {
					if place[id][0] == p && (s.Waits == now || s.Waits == later && until == hour) {
						n++
					}
				}
				if len(jobs) != n {
					t.Errorf("to %s %d are due, want %d", p, len(jobs), n)
				}
			}
		}
	}
	check()
	attempts := b.attempts(sole)
	if diff := cmp.Diff([]*hook.Attempt{{
		EndpointID: on, Seq: 1, EventID: f.evt[1], Number: 1, Trigger: store.TriggerAutomatic, StartedAt: f.now - 700, DurationMs: 7, StatusCode: ptr(200),
		Timings:      hook.Timings{DNSMs: ptr(0), ConnectMs: ptr(1), TLSMs: ptr(2), FirstByteMs: ptr(6), RemoteAddress: ptr("[::1]:443")},
		ResponseBody: ptr("<ok>"),
	}}, attempts); diff != "" {
		t.Errorf("an attempt that was a document: %s", diff)
	}
	if a := b.attempts(twice); a[0].NextAttemptAt == nil || *a[0].NextAttemptAt != hour || *a[0].Error != "http_500" || a[1].Number != 2 || a[1].DurationMs != 2 || *a[1].DNSMs != 1 {
		t.Errorf("two attempts: %+v, %+v", a[0], a[1])
	}
	if a := b.attempts(rows); a[0].Trigger != store.TriggerAutomatic || a[1].Trigger != store.TriggerManual || a[1].StartedAt != f.now-698 {
		t.Errorf("two attempts: %+v, %+v", a[0], a[1])
	}
	if r := b.replayed(replay); r.Status != store.ReplayRunning || r.Seq != 10 {
		t.Errorf("the replay is %+v", r)
	}

	// Another start finds all as it is.
	dump := func() (rows []string) {
		t.Helper()
		for _, table := range []string{"deliveries", "attempts", "wants", "endpoints", "replays", "test_events"} {
			var all []map[string]any
			if err := f.db.NewRaw("SELECT * FROM ?", bun.Ident(table)).Scan(t.Context(), &all); err != nil {
				t.Fatal(err)
			}
			for _, row := range all {
				rows = append(rows, fmt.Sprint(table, row))
			}
		}
		slices.Sort(rows)
		return rows
	}
	before := dump()
	if s, _ := open(t, url, nil); s == nil || !slices.Equal(before, dump()) {
		t.Error("another start has changed something")
	}

	// The worker goes on with all of it: each counts once, and the replay ends.
	b.holds = takeAll(t, b.h, "replica")
	for _, p := range []string{on, off, own} {
		for _, j := range append(b.next(p), b.due(p)...) {
			if j.ReplayID == nil {
				want[j.ID()] = state{store.Delivered, j.Attempts + 1, "", j.Trigger}
			} else {
				want[j.ID()] = state{store.Delivered, 1, "", store.TriggerReplay}
			}
			if n := b.end(store.Delivered, nil, j); n != 1 {
				t.Errorf("%+v counted %d times", j, n)
			}
		}
	}
	if err := b.h.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.advance(10)
	check()
	if r := b.replayed(replay); r.Status != store.ReplayFinished || r.Sent != 1 {
		t.Errorf("the replay is %+v", r)
	}
	if n := b.rows("deliveries WHERE due IS NOT NULL"); n != 1 { // the retry in an hour
		t.Errorf("%d wait", n)
	}

	// Who wants what is as it was.
	got := map[string]string{}
	var wants []struct {
		Type       string `bun:"type"`
		AgentID    string `bun:"agent_id"`
		EndpointID string `bun:"endpoint_id"`
		Enabled    bool   `bun:"enabled"`
		Epoch      int64  `bun:"epoch"`
	}
	if err := b.s.Reader().NewRaw("SELECT type, agent_id, endpoint_id, enabled, epoch FROM wants").Scan(t.Context(), &wants); err != nil {
		t.Fatal(err)
	}
	for _, w := range wants {
		got[w.EndpointID+" "+w.Type] = fmt.Sprint(w.AgentID, w.Enabled, w.Epoch)
	}
	if diff := cmp.Diff(map[string]string{
		on + " run.finished": "true 0", on + " run.failed": "true 0", off + " run.finished": "false 0", off + " run.failed": "false 0", own + " run.finished": "demotrue 0",
	}, got); diff != "" || len(wants) != len(got) {
		t.Errorf("who wants what: %s", diff)
	}
}

// TestALivingOldServerIsNotMigratedUnder: as long as a server of before is alive on the database, a start is refused with one line and
// changes nothing; one that was killed is waited for until its lease is over.
func TestALivingOldServerIsNotMigratedUnder(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	db := oldDatabase(t, url)
	beat := func(lease time.Duration) {
		_, err := db.NewRaw("INSERT INTO replicas (id, alive_until) VALUES ('old', ?) ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until",
			store.Now().Add(lease)).Exec(context.Background())
		if err != nil {
			t.Error(err)
		}
	}
	beat(300 * time.Millisecond)
	alive, died := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(died)
		for {
			select {
			case <-alive:
				return
			case <-time.After(10 * time.Millisecond):
				beat(300 * time.Millisecond)
			}
		}
	}()
	sealer, err := store.NewSealer(base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	cfg := store.Config{URL: url, Sealer: sealer}
	s, err := store.Open(t.Context(), cfg)
	if err == nil {
		_ = s.Close()
	}
	close(alive)
	<-died
	if err == nil || !strings.Contains(err.Error(), "a server of an earlier version is at work on this database: stop all of them") || strings.Contains(err.Error(), "\n") {
		t.Errorf("it was opened: %v", err)
	}
	var untouched bool
	if err := db.NewRaw("SELECT to_regclass('fan_outs') IS NOT NULL AND to_regclass('wants') IS NULL").Scan(t.Context(), &untouched); err != nil || !untouched {
		t.Errorf("it was changed, %v", err)
	}
	if s, err = store.Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
