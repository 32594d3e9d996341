package e2e_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// TestKeysAndTokens has two businesses manage their keys and tokens: what each may, who sees which, and what a revocation ends.
func TestKeysAndTokens(t *testing.T) {
	t.Parallel()
	s := start(t)
	_, otherToken := s.createBusiness("Other & Sons")
	const (
		newKey   = `mutation($n: String!) { createApiKey(name: $n) { apiKey { id name prefix createdAt lastUsedAt revokedAt } secret } }`
		newToken = `mutation($n: String!, $s: Scope!) { createAccessToken(name: $n, scope: $s) { accessToken { id name scope prefix createdAt lastUsedAt revokedAt } secret } }`
		lists    = `{ apiKeys { id name prefix createdAt lastUsedAt revokedAt } accessTokens { id name scope prefix createdAt lastUsedAt revokedAt } }`
		end      = `mutation($id: ID!) { revokeAccessToken(id: $id) { revokedAt } }`
		endKey   = `mutation($id: ID!) { revokeApiKey(id: $id) { revokedAt } }`
		fine     = `{"message":"Hi","channel":"sms"}`
	)
	made := at(s.query(token, newKey, object{"n": "till"}), "createApiKey")
	key, keyID := at(made, "secret").(string), at(made, "apiKey", "id")
	if !strings.HasPrefix(key, "sk_") || at(made, "apiKey", "prefix") != key[:8] || at(made, "apiKey", "lastUsedAt") != nil {
		t.Errorf("a key: %v", made)
	}
	tokens := map[string]string{}
	ids := map[string]any{}
	for _, scope := range []string{"READ", "OPERATE", "ADMIN"} {
		made := at(s.query(token, newToken, object{"n": scope, "s": scope}), "createAccessToken")
		tokens[scope], ids[scope] = at(made, "secret").(string), at(made, "accessToken", "id")
		if at(made, "accessToken", "scope") != scope || at(made, "accessToken", "prefix") != tokens[scope][:8] {
			t.Errorf("a token: %v", made)
		}
	}
	if status, _, answer := s.call("POST", "/agents/demo/chat", withKey(key), fine); status != http.StatusOK {
		t.Errorf("chat with the new key: %d %v", status, answer)
	}
	for scope, may := range map[string]struct{ read, chat bool }{"READ": {true, false}, "OPERATE": {true, true}, "ADMIN": {true, true}} {
		if code, _ := s.refused(withToken(tokens[scope]), `{ viewer { scope } runs { nodes { id } } }`, nil); (code == nil) != may.read {
			t.Errorf("%s reads: %v", scope, code)
		}
		if status, _, _ := s.call("POST", "/agents/demo/chat", withToken(tokens[scope]), fine); (status == http.StatusOK) != may.chat {
			t.Errorf("%s chats: %d", scope, status)
		}
	}
	for name, header := range map[string]http.Header{"READ": withToken(tokens["READ"]), "OPERATE": withToken(tokens["OPERATE"]), "a key": withKey(key)} {
		for _, op := range []struct {
			query     string
			variables object
		}{
			{`{ apiKeys { id } }`, nil},
			{`{ accessTokens { id } }`, nil},
			{newKey, object{"n": "x"}},
			{newToken, object{"n": "x", "s": "READ"}},
			{endKey, object{"id": keyID}},
			{end, object{"id": ids["READ"]}},
		} {
			if code, _ := s.refused(header, op.query, op.variables); code != "FORBIDDEN" {
				t.Errorf("%s, %.40s: %v", name, op.query, code)
			}
		}
	}

	list := s.query(tokens["ADMIN"], lists, nil)
	if keys := at(list, "apiKeys").([]any); len(keys) != 2 || at(keys, 0, "name") != "till" || at(keys, 0, "lastUsedAt") == nil || at(keys, 0, "prefix") != key[:8] {
		t.Errorf("the keys: %v", keys)
	}
	if tokens := at(list, "accessTokens").([]any); len(tokens) != 4 || at(tokens, 0, "name") != "ADMIN" || at(tokens, 3, "prefix") != token[:8] {
		t.Errorf("the tokens: %v", tokens)
	}
	theirs := s.query(otherToken, lists, nil)
	if len(at(theirs, "apiKeys").([]any)) != 1 || len(at(theirs, "accessTokens").([]any)) != 1 {
		t.Errorf("the other business sees %v", theirs)
	}
	for query, id := range map[string]any{endKey: keyID, end: ids["READ"]} {
		if code, _ := s.refused(withToken(otherToken), query, object{"id": id}); code != "NOT_FOUND" {
			t.Errorf("the other business revokes: %v", code)
		}
	}
	if code, reason := s.refused(withToken(otherToken), end, object{"id": at(theirs, "accessTokens", 0, "id")}); code != "CONFLICT" || reason != "last_admin_token" {
		t.Errorf("its last ADMIN token: %v %v", code, reason)
	}
	answer := s.graphql(withToken(token), newKey, object{"n": ""})
	if fault := at(answer, "errors", 0, "extensions", "validation", 0); at(fault, "type") != "string_too_short" || at(fault, "loc", 0) != "name" {
		t.Errorf("a key without a name: %v", answer)
	}

	live := s.subscribe(tokens["READ"], eventsLive, nil)
	if at(s.query(token, end, object{"id": ids["READ"]}), "revokeAccessToken", "revokedAt") == nil {
		t.Error("revoked, but not since when")
	}
	if code, _ := s.refused(withToken(tokens["READ"]), `{ viewer { scope } }`, nil); code != "UNAUTHENTICATED" {
		t.Errorf("a revoked token: %v", code)
	}
	select {
	case why := <-live.end:
		if !strings.Contains(why, "4403") && !strings.Contains(why, "4401") {
			t.Errorf("its socket was closed with %s", why)
		}
	case <-time.After(patience):
		t.Error("its socket stays open")
	}
	s.query(token, endKey, object{"id": keyID})
	if status, _, answer := s.call("POST", "/agents/demo/chat", withKey(key), fine); status != http.StatusUnauthorized {
		t.Errorf("a revoked key: %d %v", status, answer)
	}
	if conn := s.dial(tokens["READ"]); true {
		if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, 4403) {
			t.Errorf("a socket with a revoked token: %v", err)
		}
	}
	// An ADMIN token may revoke itself while there is another one.
	s.query(tokens["ADMIN"], end, object{"id": ids["ADMIN"]})
	if code, _ := s.refused(withToken(tokens["ADMIN"]), `{ viewer { scope } }`, nil); code != "UNAUTHENTICATED" {
		t.Errorf("it revoked itself: %v", code)
	}
	for _, secret := range append([]string{key}, tokens["READ"], tokens["ADMIN"]) {
		if strings.Contains(s.log(), secret) {
			t.Errorf("the log shows a secret:\n%s", s.log())
		}
	}
}

