package transport_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql/handler"

	"parley/e2e/servers"
	"parley/graph/transport"
)

// The JavaScript packages are the protocols' own references, so they are what decides.
const packages = `{"private":true,"type":"module","dependencies":{"graphql":"16.15.0","graphql-http":"1.23.1","graphql-sse":"2.6.1","graphql-ws":"6.4.2","ws":"8.23.0"}}`

// installed is a folder with those packages. Where Node is missing the test is skipped, but never in CI.
func installed(t *testing.T) string {
	t.Helper()
	servers.Need(t, "node")
	servers.Need(t, "npm")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "package.json"), packages)
	install := exec.CommandContext(t.Context(), "npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		servers.Missing(t, "npm install: %v: %s", err, out)
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReferenceClients(t *testing.T) {
	t.Parallel()
	dir := installed(t)
	t.Run("graphql-http audits", func(t *testing.T) { audits(t, dir) })
	t.Run("graphql-ws client", func(t *testing.T) { graphqlWS(t, dir) })
	t.Run("graphql-ws client and refusals", func(t *testing.T) { graphqlWSRefused(t, dir) })
	t.Run("graphql-ws client that is slow", func(t *testing.T) { graphqlWSSlow(t, dir) })
	t.Run("graphql-sse client", func(t *testing.T) { graphqlSSE(t, dir) })
}

func audits(t *testing.T, dir string) {
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: &transport.SSE{}})
	write(t, filepath.Join(dir, "audit.js"), `
		import { auditServer } from 'graphql-http';
		const results = await auditServer({ url: process.argv[2] });
		console.log(JSON.stringify(results.map(({ id, name, status, reason }) => ({ id, name, status, reason }))));
	`)
	run := exec.CommandContext(t.Context(), "node", "audit.js", w.URL+"/graphql")
	run.Dir = dir
	var stderr bytes.Buffer
	run.Stderr = &stderr
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var results []struct{ ID, Name, Status, Reason string }
	if err := json.Unmarshal(out, &results); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	passed := 0
	for _, r := range results {
		if r.Status == "ok" {
			passed++
		} else {
			t.Errorf("%s %s: %s: %s", r.Status, r.ID, r.Name, r.Reason)
		}
	}
	if len(results) != 61 {
		t.Errorf("%d audits, there were 61", len(results))
	}
	t.Logf("%d of %d audits pass", passed, len(results))
}

// graphqlWS follows the graphql-ws client through a subscription that outlives its server.
func graphqlWS(t *testing.T, dir string) {
	write(t, filepath.Join(dir, "client.js"), `
		import { createClient } from 'graphql-ws';
		import WebSocket from 'ws';
		const url = process.argv[2];
		const say = (...words) => console.log(words.join(' '));
		const client = (token, retryAttempts) => createClient({
			url, webSocketImpl: WebSocket, connectionParams: { token }, retryAttempts, retryWait: async () => {},
			on: { connected: () => say('connected'), closed: (e) => say('closed', e.code, e.reason) },
		});
		const subscribe = (client, query) => new Promise((done) => client.subscribe({ query }, {
			next: (value) => say('next', JSON.stringify(value)),
			error: (e) => { say('error', Array.isArray(e) ? e.map(({ message }) => message) : e.code); done(); },
			complete: () => { say('complete'); done(); },
		}));
		const good = client('good', 5);
		await subscribe(good, '{name}');
		await subscribe(good, 'subscription{feed}');
		await subscribe(good, 'subscription{feed}');
		await good.dispose();
		await subscribe(client('bad', 0), '{name}');
	`)
	// Two replicas behind one address.
	first := newWorld(t, &transport.WebSocket{Authenticate: authenticate}, transport.HTTP{})
	second := newWorld(t, &transport.WebSocket{Authenticate: authenticate}, transport.HTTP{})
	var current atomic.Pointer[handler.Server]
	current.Store(first.gql)
	balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { current.Load().ServeHTTP(w, r) }))
	defer balancer.Close()

	says, script := runs(t, dir, "client.js", "ws"+balancer.URL[len("http"):])

	says("connected", `next {"data":{"name":"test"}}`, "complete", "closed 1000 ")
	says("connected")
	feed := wait(t, "the feed", first.feeds)
	feed.items <- "a"
	says(`next {"data":{"feed":"a"}}`)

	// The first replica stops; the client comes back to the second by itself.
	current.Store(second.gql)
	if err := first.live.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	says("closed 1001 going away", "connected")
	feed = wait(t, "the feed", second.feeds)
	feed.items <- "b"
	says(`next {"data":{"feed":"b"}}`)
	feed.end()
	says("complete", "closed 1000 ")

	says("connected")
	feed = wait(t, "the feed", second.feeds)
	feed.endWith(errors.New("the cursor is too old"))
	says("error the cursor is too old", "closed 1000 ")

	says("closed 4403 Forbidden", "error 4403")
	if err := script.Wait(); err != nil {
		t.Error(err)
	}
}

