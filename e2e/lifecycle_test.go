package e2e_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"parley/e2e/servers"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

func decode(r io.Reader, v any) error { return json.NewDecoder(r).Decode(v) }

// TestStartRefusals: what cannot start says why in one clear line, and ends with 2.
func TestStartRefusals(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = busy.Close() }) // after the parallel subtests
	secretKey := "PARLEY_SECRET_KEY=" + strings.Repeat("A", 43) + "="
	for name, c := range map[string]struct {
		env     []string
		args    []string
		files   map[string]string
		sockets bool // some are said to be handed over, as systemd does
		expect  string
	}{
		"busy port":        {env: []string{"PARLEY_ADDR=" + busy.Addr().String()}, expect: "address already in use"},
		"unknown flag":     {args: []string{"--nonsense"}, expect: "unknown flag"},
		"wrong duration":   {env: []string{"PARLEY_SESSION_TTL=soon"}, expect: "session-ttl"},
		"negative":         {env: []string{"PARLEY_DELIVERY_RETRIES=-1"}, expect: "PARLEY_DELIVERY_RETRIES"},
		"two at once":      {env: []string{"PARLEY_RATE_LIMIT=many", "PARLEY_TURN_TIMEOUT=0s"}, expect: "PARLEY_TURN_TIMEOUT must be more than 0; PARLEY_RATE_LIMIT"},
		"wrong database":   {env: []string{"PARLEY_DATABASE_URL=mysql://x"}, expect: "PARLEY_DATABASE_URL"},
		"no key":           {env: []string{"PARLEY_DATABASE_URL=postgres://127.0.0.1:1/x"}, expect: "PARLEY_SECRET_KEY is required"},
		"no PostgreSQL":    {env: []string{"PARLEY_DATABASE_URL=postgres://u:hidden@127.0.0.1:1/x", secretKey}, expect: "reach PostgreSQL at 127.0.0.1:1"},
		"wrong DSN":        {env: []string{"PARLEY_DATABASE_URL=postgres://u:hidden@[x/y", secretKey}, expect: "database URL does not parse"},
		"wrong sslmode":    {env: []string{"PARLEY_DATABASE_URL=postgres://u:hidden@h/x?sslmode=verify_full", secretKey}, expect: "sslmode is invalid"},
		"no root":          {env: []string{"PARLEY_DATABASE_URL=postgres://u:hidden@h/x?sslrootcert=missing.pem", secretKey}, expect: "missing.pem"},
		"no certificate":   {env: []string{"PARLEY_DATABASE_URL=postgres://u:hidden@h/x?sslmode=verify-full&sslcert=missing.pem&sslkey=missing.pem", secretKey}, expect: "missing.pem"},
		"no user":          {env: []string{"PARLEY_DATABASE_URL=postgres://:hidden@h/x", secretKey}, expect: "database URL does not parse"},
		"no duration":      {env: []string{"PARLEY_DATABASE_URL=postgres://u:hidden@h/x?connect_timeout=soon", secretKey}, expect: "connect_timeout"},
		"wrong secret key": {env: []string{"PARLEY_SECRET_KEY=short"}, expect: "PARLEY_SECRET_KEY must be 32 bytes"},
		"wrong old key":    {env: []string{secretKey, "PARLEY_SECRET_KEY_OLD=hidden"}, expect: "PARLEY_SECRET_KEY_OLD must be"},
		"an old key alone": {env: []string{"PARLEY_SECRET_KEY_OLD=" + strings.Repeat("A", 43) + "="}, expect: "PARLEY_SECRET_KEY_OLD needs PARLEY_SECRET_KEY"},
		"wrong proxy":      {env: []string{"PARLEY_EGRESS_PROXY=ftp://u:hidden@proxy"}, expect: "PARLEY_EGRESS_PROXY is not a URL"},
		"wrong redis":      {env: []string{"PARLEY_REDIS_URL=http://x"}, expect: "PARLEY_REDIS_URL"},
		"wrong prices":     {env: []string{`PARLEY_PRICES={"m": {"input": -1, "output": 1}}`}, expect: "PARLEY_PRICES must be JSON"},
		"no prices":        {env: []string{"PARLEY_PRICES=nowhere.json"}, expect: "nowhere.json"},
		"wrong hosts":      {env: []string{"PARLEY_PRIVATE_HOSTS=localhost:x,10.0.0.0/99"}, expect: "PARLEY_PRIVATE_HOSTS"},
		"wrong API key":    {env: []string{"PARLEY_BOOTSTRAP_API_KEY=key"}, expect: "must begin with sk_"},
		"empty API key":    {env: []string{"PARLEY_BOOTSTRAP_API_KEY=sk_"}, expect: "PARLEY_BOOTSTRAP_API_KEY must begin with sk_"},
		"short API key":    {env: []string{"PARLEY_BOOTSTRAP_API_KEY=sk_4567890abcde"}, expect: "16 characters in all at least"},
		"short token":      {env: []string{"PARLEY_BOOTSTRAP_TOKEN=at_x"}, expect: "PARLEY_BOOTSTRAP_TOKEN must begin with at_"},
		"quoted API key":   {env: []string{"PARLEY_BOOTSTRAP_API_KEY=sk_a'b0123456789abc"}, expect: "PARLEY_BOOTSTRAP_API_KEY must begin with sk_"},
		"token in two":     {env: []string{"PARLEY_BOOTSTRAP_TOKEN=at_a b0123456789abc"}, expect: "PARLEY_BOOTSTRAP_TOKEN must begin with at_"},
		"token over lines": {env: []string{"PARLEY_BOOTSTRAP_TOKEN=at_a\nb0123456789abc"}, expect: "PARLEY_BOOTSTRAP_TOKEN must begin with at_"},
		"token of umlauts": {env: []string{"PARLEY_BOOTSTRAP_TOKEN=at_ä0123456789abc"}, expect: "PARLEY_BOOTSTRAP_TOKEN must begin with at_"},
		"escaped token":    {env: []string{`PARLEY_BOOTSTRAP_TOKEN=at_\x0123456789abc`}, expect: "PARLEY_BOOTSTRAP_TOKEN must begin with at_"},
		"long token":       {env: []string{"PARLEY_BOOTSTRAP_TOKEN=at_" + strings.Repeat("x", 198)}, expect: "200 at most"},
		"misspelt":         {env: []string{"PARLEY_ADR=x"}, expect: "PARLEY_ADR is no setting, PARLEY_ADDR is"},
		"all misspelt":     {env: []string{"PARLEY_SECRETKEY=hidden", "PARLEY_RETENTON=1h"}, expect: "PARLEY_RETENTON is no setting, PARLEY_RETENTION is; PARLEY_SECRETKEY is no setting, PARLEY_SECRET_KEY is: --help"},
		"misspelt, wrong":  {env: []string{"PARLEY_RETENTON=1h", "PARLEY_TURN_TIMEOUT=0s"}, expect: "PARLEY_TURN_TIMEOUT must be more than 0; PARLEY_RETENTON is no setting"},
		"misspelt command": {args: []string{"token", "create"}, env: []string{"PARLEY_DATABASEURL=x"}, expect: "PARLEY_DATABASE_URL is"},
		"several sockets":  {env: []string{"LISTEN_FDS=2"}, sockets: true, expect: "LISTEN_FDS is 2"},
		"no socket":        {env: []string{"LISTEN_FDS=1"}, sockets: true, expect: "take the socket of LISTEN_FDS"},
		"unreadable key":   {files: map[string]string{"parley.db.key/in": "the way"}, expect: "read the secret key file"},
		"damaged key":      {files: map[string]string{"parley.db.key": "hidden"}, expect: "the secret key file parley.db.key"},
		"wrong metrics":    {env: []string{"PARLEY_METRICS_ADDR=9090"}, expect: "PARLEY_METRICS_ADDR must be host:port"},
		"busy metrics":     {env: []string{"PARLEY_METRICS_ADDR=" + busy.Addr().String()}, expect: "for /metrics: listen tcp"},
		"wrong delay":      {env: []string{"PARLEY_DRAIN_DELAY=-1s"}, expect: "PARLEY_DRAIN_DELAY must not be negative"},
		"wrong format":     {env: []string{"PARLEY_LOG_FORMAT=xml"}, expect: "log-format"},
		"wrong level":      {env: []string{"PARLEY_LOG_LEVEL=loud"}, expect: "log-level"},
		"no folder":        {env: []string{"PARLEY_DATABASE_URL=file:nowhere/parley.db"}, expect: "nowhere"},
		"a folder":         {env: []string{"PARLEY_DATABASE_URL=file:."}, expect: "database"},
		"not a database":   {files: map[string]string{"parley.db": strings.Repeat("this is no database", 999)}, expect: "not a database"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range c.files {
				if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700), os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, binary, c.args...)
			if c.sockets {
				cmd = exec.CommandContext(ctx, "sh", "-c", `LISTEN_PID=$$ exec "$0" 3</dev/null`, binary)
			}
			cmd.Dir, cmd.Env = dir, append(append(clean(), "PARLEY_ADDR=127.0.0.1:0"), c.env...)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			_ = cmd.Run()
			if cmd.ProcessState.ExitCode() != 2 || out.Len() > 0 {
				t.Errorf("ended with %d and printed %q", cmd.ProcessState.ExitCode(), &out)
			}
			if line := errs.String(); strings.Count(line, "\n") != 1 || !strings.Contains(line, c.expect) || !strings.HasPrefix(line, "parley: ") || strings.Contains(line, "hidden") {
				t.Errorf("%q is not one line with %q", line, c.expect)
			}
		})
	}
}

