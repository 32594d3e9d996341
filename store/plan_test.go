package store_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"parley/e2e/servers"
	"parley/store"
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
		var queries []string
		s.Reads(func(query string) { queries = append(queries, query) })
		ctx, ten := t.Context(), 10
		goesBy := map[string]string{} // an index, where there is one that leads past what is not wanted
		page, endpoint := store.PageInput{First: 10}, "we_1"
		cursor := store.Cursor{BusinessID: v.BusinessID}.String()
		// A SCAN of a page is of what the index gave.
		wholly := regexp.MustCompile(`(?m)Seq Scan|Sort|^\s*SCAN [a-oq-z]\w*$|USE TEMP B-TREE`)
		reads := map[string]func() error{
			"agents":    func() error { _, err := s.Agents(ctx, v.BusinessID, page); return err },
			"endpoints": func() error { _, err := s.Endpoints(ctx, v.BusinessID); return err },
			"some endpoints' replays": func() error {
				_, err := s.ReplaysOf(ctx, []string{"we_1", "we_2", "we_3"})
				return err
			},
			"API keys":      func() error { _, err := s.APIKeys(ctx, v.BusinessID); return err },
			"access tokens": func() error { _, err := s.AccessTokens(ctx, v.BusinessID); return err },
		}
		failed := store.Failed
		for name, filter := range map[string]store.DeliveryFilter{
			"": {}, " to an endpoint": {EndpointID: &endpoint}, " in a state": {Status: &failed}, " to an endpoint in a state": {EndpointID: &endpoint, Status: &failed},
		} {
			reads["deliveries"+name] = func() error {
				_, err := s.Deliveries(ctx, v.BusinessID, filter, page)
				return err
			}
			if filter.EndpointID == nil {
				reads["some endpoints' deliveries"+name] = func() error {
					_, err := s.DeliveriesOf(ctx, v.BusinessID, []string{"we_1", "we_2", "we_3"}, filter.Status, page)
					return err
				}
			}
		}
		for name, filter := range map[string]store.RunFilter{
			"": {}, " of an agent": {AgentID: ptr("demo")}, " in a state": {Status: ptr(store.RunStatusFailed)},
			" of an agent in a state": {AgentID: ptr("demo"), Status: ptr(store.RunStatusFailed)}, " that finished": {Status: ptr(store.RunStatusFinished)},
		} {
			reads["runs"+name] = func() error {
				_, err := s.Runs(ctx, v.BusinessID, filter, page)
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
				if !strings.Contains(query, "ORDER BY") {
					continue // what it reads beside the list is one row
				}
				plan, err := s.Plan(ctx, query)
				if err != nil {
					t.Fatalf("%s: %v", query, err)
				}
				along := strings.TrimPrefix(strings.TrimPrefix(name, "events after"), "events before")
				if strings.HasPrefix(name, "events") && strings.Count(plan, goesBy[along]) < strings.Count(query, "SELECT * FROM (") {
					t.Errorf("%s does not go by %s:\n%s\n%s", name, goesBy[along], query, plan)
				}
				if wholly.MatchString(plan) || !strings.Contains(plan, "ndex") && !strings.Contains(plan, "INDEX") {
					t.Errorf("%s:\n%s\n%s", name, query, plan)
				}
			}
		}
	})
}

// TestDeliveriesOfEndpointsAreReadAtOnce shows that the number of statements does not grow with that of the endpoints.
func TestDeliveriesOfEndpointsAreReadAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		var ids []string
		for range 5 {
			ids = append(ids, newEndpoint(t, s, v, store.MessageCreated).ID)
		}
		for range 4 {
			finish(t, s, begin(t, s, v, ""))
		}
		statements := 0
		s.Reads(func(string) { statements++ })
		ids = append(ids, ids[0]) // asked for twice
		of, err := s.DeliveriesOf(t.Context(), v.BusinessID, ids, nil, store.PageInput{First: 3})
		if err != nil {
			t.Fatal(err)
		}
		if statements != 1 {
			t.Errorf("%d statements", statements)
		}
		for _, id := range ids {
			alone, err := s.Deliveries(t.Context(), v.BusinessID, store.DeliveryFilter{EndpointID: &id}, store.PageInput{First: 3})
			if err != nil || len(alone.Edges) != 3 || !alone.PageInfo.HasNextPage {
				t.Fatalf("%+v, %v", alone, err)
			}
			if len(of[id].Edges) != 3 || of[id].PageInfo.HasNextPage != alone.PageInfo.HasNextPage {
				t.Fatalf("of %s: %+v", id, of[id])
			}
			for i, e := range alone.Edges {
				if of[id].Edges[i].Cursor != e.Cursor || of[id].Edges[i].Node.ID != e.Node.ID {
					t.Errorf("edge %d of %s differs", i, id)
				}
			}
		}
	})
}

// TestHotPlansGoByKeys: once there are rows, the statements that are prepared on PostgreSQL read no table, and no index of one, as a
// whole.
func TestHotPlansGoByKeys(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	s := open(t, func(c *store.Config) { c.URL = url })
	v := newBusiness(t, s)
	endpoint := newEndpoint(t, s, v, store.MessageCreated, store.RunFinished)
	var turns errgroup.Group
	for range 300 {
		turns.Go(func() error {
			turn, err := s.BeginTurn(t.Context(), turnInput(v, ""))
			if err == nil {
				_, err = s.FinishTurn(t.Context(), turn, "Hi")
			}
			return err
		})
	}
	if err := errors.Join(turns.Wait(), s.Multiply(t.Context(), endpoint.ID, 1000)); err != nil {
		t.Fatal(err)
	}
	plans, err := s.HotPlans(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(plans) < 15 {
		t.Errorf("%d statements", len(plans))
	}
	grows := regexp.MustCompile(`Scan .*on (deliveries|runs|sessions|messages|events|attempts)\b`)
	for text, plan := range plans {
		lines := strings.Split(plan+"\n", "\n")
		for i, line := range lines {
			if grows.MatchString(line) && !strings.Contains(lines[i+1], "Index Cond") {
				t.Errorf("%s\n%s", text, plan)
				break
			}
		}
	}
}

// TestPlansDoNotStayForLong: one that was made while a table was empty is given up when it may have grown.
func TestPlansDoNotStayForLong(t *testing.T) {
	t.Parallel()
	db := store.OpenKeyed(servers.Database(t))
	defer func() { _ = db.Close() }()
	run := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	byKey := func() bool {
		t.Helper()
		rows, err := db.QueryContext(t.Context(), "EXPLAIN EXECUTE hot('{a}')")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		var plan, line string
		for rows.Next() {
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			plan += line
		}
		return strings.Contains(plan, "Index Cond")
	}
	run("CREATE TABLE grown (id TEXT PRIMARY KEY)")
	run("VACUUM ANALYZE grown")
	run("PREPARE hot(text[]) AS SELECT grown.id FROM unnest($1) AS new(id) JOIN grown ON grown.id = new.id")
	if byKey() {
		t.Fatal("an empty table is gone through by its keys: this test shows nothing any more")
	}
	run("INSERT INTO grown SELECT n FROM generate_series(1, 1000) AS n")
	if err := store.AgePlans(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if !byKey() {
		t.Error("a table that has grown is read as a whole")
	}
}
