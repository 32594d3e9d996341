package e2e_test

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"parley/e2e/servers"
)

// patience is how long anything may take before a story is given up: a backstop, never a measure.
const patience = 120 * time.Second

// binary is the server under test.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "parley-e2e")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "parley")
	build := exec.Command("go", append(append([]string{"build"}, buildFlags...), "-o", binary, "parley")...)
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the server:", err)
		os.Exit(1)
	}
	// The stories wait more than they work: let more of them run than there are cores, unless told otherwise.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("6")
	}
	code := m.Run()
	servers.StopShared()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// server is a running Parley.
type server struct {
	t       *testing.T
	binary  string // empty: binary
	dir     string
	env     []string
	cmd     *exec.Cmd
	address atomic.Pointer[string] // changes with a start, while clients of the last one may still be calling
	exited  chan struct{}
	code    int
}

const (
	apiKey = "sk_e2e_key_0123456789"
	token  = "at_e2e_token_0123456789"
)

// start starts a server in a folder of its own, with known credentials, and settings as in "PARLEY_X=y".
func start(t *testing.T, env ...string) *server {
	t.Helper()
	return launched(t, binary, env...)
}

// launched starts a server of any version.
func launched(t *testing.T, binary string, env ...string) *server {
	t.Helper()
	s := &server{t: t, binary: binary, dir: t.TempDir(), env: append([]string{
		"PARLEY_ADDR=127.0.0.1:0", "PARLEY_BOOTSTRAP_API_KEY=" + apiKey, "PARLEY_BOOTSTRAP_TOKEN=" + token,
		"PARLEY_ALLOW_PRIVATE_WEBHOOKS=true", "PARLEY_DELIVERY_BACKOFF=50ms", "PARLEY_DRAIN_DELAY=0s",
	}, env...)}
	s.up()
	return s
}

// up starts the server's process, again if need be, and waits until it is ready.
func (s *server) up() {
	s.t.Helper()
	s.launch()
	s.waitUp()
}

func (s *server) launch() {
	s.t.Helper()
	s.cmd = exec.Command(cmp.Or(s.binary, binary))
	s.cmd.Dir, s.cmd.Env = s.dir, append(clean(), s.env...)
	out, err := os.Create(filepath.Join(s.dir, "stdout"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	log, err := os.OpenFile(filepath.Join(s.dir, "stderr"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	s.cmd.Stdout, s.cmd.Stderr = out, log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.exited = make(chan struct{})
	exited, cmd := s.exited, s.cmd
	go func() {
		defer close(exited)
		_ = cmd.Wait()
		s.code = cmd.ProcessState.ExitCode()
	}()
	s.t.Cleanup(func() { s.kill() })
}

// waitUp waits until a launched server is ready, and learns its address.
func (s *server) waitUp() {
	s.t.Helper()
	exited := s.exited
	address := regexp.MustCompile(`http://\S+`)
	eventually(s.t, "started", func() bool {
		select {
		case <-exited:
			s.t.Fatalf("the server ended with %d:\n%s", s.code, s.log())
		default:
		}
		url := address.FindString(s.stdout())
		s.address.Store(&url)
		return url != ""
	})
	s.waitReady()
}

// stdout is what the server printed since its last start, and log what it has logged in all.
func (s *server) stdout() string { return s.file("stdout") }
func (s *server) log() string    { return s.file("stderr") }

func (s *server) file(name string) string {
	raw, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(raw)
}

func (s *server) waitReady() {
	s.t.Helper()
	eventually(s.t, "ready", func() bool {
		res, err := http.Get(s.url() + "/readyz")
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		return res.StatusCode == http.StatusOK
	})
}

// eventually waits for a condition that nothing announces.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not %s within %v", what, patience)
		}
	}
}

// clean is this process's environment without what would configure a server.
func clean() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PARLEY_") || strings.HasPrefix(kv, "OPENAI_") || strings.HasPrefix(kv, "ANTHROPIC_")
	})
}

// kill ends the process as a power cut would.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// stop asks the process to end, and returns its exit code.
func (s *server) stop() int {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	return s.wait()
}

func (s *server) wait() int {
	s.t.Helper()
	select {
	case <-s.exited:
	case <-time.After(patience):
		s.t.Fatalf("the server does not end:\n%s", s.log())
	}
	return s.code
}

// url is where the server was last heard of.
func (s *server) url() string { return *s.address.Load() }

// object is a JSON object as a client sees it.
type object = map[string]any

// at walks a JSON value: names into objects, numbers into arrays.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			o, _ := v.(object)
			v = o[p]
		case int:
			a, _ := v.([]any)
			if p >= len(a) {
				return nil
			}
			v = a[p]
		}
	}
	return v
}

// call makes a REST call, and returns its status, header and decoded body.
func (s *server) call(method, path string, header http.Header, body string) (int, http.Header, any) {
	s.t.Helper()
	status, h, raw, err := s.try(context.Background(), method, path, header, body)
	if err != nil {
		s.t.Fatal(err)
	}
	var v any
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &v); err != nil {
			s.t.Fatalf("%s %s: %d with a body that is not JSON: %.200s", method, path, status, raw)
		}
	}
	return status, h, v
}

func (s *server) try(ctx context.Context, method, path string, header http.Header, body string) (int, http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url()+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	for k, v := range header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, raw, err
}

// withKey and withToken are the headers of a caller.
func withKey(key string) http.Header {
	return http.Header{"X-Api-Key": {key}, "Content-Type": {"application/json"}}
}