// graphqlWSRefused shows which refusals the graphql-ws client takes as final: docs/live.md tells what to do about each.
func graphqlWSRefused(t *testing.T, dir string) {
	write(t, filepath.Join(dir, "refused.js"), `
		import { createClient } from 'graphql-ws';
		import WebSocket from 'ws';
		const url = process.argv[2];
		const say = (...words) => console.log(words.join(' '));
		const client = (name, token, options) => createClient({
			url, webSocketImpl: WebSocket, connectionParams: { token }, retryAttempts: Infinity, retryWait: async () => {}, ...options,
			on: { connected: () => say(name, 'connected'), ...options?.on },
		});
		const subscribe = (client, query) => new Promise((done) => client.subscribe({ query }, {
			next: (value) => say('next', JSON.stringify(value)), error: (e) => { say('error', e.code); done(); }, complete: done,
		}));
		const closed = (e) => say('closed', e.code, e.reason);
		await subscribe(client('', 'bad', { retryAttempts: 1, on: { closed } }), '{name}');
		await subscribe(client('', 'bad', { shouldRetry: (e) => e.code !== 4403, on: { closed } }), '{name}');

		let left;
		const slot = new Promise((resolve) => { left = resolve; });
		const first = client('first', 'good', { on: { closed: left } });
		first.subscribe({ query: 'subscription{feed}' }, { next: () => {}, error: () => {}, complete: () => {} });
		await new Promise((connected) => first.on('connected', connected));
		let refused = false;
		await subscribe(client('second', 'good', {
			retryWait: () => slot,
			on: { closed: (e) => {
				if (refused || e.code === 1000) return;
				refused = true;
				closed(e);
				first.dispose();
			} },
		}), '{name}');
	`)
	w := newWorld(t, &transport.WebSocket{
		Authenticate: authenticate, Quota: &transport.Quota{Sockets: 1, Subscriptions: 10, Of: func(context.Context) (string, string) { return "a", "one" }},
	}, transport.HTTP{})
	says, script := runs(t, dir, "refused.js", "ws"+w.URL[len("http"):])
	says("closed 4403 Forbidden", "closed 4403 Forbidden", "error 4403") // it tries again, by itself
	says("closed 4403 Forbidden", "error 4403")                          // and not so as docs/live.md has it
	says("first connected")
	says("closed 1013 this business has as many connections open as it may: close one first")
	says("second connected", `next {"data":{"name":"test"}}`)
	if err := script.Wait(); err != nil {
		t.Error(err)
	}
}

// graphqlWSSlow has the graphql-ws client stop reading until it is closed: it connects again, and misses nothing.
func graphqlWSSlow(t *testing.T, dir string) {
	write(t, filepath.Join(dir, "slow.js"), `
		import { createClient } from 'graphql-ws';
		import WebSocket from 'ws';
		const say = (...words) => console.log(words.join(' '));
		const count = 2000;
		let socket, last = 0;
		const client = createClient({
			url: process.argv[2], webSocketImpl: WebSocket, retryAttempts: Infinity, retryWait: async () => {},
			on: { opened: (s) => { socket = s; }, closed: (e) => say('closed', e.code, e.reason) },
		});
		process.stdin.once('data', () => socket.resume());
		const query = 'subscription($after: String) { numbers(after: $after) }';
		client.subscribe({ query, get variables() { return { after: 'c' + last }; } }, {
			next: ({ data }) => {
				if (data.numbers !== last + 1) say('after', last, 'came', data.numbers);
				last = data.numbers;
				if (last === 1) { socket.pause(); say('paused'); }
				if (last === count) { say('all'); process.exit(); }
			},
			error: (e) => say('error', e.code), complete: () => say('complete'),
		});
	`)
	w := newWorld(t, &transport.WebSocket{WriteTimeout: time.Second, QueueBytes: 64 << 10}, transport.HTTP{})
	w.log.pad = `,"pad":"` + strings.Repeat("x", 16<<10) + `"` // 32 MB in all: more than the kernels hold
	for range 2000 {
		w.log.add()
	}
	resume, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	says, script := runsWith(t, resume, dir, "slow.js", "ws"+w.URL[len("http"):])
	says("paused")
	if got := wait(t, "the close", w.closed); got != (closure{1013, "slow consumer"}) {
		t.Errorf("closed with %v", got)
	}
	if _, err := stdin.WriteString("go on\n"); err != nil {
		t.Error(err)
	}
	says("closed 1013 slow consumer", "all")
	_ = stdin.Close()
	if err := script.Wait(); err != nil {
		t.Error(err)
	}
	_ = resume.Close()
}