func TestHelpShowsEverySetting(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(binary, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for setting, value := range map[string]string{
		"PARLEY_ADDR": "127.0.0.1:8080", "PARLEY_DATABASE_URL": "file:parley.db", "PARLEY_REDIS_URL": "", "PARLEY_BOOTSTRAP_API_KEY": "",
		"PARLEY_BOOTSTRAP_TOKEN": "", "PARLEY_ALLOW_PRIVATE_WEBHOOKS": "false", "PARLEY_SESSION_TTL": "24h", "PARLEY_DELIVERY_TIMEOUT": "10s",
		"PARLEY_DELIVERY_RETRIES": "2", "PARLEY_DELIVERY_BACKOFF": "5s", "PARLEY_ENDPOINT_GRACE": "72h", "PARLEY_SECRET_KEY": "", "PARLEY_SECRET_KEY_OLD": "", "PARLEY_TURN_TIMEOUT": "60s",
		"PARLEY_DRAIN_DELAY": "3s", "PARLEY_METRICS_ADDR": "", "PARLEY_LOG_FORMAT": "text", "PARLEY_LOG_LEVEL": "info",
		"PARLEY_RATE_LIMIT": "", "PARLEY_PRICES": "", "PARLEY_RETENTION": "720h", "PARLEY_PRIVATE_HOSTS": "", "PARLEY_EGRESS_PROXY": "", "OPENAI_API_KEY": "", "OPENAI_BASE_URL": "",
		"ANTHROPIC_API_KEY": "", "PARLEY_EMBEDDED_MODEL_LATENCY": "0s", "PARLEY_INTROSPECTION": "all", "PARLEY_GRAPHQL_MAX_TOKENS": "10000",
		"PARLEY_GRAPHQL_MAX_DEPTH": "15", "PARLEY_GRAPHQL_MAX_ALIASES": "100", "PARLEY_GRAPHQL_MAX_ROOT_FIELDS": "20", "PARLEY_GRAPHQL_MAX_COST": "20000",
	} {
		if !bytes.Contains(out, []byte("$"+setting)) || !bytes.Contains(out, []byte(value)) {
			t.Errorf("--help lacks %s or its default %q", setting, value)
		}
	}
}

// TestWarningWithoutRedis: on PostgreSQL there may be other replicas, whose deliveries do not show
// without Redis. One line says so.
func TestWarningWithoutRedis(t *testing.T) {
	t.Parallel()
	database, redis := "PARLEY_DATABASE_URL="+servers.Database(t), "PARLEY_REDIS_URL=redis://"+servers.Redis(t).Addr
	key := "PARLEY_SECRET_KEY=" + base64.StdEncoding.EncodeToString(make([]byte, 32))
	for name, c := range map[string]struct {
		env   []string
		lines int
	}{
		"PostgreSQL":           {[]string{database, key}, 1},
		"PostgreSQL and Redis": {[]string{database, key, redis}, 0},
		"SQLite":               {nil, 0},
	} {
		s := start(t, c.env...)
		if lines := strings.Count(s.log(), "PARLEY_REDIS_URL is not set"); lines != c.lines {
			t.Errorf("%s: it is said in %d lines, want %d", name, lines, c.lines)
		}
	}
}

// TestStopWaitsForTurns stops the server while an agent thinks: the turn ends, its caller is answered, and nothing new begins.
func TestStopWaitsForTurns(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_EMBEDDED_MODEL_LATENCY=1s")
	live := s.subscribe(token, eventsLive, nil)
	answered := make(chan string, 1)
	go func() {
		status, _, raw, err := s.try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey), `{"message":"Hello","channel":"sms"}`)
		answered <- fmt.Sprint(status, err, strings.Contains(string(raw), `"reply"`))
	}()
	live.wait()
	if code := s.stop(); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, s.log())
	}
	if got := <-answered; got != "200 <nil> true" {
		t.Errorf("the caller got %s", got)
	}
}

