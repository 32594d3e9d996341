package store_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/egress"
	"parley/store"
	"parley/store/hook"
)

// TestListsReadAnIndex reads the plans of the lists that grow: each page comes from an index, in its order. Nothing is read
// whole, and nothing is sorted.
func TestListsReadAnIndex(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		if err := s.LongAgo(t.Context(), v.BusinessID, 20_000, time.Hour); err != nil {
			t.Fatal(err)
		}
		h := hook.New(hook.Config{Store: s, NewSecret: egress.NewSecret})
		var endpoints []string
		for range 3 {
			p, _, err := h.CreateEndpoint(t.Context(), v, hook.EndpointInput{URL: ptr("https://example.com"), Events: store.EventTypes})
			if err != nil {
				t.Fatal(err)
			}
			endpoints = append(endpoints, p.ID)
		}
		finish(t, s, begin(t, s, v, ""))
		off := hook.EndpointInput{Status: ptr(store.Disabled)} // with rows that wait and are over
		if _, err := h.UpdateEndpoint(t.Context(), v, endpoints[2], off); err != nil {
			t.Fatal(err)
		}
		made, err := h.Deliveries(t.Context(), v.BusinessID, hook.DeliveryFilter{}, store.PageInput{First: 1})
		if err != nil || len(made.Edges) != 1 {
			t.Fatal(made, err)
		}
		for _, query := range []string{ // so many that they are not read as a whole for a few
			`INSERT INTO deliveries (endpoint_id, seq, event_id, business_id, shard, type, lane, status, epoch, attempts, created_at, updated_at)
				SELECT ?, seq, id, business_id, ?, type, id, 'delivered', 0, 1, timestamp, timestamp FROM events WHERE seq <= 20000`,
			`INSERT INTO attempts (endpoint_id, seq, event_id, number, trigger_name, started_at, duration_ms)
				SELECT ?, seq, id, ?, 'automatic', timestamp, 1 FROM events WHERE seq <= 20000`,
		} {
			err := s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.NewRaw(query, endpoints[0], 2).Exec(ctx)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		one, shard := made.Edges[0].Node, hook.ShardOf(v.BusinessID)
		var queries []string
		s.Reads(func(query string) { queries = append(queries, query) })
		ctx, ten := t.Context(), 10
		goesBy := map[string]string{} // an index, where there is one that leads past what is not wanted
		page, endpoint := store.PageInput{First: 10, After: &made.Edges[0].Cursor}, endpoints[0]
		rows := store.PageInput{First: 10}
		cursor := store.Cursor{BusinessID: v.BusinessID}.String()
		reads := map[string]func() error{
			"agents":    func() error { _, err := s.Agents(ctx, v.BusinessID, rows); return err },
			"endpoints": func() error { _, err := h.Endpoints(ctx, v.BusinessID); return err },
			"some endpoints' replays": func() error {
				_, err := h.ReplaysOf(ctx, endpoints)
				return err
			},
			"what waits": func() error {
				_, err := h.Lanes(ctx, []int{0, shard})
				return err
			},
			"how what waits does": func() error {
				_, err := h.Measure(ctx, []int{0, shard})
				return err
			},
			"what is next": func() error { _, err := h.Next(ctx, shard, endpoint, 7, 10); return err },
			"what is due":  func() error { _, err := h.Due(ctx, shard, endpoint, s.Now(), 10); return err },
			"attempts":     func() error { _, err := h.AttemptsOf(ctx, []string{one.Key(), "2,evt_2,we_1"}); return err },
			"deliveries that changed": func() error {
				_, err := h.DeliveriesRung(ctx, v.BusinessID, []string{one.ID(), "dlv_old"}, []int64{1, 2})
				return err
			},
			"a delivery":               func() error { _, _ = h.Delivery(ctx, v.BusinessID, one.ID()); return nil },
			"a delivery by its old id": func() error { _, _ = h.Delivery(ctx, v.BusinessID, "dlv_old"); return nil },
			"API keys":                 func() error { _, err := s.APIKeys(ctx, v.BusinessID); return err },
			"access tokens":            func() error { _, err := s.AccessTokens(ctx, v.BusinessID); return err },
		}
		filters := map[string]hook.DeliveryFilter{"": {}, "to an endpoint": {EndpointID: &endpoint}}
		for _, status := range store.DeliveryStatuses {
			filters[string(status)] = hook.DeliveryFilter{Status: &status}
			filters["to an endpoint "+string(status)] = hook.DeliveryFilter{EndpointID: &endpoint, Status: &status}
		}
		for name, filter := range filters {
			reads["deliveries "+name] = func() error {
				_, err := h.Deliveries(ctx, v.BusinessID, filter, page)
				return err
			}
			if filter.EndpointID == nil {
				reads["some endpoints' deliveries"+name] = func() error {
					_, err := h.DeliveriesOf(ctx, v.BusinessID, endpoints, filter.Status, page)
					return err
				}
			}
		}
		for name, filter := range map[string]store.RunFilter{
			"": {}, " of an agent": {AgentID: ptr("demo")}, " in a state": {Status: ptr(store.RunStatusFailed)},
			" of an agent in a state": {AgentID: ptr("demo"), Status: ptr(store.RunStatusFailed)}, " that finished": {Status: ptr(store.RunStatusFinished)},
		} {
			reads["runs"+name] = func() error {
				_, err := s.Runs(ctx, v.BusinessID, filter, rows)
				return err
			}
		}
		for name, filter := range map[string]*store.EventFilter{
			"": nil, " of types": {Types: []store.EventType{store.RunFinished, store.CallEnded}}, " of channels": {Channels: []store.Channel{store.Voice}},
			" of types on channels": {Types: []store.EventType{store.CallEnded}, Channels: []store.Channel{store.Voice}},
			" of an agent":          {AgentID: ptr("demo")}, " of an agent of types": {AgentID: ptr("demo"), Types: []store.EventType{store.CallEnded}},
			" of a conversation": {ConversationID: ptr("cnv")}, " of a session": {SessionID: ptr("ses")},
			" of a session of types": {SessionID: ptr("ses"), Types: []store.EventType{store.CallEnded}},
		} {
			switch {
			case filter == nil:
			case filter.SessionID != nil:
				goesBy[name] = "events_of_session"
			case filter.ConversationID != nil:
				goesBy[name] = "events_of_conversation"
			case filter.AgentID != nil:
				goesBy[name] = "events_of_agent"
			default:
				goesBy[name] = "events_on_channel"
			}
			reads["events after"+name] = func() error {
				_, err := s.Events(ctx, v.BusinessID, filter, store.EventPage{First: &ten, After: &cursor})
				return err
			}
			reads["events before"+name] = func() error {
				_, err := s.Events(ctx, v.BusinessID, filter, store.EventPage{Last: &ten, Before: &cursor})
				return err
			}
		}
		for name, read := range reads {
			queries = nil
			if err := read(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if len(queries) == 0 {
				t.Fatalf("%s: nothing was read", name)
			}
			for _, query := range queries {
				plan, err := s.Plan(ctx, query)
				if err != nil {
					t.Fatalf("%s: %v", query, err)
				}
				along := strings.TrimPrefix(strings.TrimPrefix(name, "events after"), "events before")
				if strings.HasPrefix(name, "events") && strings.Count(plan, goesBy[along]) < strings.Count(query, "SELECT * FROM (") {
					t.Errorf("%s does not go by %s:\n%s\n%s", name, goesBy[along], query, plan)
				}
				// What waits or failed is found by the index of that, and no walk through all that
				// an endpoint ever got.
				if strings.Count(plan, "deliveries_waiting")+strings.Count(plan, "deliveries_undelivered") < strings.Count(query, "|| '' DESC") {
					t.Errorf("%s does not go by status:\n%s\n%s", name, query, plan)
				}
				if readsWholly(plan) {
					t.Errorf("%s:\n%s\n%s", name, query, plan)
				}
			}
		}
	})
}