// TestRunsAndUsage: a chat is a run with its reply, and counts as language-model usage at the operator's prices.
func TestRunsAndUsage(t *testing.T) {
	t.Parallel()
	s := start(t, `PARLEY_PRICES={"embedded/extractive-1": {"input": 1, "output": 2}}`)
	_, otherToken := s.createBusiness("Other & Sons")
	from := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339Nano)
	first := s.chat("When are you open on Saturday?", "")
	second := s.chat("And on Sunday?", first["session_id"].(string))
	const query = `query($from: Time!, $to: Time!, $id: ID!) {
		runs(agentId: "demo", status: FINISHED) { nodes { id agentId sessionId conversationId status model startedAt finishedAt errorClass
			usage { inputTokens outputTokens totalTokens source } reply { id text author direction sequence sessionId createdAt } } pageInfo { hasNextPage } }
		run(id: $id) { id reply { id } }
		usage(from: $from, to: $to) { llm { model runs inputTokens outputTokens totalTokens cost } channelMessages { channel direction count } }
	}`
	in := object{"from": from, "to": time.Now().Add(time.Minute).UTC().Format(time.RFC3339Nano), "id": first["run_id"]}
	got := s.query(token, query, in)
	runs := at(got, "runs", "nodes").([]any)
	if len(runs) != 2 || at(runs, 0, "id") != second["run_id"] || at(runs, 1, "reply", "text") != first["reply"] || at(runs, 1, "reply", "id") != first["message_id"] ||
		at(runs, 0, "sessionId") != first["session_id"] || at(runs, 0, "usage", "source") != "none" || at(runs, 0, "finishedAt") == nil || at(runs, 0, "reply", "author") != "AGENT" {
		t.Errorf("runs: %v", runs)
	}
	if at(got, "run", "reply", "id") != first["message_id"] {
		t.Errorf("run: %v", at(got, "run"))
	}
	if llm := at(got, "usage", "llm").([]any); len(llm) != 1 || at(llm, 0, "runs") != 2.0 || at(llm, 0, "cost") != 0.0 || at(llm, 0, "model") != first["model"] {
		t.Errorf("usage: %v", llm)
	}
	if messages := at(got, "usage", "channelMessages").([]any); len(messages) != 0 {
		t.Errorf("a chat counts as channel messages: %v", messages)
	}
	theirs := s.query(otherToken, query, in)
	if at(theirs, "run") != nil || len(at(theirs, "runs", "nodes").([]any)) != 0 || len(at(theirs, "usage", "llm").([]any)) != 0 {
		t.Errorf("the other business sees %v", theirs)
	}
	in["to"] = from
	if code, _ := s.refused(withToken(token), query, in); code != "BAD_USER_INPUT" {
		t.Errorf("a span of nothing: %v", code)
	}
}