// TestStopTellsEveryone stops the server while an agent thinks for a caller on a WebSocket: until the turn ends nobody else
// is sent here, new turns are told why not, the caller gets its answer, and then every socket is closed as going away.
func TestStopTellsEveryone(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_EMBEDDED_MODEL_LATENCY=2s")
	live := s.subscribe(token, eventsLive, nil)
	turn := s.subscribe(token, `mutation { chat(input: {agentId: "demo", message: "Hello", channel: SMS}) { reply } }`, nil)
	live.wait() // it has begun
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "draining", func() bool {
		status, _, _ := s.call("GET", "/readyz", nil, "")
		return status == http.StatusServiceUnavailable
	})
	status, _, answer := s.call("POST", "/agents/demo/chat", withKey(apiKey), `{"message":"Hello","channel":"sms"}`)
	if status != http.StatusServiceUnavailable || at(answer, "code") != "shutting_down" {
		t.Errorf("a new turn: %d %v", status, answer)
	}
	if code, reason := s.refused(withKey(apiKey), `mutation { chat(input: {agentId: "demo", message: "Hello", channel: SMS}) { reply } }`, nil); code != "UNAVAILABLE" || reason != "shutting_down" {
		t.Errorf("a new turn by GraphQL: %v %v", code, reason)
	}
	if reply := at(turn.wait(), "chat", "reply"); reply == nil {
		t.Error("the turn has no reply")
	}
	if why := <-live.end; !strings.Contains(why, "1001") {
		t.Errorf("the subscriber was closed with %s", why)
	}
	if code := s.wait(); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, s.log())
	}
}