// wholly finds in a plan what goes through all of a table or of an index, or sorts. A scan of a page is of what an index gave, and so
// is one of a recursive query's last step. What has the same number may be sorted: it is few.
var (
	wholly  = regexp.MustCompile(`(?m)Seq Scan|Sort|^\s*SCAN (\w+)$|^\s*SCAN \w+ USING|USE TEMP B-TREE`)
	few     = regexp.MustCompile(`Incremental Sort|Sort Key|Presorted Key|USE TEMP B-TREE FOR LAST|SCAN page\d+\b|SCAN (lane|k)\b|SCAN \d+ CONSTANT`)
	pgIndex = regexp.MustCompile(`Index (Only )?Scan .*using \w+ on \w+`)
	indexed = regexp.MustCompile(`Index Cond`)
)

func readsWholly(plan string) bool {
	lines := strings.Split(plan+"\n", "\n")
	for i, line := range lines {
		if wholly.MatchString(few.ReplaceAllString(line, "")) {
			return true
		}
		if pgIndex.MatchString(line) && !indexed.MatchString(lines[i+1]) {
			return true
		}
	}
	return false
}

// TestDeliveriesOfEndpointsAreReadAtOnce shows that the number of statements does not grow with that of the endpoints.
func TestDeliveriesOfEndpointsAreReadAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		h, v := hook.New(hook.Config{Store: s, NewSecret: egress.NewSecret}), newBusiness(t, s)
		var ids []string
		for range 5 {
			p, _, err := h.CreateEndpoint(t.Context(), v, hook.EndpointInput{URL: ptr("https://example.com"), Events: []store.EventType{store.MessageCreated}})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, p.ID)
		}
		for range 4 {
			finish(t, s, begin(t, s, v, ""))
		}
		statements := 0
		s.Reads(func(string) { statements++ })
		ids = append(ids, ids[0]) // asked for twice
		of, err := h.DeliveriesOf(t.Context(), v.BusinessID, ids, nil, store.PageInput{First: 3})
		if err != nil {
			t.Fatal(err)
		}
		if statements != 1 {
			t.Errorf("%d statements", statements)
		}
		for _, id := range ids {
			alone, err := h.Deliveries(t.Context(), v.BusinessID, hook.DeliveryFilter{EndpointID: &id}, store.PageInput{First: 3})
			if err != nil || len(alone.Edges) != 3 || !alone.PageInfo.HasNextPage {
				t.Fatalf("%+v, %v", alone, err)
			}
			if len(of[id].Edges) != 3 || of[id].PageInfo.HasNextPage != alone.PageInfo.HasNextPage {
				t.Fatalf("of %s: %+v", id, of[id])
			}
			for i, e := range alone.Edges {
				if of[id].Edges[i].Cursor != e.Cursor || of[id].Edges[i].Node.ID() != e.Node.ID() {
					t.Errorf("edge %d of %s differs", i, id)
				}
			}
		}
	})
}