// graphqlSSE follows the graphql-sse client, in distinct connections mode, through a subscription that outlives its server.
func graphqlSSE(t *testing.T, dir string) {
	write(t, filepath.Join(dir, "sse.js"), `
		import { createClient } from 'graphql-sse';
		const say = (...words) => console.log(words.join(' '));
		let last;
		const client = createClient({
			url: process.argv[2], retry: async () => {}, headers: () => (last ? { 'Last-Event-ID': last } : {}),
			onMessage: ({ id }) => { if (id) last = id; },
		});
		const subscribe = (query) => new Promise((done) => client.subscribe({ query }, {
			next: (value) => { if (value.data?.numbers) last = 'c' + value.data.numbers; say('next', JSON.stringify(value)); },
			error: (e) => { say('error', e.message); done(); },
			complete: () => { say('complete'); done(); },
		}));
		await subscribe('{name}');
		await subscribe('mutation{name}');
		await subscribe('{nonsense}');
		await subscribe('subscription{feed}');
		await subscribe('subscription{numbers(after:"c1")}');
	`)
	first := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: &transport.SSE{}})
	events := &transport.SSE{}
	doomed := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: events})
	doomed.feeds, doomed.log = first.feeds, first.log
	var current atomic.Pointer[handler.Server]
	current.Store(doomed.gql)
	balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { current.Load().ServeHTTP(w, r) }))
	defer balancer.Close()
	for range 3 {
		first.log.add()
	}
	says, script := runs(t, dir, "sse.js", balancer.URL)
	says(`next {"data":{"name":"test"}}`, "complete")
	says(`next {"data":{"name":"test"}}`, "complete")
	says(`next {"errors":[{"message":"Cannot query field \"nonsense\" on type \"Query\".","locations":[{"line":1,"column":2}],"extensions":{"code":"GRAPHQL_VALIDATION_FAILED"}}]}`, "complete")
	feed := wait(t, "the feed", first.feeds)
	feed.items <- "a"
	says(`next {"data":{"feed":"a"}}`)
	feed.endWith(errors.New("the cursor is too old"))
	says(`next {"errors":[{"message":"the cursor is too old","extensions":{"code":"PRESENTED"}}]}`, "complete")
	says(`next {"data":{"numbers":2}}`, `next {"data":{"numbers":3}}`)
	// The replica stops; the client comes back to the other by itself, and goes on where it was.
	current.Store(first.gql)
	if err := events.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.log.add()
	says(`next {"data":{"numbers":4}}`)
	_ = script.Process.Kill() // its last subscription would go on for ever
	_ = script.Wait()
}

// runs starts a script, and returns what checks its lines and what waits for its end.
func runs(t *testing.T, dir, name, url string) (says func(...string), script *exec.Cmd) {
	t.Helper()
	return runsWith(t, nil, dir, name, url)
}

// runsWith gives the script an input.
func runsWith(t *testing.T, stdin *os.File, dir, name, url string) (says func(...string), script *exec.Cmd) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	run := exec.CommandContext(ctx, "node", name, url)
	run.Dir = dir
	run.Stderr = os.Stderr
	if stdin != nil {
		run.Stdin = stdin
	}
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	says = func(want ...string) {
		t.Helper()
		for _, w := range want {
			if !lines.Scan() {
				t.Fatalf("wanted %q, got the end", w)
			}
			if lines.Text() != w {
				t.Fatalf("wanted %q\ngot    %q", w, lines.Text())
			}
		}
	}
	return says, run
}