// TestStopInterruptsLongTurns stops the server while an agent thinks for longer than a stop may take: its caller gets 503,
// its run ends as failed, and the process has ended within 15 s.
func TestStopInterruptsLongTurns(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_EMBEDDED_MODEL_LATENCY=10m", "PARLEY_TURN_TIMEOUT=10m")
	live := s.subscribe(token, eventsLive, nil)
	answered := make(chan string, 1)
	go func() {
		status, _, raw, err := s.try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey), `{"message":"Hello","channel":"sms"}`)
		answered <- fmt.Sprint(status, err, string(raw))
	}()
	cursor := at(live.wait(), "events", "cursor")
	if code := s.stop(); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, s.log())
	}
	if got := <-answered; !strings.HasPrefix(got, "503 <nil>") || !strings.Contains(got, "shutting_down") {
		t.Errorf("the caller got %s", got)
	}
	s.up()
	again := s.subscribe(token, eventsLive, object{"after": cursor})
	if node := at(again.wait(), "events", "node"); at(node, "type") != "RUN_FAILED" || at(node, "data", "error_class") != "interrupted" {
		t.Errorf("after the stop: %v", node)
	}
}

// TestCrash kills the server while an agent thinks and a receiver is down: after the next start the run ends as failed, the
// session can go on, and every event reaches the receiver.
func TestCrash(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_EMBEDDED_MODEL_LATENCY=500ms")
	arrived := make(chan string, 100)
	down := make(chan struct{})
	r := receive(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-down:
		case <-r.Context().Done():
			return
		}
		arrived <- r.Header.Get("Webhook-Id")
	})
	t.Cleanup(r.CloseClientConnections)
	s.register(r.URL, everything...)
	live := s.subscribe(token, eventsLive, nil)
	session := s.chat("Hello", "")["session_id"].(string)
	for range 3 {
		live.wait()
	}
	go func() {
		_, _, _, _ = s.try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey),
			encode(object{"message": "Lost?", "channel": "whatsapp", "session_id": session}))
	}()
	live.wait() // the message is stored
	s.kill()
	close(down)
	s.up()
	s.chat("Again", session)
	got := map[string]bool{}
	for len(got) < 8 { // two of Hello's turn and its run, Lost? and its failed run, and three of Again's turn
		select {
		case id := <-arrived:
			got[id] = true
		case <-time.After(patience):
			t.Fatalf("%d of 8 events arrived", len(got))
		}
	}
	all := at(s.query(token, `{ events(first: 100) { nodes { id type sequence data } } }`, nil), "events", "nodes").([]any)
	if len(all) != 8 || at(all[4], "type") != "RUN_FAILED" || at(all[4], "data", "error_class") != "interrupted" {
		t.Errorf("%d events: %v", len(all), all)
	}
	for _, e := range all {
		if !got[at(e, "id").(string)] {
			t.Errorf("%v did not arrive", at(e, "type"))
		}
	}
}

