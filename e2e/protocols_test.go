package e2e_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"parley/e2e/servers"
)

// TestReferenceClients holds the real binary against the protocols' own JavaScript packages; graph/transport tests more of each
// protocol, without a server around it.
func TestReferenceClients(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	servers.Need(t, "node")
	write("package.json", `{"private":true,"type":"module","dependencies":{"graphql":"16.15.0","graphql-http":"1.23.1","graphql-sse":"2.6.1","graphql-ws":"6.4.2","ws":"8.23.0"}}`)
	install := exec.CommandContext(t.Context(), servers.Need(t, "npm"), "install", "--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}

	t.Run("graphql-http audits", func(t *testing.T) {
		write("audit.js", `
			import { auditServer } from 'graphql-http';
			const [url, token] = process.argv.slice(2);
			const fetchFn = (url, init) => fetch(url, { ...init, headers: { ...init?.headers, Authorization: 'Bearer ' + token } });
			const results = await auditServer({ url, fetchFn });
			for (const { id, name, status, reason } of results) if (status !== 'ok') console.log(status, id, name, reason);
			console.log(results.length);
		`)
		run := exec.CommandContext(t.Context(), "node", "audit.js", start(t).url()+"/graphql", token)
		run.Dir = dir
		if out, err := run.CombinedOutput(); err != nil || string(out) != "61\n" {
			t.Errorf("of 61 audits not all pass without a warning: %v\n%s", err, out)
		}
	})

	const clients = `
		import WebSocket from 'ws';
		import * as ws from 'graphql-ws';
		import * as sse from 'graphql-sse';
		const [url, token, kind] = process.argv.slice(2);
		const headers = { Authorization: 'Bearer ' + token };
		const say = (...words) => console.log(words.join(' '));
		let after = null; // the cursor of what came last
		const client = kind === 'ws'
			? ws.createClient({
				url: url.replace('http', 'ws'), webSocketImpl: WebSocket, connectionParams: headers, retryAttempts: 1000, shouldRetry: () => true,
				retryWait: () => new Promise((r) => setTimeout(r, 20)), on: { closed: (e) => say('closed', e.code) },
			})
			: sse.createClient({ url, headers, retryAttempts: 0 });
		const query = 'subscription($after: String) { events(after: $after, filter: {types: [RUN_FINISHED]}) { cursor node { sessionId } } }';
		for (;;) {
			// A subscription that is begun anew goes on after what came last.
			await new Promise((done) => {
				const payload = { query, get variables() { return { after }; } };
				client.subscribe(payload, {
					next: ({ data, errors }) => {
						if (errors) return say('refused', errors[0].extensions.code);
						after = data.events.cursor;
						say('event', data.events.node.sessionId);
					},
					error: () => setTimeout(done, 20),
					complete: () => setTimeout(done, 20),
				});
			});
		}
	`
	for _, kind := range []string{"ws", "sse"} {
		t.Run("graphql-"+kind+" client", func(t *testing.T) {
			write("client.js", clients)
			s := start(t, "PARLEY_ADDR="+servers.FreePort(t))
			made := at(s.query(token, `mutation { createAccessToken(name: "viewer", scope: READ) { secret accessToken { id } } }`, nil), "createAccessToken")
			run := exec.CommandContext(t.Context(), "node", "client.js", s.url()+"/graphql", at(made, "secret").(string), kind)
			run.Dir, run.Stderr = dir, os.Stderr
			out, err := run.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := run.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = run.Process.Kill()
				_ = run.Wait()
			})
			said := make(chan string, 10_000)
			go func() {
				for lines := bufio.NewScanner(out); lines.Scan(); {
					said <- lines.Text()
				}
				close(said)
			}()
			next := func(prefix string) string {
				t.Helper()
				for late := time.After(patience); ; {
					select {
					case line, ok := <-said:
						if !ok {
							t.Fatalf("wanted %q: the client has ended", prefix)
						}
						if strings.HasPrefix(line, prefix) {
							return line
						}
					case <-late:
						t.Fatalf("wanted %q", prefix)
					}
				}
			}
			// The feed as it is: each session has one turn.
			var sessions []string
			turn := func() { sessions = append(sessions, s.chat("When are you open?", "")["session_id"].(string)) }
			eventually(t, "subscribed", func() bool {
				turn()
				return len(said) > 0
			})
			for range 2 {
				s.kill()
				s.up()
				turn() // before the client is back, perhaps
				turn()
			}
			var got []string
			for len(got) == 0 || got[len(got)-1] != sessions[len(sessions)-1] {
				got = append(got, strings.TrimPrefix(next("event "), "event "))
			}
			if from := slices.Index(sessions, got[0]); from < 0 || !slices.Equal(sessions[from:], got) {
				t.Errorf("the client has missed some, or has some twice:\n%v\nof\n%v", got, sessions)
			}
			// A revoked credential ends it, and lets it in no more.
			s.query(token, `mutation($id: ID!) { revokeAccessToken(id: $id) { id } }`, object{"id": at(made, "accessToken", "id")})
			revoked := time.Now()
			if kind == "ws" {
				next("closed 4403")
			} else {
				next("refused UNAUTHENTICATED")
			}
			t.Logf("closed %v after the revocation", time.Since(revoked))
		})
	}
}
