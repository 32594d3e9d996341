package store_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"

	"parley/egress"
	"parley/graph"
	"parley/store"
	"parley/store/hook"
)

// TestQueriesDoNotGrowWithThePage asks GraphQL for every list of the schema with every list below it, of a business that has
// two of everything and of one that has fifty: both take the same number of queries.
func TestQueriesDoNotGrowWithThePage(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		hooks := hook.New(hook.Config{Store: s, MaxEndpoints: 200, NewSecret: egress.NewSecret})
		h := graph.NewHandler(graph.HandlerConfig{
			Resolver: &graph.Resolver{Store: s, Hooks: hooks}, Log: slog.New(slog.DiscardHandler), Introspection: func(*store.Viewer) bool { return false },
			Limits: graph.Limits{Tokens: 1 << 20, Depth: 100, Aliases: 100, RootFields: 100, Cost: 1 << 40},
		})
		var mu sync.Mutex // guards queries
		var queries []string
		s.Reads(func(query string) {
			mu.Lock()
			defer mu.Unlock()
			queries = append(queries, query)
		})
		ask := func(v *store.Viewer, field string) (data any, asked []string) {
			queries = nil
			body, _ := json.Marshal(map[string]string{"query": "{" + field + "}"})
			r := httptest.NewRequest(http.MethodPost, "/graphql", bytes.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r.WithContext(store.WithViewer(r.Context(), v, nil)))
			var answer struct{ Data, Errors any }
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Errors != nil {
				t.Fatalf("%s\n%s: %v", field, w.Body.String(), err)
			}
			return answer.Data, queries
		}
		taken, err := hooks.TakeShards(t.Context(), "replica", hook.Shards)
		if err != nil || len(taken) != hook.Shards {
			t.Fatal(taken, err)
		}
		few, many := businessWith(t, s, hooks, taken, 2), businessWith(t, s, hooks, taken, 50)
		for name, field := range listsOf(t, map[string]func(business) string{
			"agent":           func(b business) string { return `id: "demo"` },
			"webhookEndpoint": func(b business) string { return fmt.Sprintf("id: %q", b.endpoint) },
			"delivery":        func(b business) string { return fmt.Sprintf("id: %q", b.delivery) },
			"replayJob":       func(b business) string { return fmt.Sprintf("id: %q", b.replay) },
			"run":             func(b business) string { return fmt.Sprintf("id: %q", b.run) },
			"usage":           func(business) string { return `from: "2026-01-01T00:00:00Z" to: "2026-12-31T00:00:00Z"` },
		}) {
			_, asked := ask(few.viewer, field(few))
			data, more := ask(many.viewer, field(many))
			if len(more) != len(asked) {
				t.Errorf("%s: %d queries of a page of 2, and %d of one of 50: %s", name, len(asked), len(more), extra(asked, more))
			}
			longest := map[string]int{}
			lengths(data, "", longest)
			for path, n := range longest {
				if (n == 0 || strings.Count(path, ".") == 1 && n < 50) && !strings.HasPrefix(path, ".usage.") { // sums
					t.Errorf("%s: the list %s has %d rows: have businessWith make some", name, path, n)
				}
			}
		}
	})
}

// lengths notes how long the lists in data are, the longest at each path.
func lengths(v any, path string, of map[string]int) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			if name == "edges" || name == "nodes" { // the list is the connection's
				lengths(child, path, of)
			} else {
				lengths(child, path+"."+name, of)
			}
		}
	case []any:
		of[path] = max(of[path], len(v))
		for _, child := range v {
			lengths(child, path, of)
		}
	}
}

// extra names the query that there are most of, and some others did without.
func extra(few, many []string) string {
	count := func(queries []string) map[string]int {
		of := map[string]int{}
		for _, q := range queries {
			of[q[:strings.Index(q+" WHERE", " WHERE")]]++
		}
		return of
	}
	before, after := count(few), count(many)
	worst := ""
	for q, n := range after {
		if n > before[q] && n > after[worst] {
			worst = q
		}
	}
	return fmt.Sprintf("%d times %s", after[worst], worst)
}

// listsOf are the fields of Query with all that there is below them, lists by their edges and by their nodes. A type stands at
// most twice on the way down. Pages of the first list are of 50, those below it of 1.
func listsOf(t *testing.T, arguments map[string]func(business) string) map[string]func(business) string {
	t.Helper()
	text, err := os.ReadFile("../schema.graphqls")
	if err != nil {
		t.Fatal(err)
	}
	schema := gqlparser.MustLoadSchema(&ast.Source{Input: string(text)})
	out := map[string]func(business) string{}
	for _, f := range schema.Query.Fields {
		if strings.HasPrefix(f.Name, "__") {
			continue
		}
		ask := arguments[f.Name]
		for _, a := range f.Arguments {
			if a.Type.NonNull && a.DefaultValue == nil && ask == nil {
				t.Fatalf("%s needs arguments: give it some here", f.Name)
			}
		}
		for _, by := range []string{"edges", "nodes"} {
			paged := f.Arguments.ForName("first") != nil
			text := below(schema, f.Type, by, paged, nil)
			out[f.Name+" by "+by] = func(b business) string {
				args := ""
				if ask != nil {
					args = "(" + ask(b) + ")"
				} else if paged {
					args = "(first: 50)"
				}
				return f.Name + args + text
			}
		}
	}
	return out
}