// TestWebSocketDoors: who may open a socket, and with which code it is closed otherwise.
func TestWebSocketDoors(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, c := range map[string]struct {
		send []object
		code int
	}{
		"a bad token":      {[]object{{"type": "connection_init", "payload": object{"Authorization": "Bearer at_wrong"}}}, 4403},
		"no token":         {[]object{{"type": "connection_init"}}, 4403},
		"too early":        {[]object{{"type": "subscribe", "id": "1", "payload": object{"query": "{feedCursor}"}}}, 4401},
		"twice":            {[]object{{"type": "connection_init", "payload": object{"Authorization": "Bearer " + token}}, {"type": "connection_init"}}, 4429},
		"an unknown thing": {[]object{{"type": "hello"}}, 4400},
	} {
		dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
		conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(s.url(), "http")+"/graphql", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range c.send {
			if err := conn.WriteJSON(m); err != nil {
				t.Fatal(err)
			}
		}
		for err == nil {
			_, _, err = conn.ReadMessage()
		}
		if !websocket.IsCloseError(err, c.code) {
			t.Errorf("%s: %v, want %d", name, err, c.code)
		}
		_ = conn.Close()
	}
}

// TestGraphQLRefusals: scopes, and what an API key may.
func TestGraphQLRefusals(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, c := range map[string]struct {
		header http.Header
		query  string
		code   string
	}{
		"no credential":       {http.Header{"Content-Type": {"application/json"}}, `{ viewer { scope } }`, "UNAUTHENTICATED"},
		"a bad one":           {withToken("at_wrong"), `{ viewer { scope } }`, "UNAUTHENTICATED"},
		"a key reads":         {withKey(apiKey), `{ viewer { scope } }`, "FORBIDDEN"},
		"a key administers":   {withKey(apiKey), `mutation { createAgent(input: {name: "x"}) { id } }`, "FORBIDDEN"},
		"a syntax error":      {withToken(token), `{ viewer `, "BAD_USER_INPUT"},
		"an unknown field":    {withToken(token), `{ nothing }`, "BAD_USER_INPUT"},
		"a page too long":     {withToken(token), `{ agents(first: 101) { nodes { id } } }`, "BAD_USER_INPUT"},
		"a garbled cursor":    {withToken(token), `{ agents(after: "?") { nodes { id } } }`, "BAD_USER_INPUT"},
		"an empty message":    {withKey(apiKey), `mutation { chat(input: {agentId: "demo", message: " ", channel: SMS}) { reply } }`, "BAD_USER_INPUT"},
		"an unknown agent":    {withKey(apiKey), `mutation { chat(input: {agentId: "x", message: "Hi", channel: SMS}) { reply } }`, "NOT_FOUND"},
		"an empty session":    {withKey(apiKey), `mutation { chat(input: {agentId: "demo", message: "Hi", channel: SMS, sessionId: ""}) { reply } }`, "NOT_FOUND"},
		"no events":           {withToken(token), `mutation { createWebhookEndpoint(input: {url: "https://example.com", events: []}) { secret } }`, "BAD_USER_INPUT"},
		"an agent's faults":   {withToken(token), `mutation { createAgent(input: {name: "", webhookUrl: "ftp://x", model: {provider: OPENAI, baseUrl: "http://10.0.0.1", temperature: 9}}) { id } }`, "BAD_USER_INPUT"},
		"50,000 aliases":      {withToken(token), "{" + strings.Repeat("a:__typename ", 50_000) + "}", "TOO_COMPLEX"},
		"1,000 aliases":       {withToken(token), "{" + aliases(1000, "viewer { scope }") + "}", "TOO_COMPLEX"},
		"21 root fields":      {withToken(token), "{" + aliases(21, "feedCursor") + "}", "TOO_COMPLEX"},
		"lists in lists":      {withToken(token), nested(2), "TOO_COMPLEX"},
		"a deep document":     {withToken(token), nested(8), "TOO_COMPLEX"},
		"doubling fragments":  {withToken(token), doubling(30), "TOO_COMPLEX"},
		"schema in schema":    {withToken(token), "{__schema{types{fields{type{fields{type{fields{type{fields{name}}}}}}}}}}", "TOO_COMPLEX"},
		"introspection by it": {http.Header{"Content-Type": {"application/json"}}, `{ __schema { types { name } } }`, "UNAUTHENTICATED"},
	} {
		code, reason := s.refused(c.header, c.query, nil)
		if code != c.code || name == "an empty session" && reason != "session_not_found" {
			t.Errorf("%s: %v, %v, want %s", name, code, reason, c.code)
		}
	}
	answer := s.graphql(withToken(token), `mutation { createAgent(input: {name: "", webhookUrl: "ftp://x", model: {provider: OPENAI, baseUrl: "http://10.0.0.1", temperature: 9}}) { id } }`, nil)
	if faults := at(answer, "errors", 0, "extensions", "validation").([]any); len(faults) < 4 {
		t.Errorf("not every fault is named: %v", faults)
	}
	if chat := s.graphql(withKey(apiKey), `mutation { chat(input: {agentId: "demo", message: "Hello", channel: SMS}) { reply } }`, nil); at(chat, "data", "chat", "reply") == nil {
		t.Errorf("a key cannot chat: %v", chat)
	}
	if schema := s.query(token, `{ __schema { queryType { name } } }`, nil); at(schema, "__schema", "queryType", "name") != "Query" {
		t.Errorf("ADMIN sees no schema: %v", schema)
	}
}