// TestReplayReadsLittle: of a long history a replay reads what is of its time, and few events in one reading, though there is
// almost nothing for its endpoint.
func TestReplayReadsLittle(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		h, v := hook.New(hook.Config{Store: s, NewSecret: egress.NewSecret}), newBusiness(t, s)
		p, _, err := h.CreateEndpoint(t.Context(), v, hook.EndpointInput{URL: ptr("https://example.com"), Events: []store.EventType{store.RunFinished}})
		if err != nil {
			t.Fatal(err)
		}
		holds, err := h.TakeShards(t.Context(), "replica", hook.Shards)
		if err != nil {
			t.Fatal(err)
		}
		hold := holds[slices.IndexFunc(holds, func(x hook.Hold) bool { return x.Shard == p.Shard })]
		const n, days = 20_000, 10
		if err := s.LongAgo(t.Context(), v.BusinessID, n, days*24*time.Hour); err != nil {
			t.Fatal(err)
		}
		finish(t, s, begin(t, s, v, ""))
		jobs, err := h.Next(t.Context(), p.Shard, p.ID, 0, 10)
		if err != nil || len(jobs) != 1 {
			t.Fatalf("%d wait, %v", len(jobs), err)
		}
		_, err = h.Record(t.Context(), []*hook.Outcome{{
			Job: jobs[0], Hold: hold, Status: store.Delivered, Attempt: &hook.Attempt{Number: 1, Trigger: store.TriggerAutomatic, StartedAt: s.Now()},
		}})
		if err != nil {
			t.Fatal(err)
		}
		walked := regexp.MustCompile(`e\.seq > (\d+)\D+ e\.seq <= (\d+)`)
		type span struct{ after, until int }
		var spans []span
		s.Reads(func(query string) {
			if found := walked.FindStringSubmatch(query); found != nil {
				after, _ := strconv.Atoi(found[1])
				until, _ := strconv.Atoi(found[2])
				spans = append(spans, span{after, until})
			}
		})
		replay := func(since, until int) *hook.Replay { // days ago
			t.Helper()
			spans = nil
			in := hook.ReplayInput{EndpointID: p.ID, Since: store.Now().Add(-time.Duration(since) * 24 * time.Hour), FailedOnly: ptr(false)}
			if until > 0 {
				in.Until = ptr(store.Now().Add(-time.Duration(until) * 24 * time.Hour))
			}
			r, err := h.ReplayEvents(t.Context(), v, in)
			if err != nil || len(spans) != 1 {
				t.Fatalf("%v after %v", err, spans)
			}
			return r
		}
		const day, hour = n / days, n / days / 24
		if r := replay(7, 5); r.Total != 0 || spans[0].after < 3*day-2*hour || spans[0].until > 5*day+2*hour {
			t.Errorf("of the days 3 to 5, the events %+v were counted: %+v", spans[0], r)
		}
		if r := replay(9, 0); r.Total != 1 || spans[0].after < day-2*hour || spans[0].after > day {
			t.Errorf("since the first day, the events %+v were counted: %+v", spans[0], r)
		}
		spans = nil
		due, err := h.AdvanceReplays(t.Context(), []hook.Hold{hold}, 32)
		if err != nil || len(due) != 1 || len(spans) < 4 {
			t.Errorf("due are %v, %v, after %v", due, err, spans)
		}
		for _, s := range spans {
			if s.until-s.after > 5_000 {
				t.Errorf("the events %+v were read at once", s)
			}
		}
	})
}

