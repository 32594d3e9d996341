package graph_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"parley/graph"
	"parley/store"
)

// server is the schema's handler, without a database, for an ADMIN viewer.
func server(t *testing.T, cfg graph.HandlerConfig) (ask func(body string) (status int, answer string)) {
	t.Helper()
	return serversOf(t, cfg)("biz_1")
}

// serversOf is server, for the viewers of several businesses; "" is a caller without a credential.
func serversOf(t *testing.T, cfg graph.HandlerConfig) (by func(business string) (ask func(body string) (status int, answer string))) {
	t.Helper()
	if cfg.Resolver == nil {
		cfg.Resolver = &graph.Resolver{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Introspection = func(*store.Viewer) bool { return true }
	h := graph.NewHandler(cfg)
	t.Cleanup(func() {
		if err := h.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return func(business string) func(string) (int, string) {
		var v *store.Viewer
		if business != "" {
			v = &store.Viewer{BusinessID: business, Credential: &store.Credential{ID: "c", Kind: store.KindAccessToken, Scope: store.ScopeAdmin, Prefix: "at_12345"}}
		}
		return func(body string) (int, string) {
			r := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r.WithContext(store.WithRequestID(store.WithViewer(r.Context(), v, nil), "req_1")))
			return w.Code, w.Body.String()
		}
	}
}

func TestInternalErrorsShowTheRequestAndNothingElse(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	ask := server(t, graph.HandlerConfig{Log: slog.New(slog.NewTextHandler(&log, nil))})
	_, answer := ask(`{"query":"{ feedCursor }"}`) // there is no database
	var got struct {
		Errors []struct {
			Message    string
			Extensions struct{ Code, RequestID string }
		}
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil || len(got.Errors) != 1 {
		t.Fatalf("%s: %v", answer, err)
	}
	if e := got.Errors[0]; e.Message != "something went wrong on our side" || e.Extensions.Code != "INTERNAL" || e.Extensions.RequestID != "req_1" {
		t.Errorf("got %s", answer)
	}
	if !strings.Contains(log.String(), "nil pointer") {
		t.Errorf("the cause is not in the log: %s", log.String())
	}
}

func TestPersistedQueries(t *testing.T) {
	t.Parallel()
	ask := server(t, graph.HandlerConfig{})
	hash := func(query string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(query))) }
	body := func(query, hash string, version int) string {
		b, _ := json.Marshal(map[string]any{"query": query, "extensions": map[string]any{"persistedQuery": map[string]any{"version": version, "sha256Hash": hash}}})
		return string(b)
	}
	expect := func(request, want string) {
		t.Helper()
		if _, answer := ask(request); !strings.Contains(answer, want) {
			t.Errorf("wanted %s\ngot    %s", want, answer)
		}
	}
	const query, answer = `{ __typename }`, `{"data":{"__typename":"Query"}}`
	expect(body("", hash(query), 1), `"code":"BAD_USER_INPUT","reason":"persisted_query_not_found"`)
	expect(body("", hash(query), 1), `"message":"PersistedQueryNotFound"`)
	expect(body(query, hash("another"), 1), `"code":"BAD_USER_INPUT"`)
	expect(body(query, hash(query), 2), `"code":"BAD_USER_INPUT"`)
	expect(body(query, hash(query), 1), answer)
	expect(body("", hash(query), 1), answer)

	// However many others come, the cache is bounded: this one is forgotten.
	for i := range 45 {
		other := fmt.Sprintf("{ a%d: __typename } # %s", i, strings.Repeat("x", 100<<10))
		expect(body(other, hash(other), 1), `{"data":{"a`)
	}
	expect(body("", hash(query), 1), `"code":"BAD_USER_INPUT","reason":"persisted_query_not_found"`)
}

// TestStrangers: who has no credential, or another business's, changes nothing of what the clients of a business have sent before; and
// without one nobody sends documents that are work.
func TestStrangers(t *testing.T) {
	t.Parallel()
	by := serversOf(t, graph.HandlerConfig{})
	ask, strange := by("biz_1"), by("")
	persisted := func(query, known string) string {
		hash := fmt.Sprintf("%x", sha256.Sum256([]byte(known)))
		b, _ := json.Marshal(map[string]any{"query": query, "extensions": map[string]any{"persistedQuery": map[string]any{"version": 1, "sha256Hash": hash}}})
		return string(b)
	}
	const known, answer = `{ __typename }`, `{"data":{"__typename":"Query"}}`
	if _, got := strange(persisted(known, known)); got != answer {
		t.Errorf("a probe got %s", got)
	}
	if _, got := ask(persisted("", known)); !strings.Contains(got, "PersistedQueryNotFound") {
		t.Errorf("what a stranger sent was kept: %s", got)
	}
	if _, got := ask(persisted(known, known)); got != answer {
		t.Errorf("a viewer got %s", got)
	}
	another := by("biz_2")
	for i := range 100 { // the cache has room for 41
		other := fmt.Sprintf("{ a%d: __typename } # %s", i, strings.Repeat("x", 100<<10))
		if _, got := another(persisted(other, other)); !strings.Contains(got, `{"data":{"a`) {
			t.Fatalf("another business got %.300s", got)
		}
	}
	if _, got := ask(persisted("", known)); got != answer {
		t.Errorf("another business pushed it out: %s", got)
	}
	for i := range 45 {
		other := fmt.Sprintf("{ a%d: __typename } # %s", i, strings.Repeat("y", 100<<10))
		if _, got := strange(persisted(other, other)); !strings.Contains(got, `"code":"UNAUTHENTICATED"`) {
			t.Fatalf("a stranger got %.300s", got)
		}
	}
	if _, got := ask(persisted("", known)); got != answer {
		t.Errorf("a stranger pushed it out: %s", got)
	}
	for name, query := range map[string]string{
		"a field":        `{"query":"{ feedCursor }"}`,
		"a long request": `{"query":"{` + strings.Repeat("a ", 9_000) + `}"}`,
	} {
		if _, got := strange(query); !strings.Contains(got, `"code":"UNAUTHENTICATED"`) {
			t.Errorf("%s: %.300s", name, got)
		}
	}
	for name, query := range map[string]string{"no syntax": `{"query":"{"}`, "no such field": `{"query":"{ nothing }"}`} {
		if _, got := strange(query); !strings.Contains(got, `"code":"BAD_USER_INPUT"`) {
			t.Errorf("%s: %.300s", name, got)
		}
	}
}

// TestIDsThatNoDatabaseHolds: U+0000 in an id is the caller's fault, in a literal and in a variable.
func TestIDsThatNoDatabaseHolds(t *testing.T) {
	t.Parallel()
	ask := server(t, graph.HandlerConfig{})
	for _, body := range []string{
		`{"query":"{ agent(id: \"a\\u0000\") { id } }"}`,
		`{"query":"query($id: ID!) { agent(id: $id) { id } }","variables":{"id":"a\u0000"}}`,
	} {
		if _, answer := ask(body); !strings.Contains(answer, `"loc":["id"],"msg":"Value error, U+0000 is not allowed"`) {
			t.Errorf("%s: %s", body, answer)
		}
	}
}