// TestSchema: every credential may see the schema, by introspection and as a file, unless the
// operator says otherwise.
func TestSchema(t *testing.T) {
	t.Parallel()
	sdl, err := os.ReadFile("../schema.graphqls")
	if err != nil {
		t.Fatal(err)
	}
	stranger := http.Header{"Content-Type": {"application/json"}}
	for setting, may := range map[string]struct{ admin, key bool }{"": {true, true}, "PARLEY_INTROSPECTION=admin": {true, false}, "PARLEY_INTROSPECTION=off": {false, false}} {
		s := start(t, strings.Fields(setting)...)
		for _, c := range []struct {
			who    string
			header http.Header
			sees   bool
			code   string
			status int
		}{
			{"an ADMIN token", withToken(token), may.admin, "FORBIDDEN", 403},
			{"a key", withKey(apiKey), may.key, "FORBIDDEN", 403},
			{"nobody", stranger, false, "UNAUTHENTICATED", 401},
			{"a bad token", withToken("at_wrong"), false, "UNAUTHENTICATED", 401},
		} {
			status, header, file, err := s.try(t.Context(), "GET", "/schema.graphqls", c.header, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, query := range []string{`{ __schema { queryType { name } } }`, `{ __type(name: "Query") { name } }`} {
				answer := s.graphql(c.header, query, nil)
				seen := at(answer, "data", "__schema", "queryType", "name") == "Query" || at(answer, "data", "__type", "name") == "Query"
				if code := at(answer, "errors", 0, "extensions", "code"); seen != c.sees || !seen && code != c.code {
					t.Errorf("%s %s: %v", setting, c.who, answer)
				}
			}
			switch {
			case !c.sees && status == c.status:
			case c.sees && status == http.StatusOK && strings.TrimSpace(string(file)) == strings.TrimSpace(string(sdl)) && header.Get("Content-Type") == "text/plain; charset=utf-8":
			default:
				t.Errorf("%s %s: %d %v %.200s", setting, c.who, status, header, file)
			}
		}
	}
}

// aliases is one field so many times.
func aliases(n int, field string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "a%d: %s\n", i, field)
	}
	return b.String()
}