// TestBatchesGoByKeys: the statements that stay prepared on PostgreSQL, whose plans were made when there was next to nothing, go by
// keys: they read no table, and no index of one, as a whole.
func TestBatchesGoByKeys(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	s := open(t, func(c *store.Config) { c.URL = url })
	h, v := hook.New(hook.Config{Store: s, NewSecret: egress.NewSecret}), newBusiness(t, s)
	p, _, err := h.CreateEndpoint(t.Context(), v, hook.EndpointInput{URL: ptr("https://example.com"), Events: store.EventTypes})
	if err != nil {
		t.Fatal(err)
	}
	holds, err := h.TakeShards(t.Context(), "replica", hook.Shards)
	if err != nil {
		t.Fatal(err)
	}
	hold := holds[slices.IndexFunc(holds, func(x hook.Hold) bool { return x.Shard == p.Shard })]
	session := ""
	for i := range 3 {
		in := keyed(v, session, fmt.Sprint("key ", i), "hash")
		turn, err := s.BeginTurn(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if session = turn.SessionID; i == 1 {
			err = s.FailTurn(t.Context(), turn.Run, store.RunInterrupted)
		} else {
			_, err = s.FinishTurn(t.Context(), turn, "Hi")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.StandInLine(t.Context(), &store.Ticket{SessionID: session, BusinessID: v.BusinessID, AgentID: "demo"}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.SendTest(t.Context(), v, p.ID, store.CallEnded); err != nil {
		t.Fatal(err)
	}
	jobs, err := h.Next(t.Context(), p.Shard, p.ID, 0, 10)
	if err != nil || len(jobs) != 8 {
		t.Fatal(len(jobs), err)
	}
	for i, j := range jobs {
		o := &hook.Outcome{Job: j, Hold: hold, Status: store.Delivered, Attempt: &hook.Attempt{Number: 1, Trigger: j.Trigger, StartedAt: s.Now()}}
		if i%2 == 0 {
			o.Status, o.Next, o.Attempt.Error = store.Retrying, ptr(s.Now()), ptr("http_500")
		}
		if i == 1 {
			o.Status, o.Attempt.Error = store.Failed, ptr("http_500")
		}
		if _, err := h.Record(t.Context(), []*hook.Outcome{o}); err != nil {
			t.Fatal(err)
		}
	}
	due, err := h.Due(t.Context(), p.Shard, p.ID, s.Now(), 10)
	if err != nil || len(due) == 0 {
		t.Fatal(len(due), err)
	}
	if _, err := h.Record(t.Context(), []*hook.Outcome{{
		Job: due[0], Hold: hold, Status: store.Failed, Attempt: &hook.Attempt{Number: due[0].Attempts + 1, Trigger: due[0].Trigger, StartedAt: s.Now(), Error: ptr("gone")},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.ReplayEvents(t.Context(), v, hook.ReplayInput{EndpointID: p.ID, FailedOnly: ptr(false)}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.AdvanceReplays(t.Context(), holds, 10); err != nil {
		t.Fatal(err)
	}
	plans, err := s.BatchPlans(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(plans) < 20 {
		t.Errorf("%d statements", len(plans))
	}
	for text, plan := range plans {
		if readsWholly(plan) {
			t.Errorf("%s\n%s", text, plan)
		}
	}
}