func withToken(token string) http.Header {
	return http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}}
}

// chat says something to the demo agent by REST, and returns the answer.
func (s *server) chat(message, session string) object {
	s.t.Helper()
	body := object{"message": message, "channel": "whatsapp"}
	if session != "" {
		body["session_id"] = session
	}
	status, _, answer := s.call("POST", "/agents/demo/chat", withKey(apiKey), encode(body))
	if status != http.StatusOK {
		s.t.Fatalf("chat: %d %v\n%s", status, answer, s.log())
	}
	return answer.(object)
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// query runs a GraphQL operation with a token, and returns its data; errors fail the story.
func (s *server) query(token, query string, variables object) any {
	s.t.Helper()
	answer := s.graphql(withToken(token), query, variables)
	if errs := at(answer, "errors"); errs != nil {
		s.t.Fatalf("%s: %v", query, errs)
	}
	return at(answer, "data")
}

// graphql runs a GraphQL operation, and returns the whole answer.
func (s *server) graphql(header http.Header, query string, variables object) any {
	s.t.Helper()
	_, _, answer := s.call("POST", "/graphql", header, encode(object{"query": query, "variables": variables}))
	return answer
}

// refused runs an operation that must fail, and returns the code and reason of its first error.
func (s *server) refused(header http.Header, query string, variables object) (code, reason any) {
	s.t.Helper()
	answer := s.graphql(header, query, variables)
	return at(answer, "errors", 0, "extensions", "code"), at(answer, "errors", 0, "extensions", "reason")
}

// subscriber is a client of graphql-transport-ws with one subscription.
type subscriber struct {
	t    *testing.T
	conn *websocket.Conn
	next chan any // the payloads' data
	end  chan string
}

// dial opens a WebSocket and initializes it.
func (s *server) dial(token string) *websocket.Conn {
	s.t.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}, HandshakeTimeout: patience}
	conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(s.url(), "http")+"/graphql", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.WriteJSON(object{"type": "connection_init", "payload": object{"Authorization": "Bearer " + token}}); err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// subscribe begins a subscription. One of all events begins now, and not when the server gets to it.
func (s *server) subscribe(secret, query string, variables object) *subscriber {
	s.t.Helper()
	if query == eventsLive && variables == nil && secret == token {
		variables = object{"after": at(s.query(token, `{ feedCursor }`, nil), "feedCursor")}
	}
	sub := &subscriber{t: s.t, conn: s.dial(secret), next: make(chan any, 10_000), end: make(chan string, 1)}
	var ack object
	if err := sub.conn.ReadJSON(&ack); err != nil || ack["type"] != "connection_ack" {
		s.t.Fatalf("no connection_ack: %v, %v", ack, err)
	}
	payload := object{"query": query, "variables": variables}
	if err := sub.conn.WriteJSON(object{"id": "1", "type": "subscribe", "payload": payload}); err != nil {
		s.t.Fatal(err)
	}
	go sub.read()
	return sub
}

func (sub *subscriber) read() {
	for {
		var m object
		if err := sub.conn.ReadJSON(&m); err != nil {
			sub.end <- err.Error()
			return
		}
		switch m["type"] {
		case "next":
			sub.next <- at(m, "payload", "data")
		case "error", "complete":
			sub.end <- encode(m)
			return
		case "ping":
			_ = sub.conn.WriteJSON(object{"type": "pong"})
		}
	}
}

// wait returns the next payload's data.
func (sub *subscriber) wait() any {
	sub.t.Helper()
	select {
	case v := <-sub.next:
		return v
	case why := <-sub.end:
		select {
		case v := <-sub.next: // before the end
			sub.end <- why
			return v
		default:
			sub.t.Fatalf("the subscription ended: %s", why)
		}
	case <-time.After(patience):
		sub.t.Fatal("nothing came on the subscription")
	}
	return nil
}

// hook is what a receiver got.
type hook struct {
	header http.Header
	body   []byte
	doc    object
}

// receiver is a customer's webhook server.
type receiver struct {
	*httptest.Server
	t    *testing.T
	came chan hook

	mu     sync.Mutex
	answer func(n int, w http.ResponseWriter, r *http.Request) // n counts the requests from 1
	n      int
}

func receive(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	r := &receiver{t: t, came: make(chan hook, 10_000), answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		var doc object
		_ = json.Unmarshal(body, &doc)
		r.came <- hook{req.Header, body, doc}
		r.mu.Lock()
		r.n++
		n, answer := r.n, r.answer
		r.mu.Unlock()
		if answer != nil {
			answer(n, w, req)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) wait() hook {
	r.t.Helper()
	select {
	case h := <-r.came:
		return h
	case <-time.After(patience):
		r.t.Fatal("nothing came to the receiver")
	}
	return hook{}
}

// register registers a webhook by REST, and returns its id and secret.
func (s *server) register(url string, types ...string) (id, secret string) {
	s.t.Helper()
	status, _, answer := s.call("POST", "/v1/webhooks", withToken(token), encode(object{"url": url, "events": types}))
	if status != http.StatusCreated {
		s.t.Fatalf("register: %d %v", status, answer)
	}
	return at(answer, "id").(string), at(answer, "secret").(string)
}

// everything are all event types, as REST spells them.
var everything = []string{
	"message.created", "conversation.holder_changed", "inbox.item_created", "run.finished", "run.failed", "call.ended",
	"channel.status_changed", "approval.requested",
}