// nested asks for the deliveries of the endpoints of deliveries, and so on.
func nested(levels int) string {
	inner := "id"
	for range levels {
		inner = "endpoint { deliveries(first: 100) { nodes { " + inner + " } } }"
	}
	return "{ deliveries(first: 100) { nodes { " + inner + " } } }"
}

// doubling is a document of fragments, each spread twice in the one before.
func doubling(n int) string {
	var b strings.Builder
	b.WriteString("{ viewer { ...f0 } }\n")
	for i := range n {
		fmt.Fprintf(&b, "fragment f%d on Viewer { ...f%d ...f%d }\n", i, i+1, i+1)
	}
	fmt.Fprintf(&b, "fragment f%d on Viewer { scope }", n)
	return b.String()
}

// TestPageOfADashboard: what the widest page of a dashboard asks for at once is not too complex.
func TestPageOfADashboard(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.query(token, `query($n: Int!) {
		viewer { business { id name } scope }
		webhookEndpoints { id url events status disabledReason deliveries(first: 10, status: FAILED) { nodes { id createdAt event { id type } } } }
		deliveries(first: $n) { edges { cursor node { id status createdAt nextAttemptAt endpoint { id url }
			event { id type channel direction timestamp data } attempts { number trigger startedAt durationMs statusCode error responseBody } } }
			pageInfo { hasNextPage endCursor } }
	}`, object{"n": 100})
}

// TestInternalErrors takes a table away under the server: callers learn that something went wrong, and the log what it was.
func TestInternalErrors(t *testing.T) {
	t.Parallel()
	s := start(t)
	db, err := sql.Open("sqlite", filepath.Join(s.dir, "parley.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Exec("PRAGMA busy_timeout = 30000; ALTER TABLE endpoints RENAME TO gone"); err != nil {
		t.Fatal(err)
	}
	const cause = "no such table"
	status, _, answer := s.call("GET", "/v1/webhooks", withToken(token), "")
	if status != http.StatusInternalServerError || at(answer, "code") != "internal" || strings.Contains(encode(answer), cause) {
		t.Errorf("REST: %d %v", status, answer)
	}
	for _, query := range []string{`{ webhookEndpoints { id } }`, `{ agents { nodes { webhookEndpoint { id } } } }`} {
		answer := s.graphql(withToken(token), query, nil)
		if at(answer, "errors", 0, "extensions", "code") != "INTERNAL" || strings.Contains(encode(answer), cause) {
			t.Errorf("%s: %v", query, answer)
		}
	}
	told := 0
	for line := range strings.Lines(s.log()) {
		if strings.Contains(line, "level=ERROR") && strings.Contains(line, cause) {
			told++
		}
	}
	if told != 3 {
		t.Errorf("the log tells %d of 3 causes:\n%s", told, s.log())
	}
}
