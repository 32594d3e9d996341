package store_test

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

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