func below(schema *ast.Schema, of *ast.Type, by string, within bool, above []string) string {
	name := of.Name()
	d := schema.Types[name]
	if d.Kind != ast.Object {
		return ""
	}
	if n := len(slices.Collect(filter(above, name))); n == 2 {
		return " { __typename }"
	}
	above = append(slices.Clone(above), name)
	var b strings.Builder
	b.WriteString(" {")
	for _, f := range d.Fields {
		if (f.Name == "edges" || f.Name == "nodes") && f.Name != by {
			continue
		}
		paged := f.Arguments.ForName("first") != nil
		b.WriteString(" " + f.Name)
		switch {
		case paged && within:
			b.WriteString("(first: 1)")
		case paged:
			b.WriteString("(first: 50)")
		}
		b.WriteString(below(schema, f.Type, by, within || paged || f.Type.Elem != nil, above))
	}
	return b.String() + " }"
}

func filter(all []string, name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, s := range all {
			if s == name && !yield(s) {
				return
			}
		}
	}
}

// business is one with n of everything.
type business struct {
	viewer                          *store.Viewer
	endpoint, delivery, replay, run string
}

func businessWith(t *testing.T, s *store.Store, h *hook.Hooks, holds []hook.Hold, n int) business {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, v := t.Context(), newBusiness(t, s)
	b := business{viewer: v}
	step := store.RunStep{Model: "m", ToolCalls: []store.ToolCall{{Name: "t"}}}
	for i := range n {
		in := store.AgentInput{
			Name: ptr(fmt.Sprint("agent ", i)), WebhookURL: store.OptionalString{Set: true, Value: ptr("https://example.com/agent")},
			Knowledge: []store.Knowledge{{Title: "t", Text: "t"}}, ChannelProfiles: []store.ChannelProfile{{Channel: store.SMS}},
			Tools:      []store.ToolInput{{Name: "t", Description: "t", URL: "https://example.com/", Parameters: store.JSONObject(`{}`), Triggers: []string{"t"}, Headers: ptr(store.JSONObject(`{"a": "b"}`))}},
			McpServers: []store.McpServerInput{{Name: "m", URL: "https://example.com/", Headers: ptr(store.JSONObject(`{"a": "b"}`))}},
		}
		agent := "demo"
		if i == 0 {
			_, err := s.UpdateAgent(ctx, v, agent, in)
			must(err)
		} else {
			made, err := s.CreateAgent(ctx, v, in)
			must(err)
			agent = made.ID
		}
		if i > 0 { // it has one of each already
			_, err := s.CreateAPIKey(ctx, v, "key")
			must(err)
			_, err = s.CreateAccessToken(ctx, v, "token", store.ScopeRead)
			must(err)
		}
		endpoint, _, err := h.CreateEndpoint(ctx, v, hook.EndpointInput{URL: ptr("https://example.com/hook"), Events: []store.EventType{store.RunFinished}})
		must(err)
		if i == 0 {
			b.endpoint = endpoint.ID
		}
		turn := turnInput(v, "")
		turn.AgentID = agent
		begun, err := s.BeginTurn(ctx, turn)
		must(err)
		_, err = s.FinishTurn(ctx, begun, "Hi", step)
		must(err)
		b.run = begun.Run.ID
	}
	shard := hook.ShardOf(v.BusinessID)
	lanes, err := h.Lanes(ctx, []int{shard})
	must(err)
	for _, lane := range lanes {
		if lane.BusinessID != v.BusinessID {
			continue
		}
		jobs, err := h.Next(ctx, shard, lane.EndpointID, 0, 1000)
		must(err)
		var outcomes []*hook.Outcome
		for _, j := range jobs {
			outcomes = append(outcomes, &hook.Outcome{
				Job: j, Hold: holds[slices.IndexFunc(holds, func(x hook.Hold) bool { return x.Shard == shard })], Status: store.Delivered,
				Attempt: &hook.Attempt{Number: 1, Trigger: j.Trigger, StartedAt: store.Now()},
			})
			b.delivery = j.ID()
		}
		_, err = h.Record(ctx, outcomes)
		must(err)
		r, err := h.ReplayEvents(ctx, v, hook.ReplayInput{EndpointID: lane.EndpointID})
		must(err)
		b.replay = r.ID
	}
	return b
}
