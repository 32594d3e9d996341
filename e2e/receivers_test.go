package e2e_test

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/egress"
)

// snippet is the code of docs/webhooks.md in a language.
func snippet(t *testing.T, language string) string {
	t.Helper()
	doc, err := os.ReadFile("../docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)<!-- " + language + " -->\n```" + language + "\n(.*?)```").FindSubmatch(doc)
	if found == nil {
		t.Fatalf("docs/webhooks.md has no code in %s", language)
	}
	return string(found[1])
}

// TestReceiversOfTheDocs runs the receivers of docs/webhooks.md: each takes what is signed, once, and nothing else.
func TestReceiversOfTheDocs(t *testing.T) {
	t.Parallel()
	secret := egress.NewSecret()
	t.Run("Go", func(t *testing.T) {
		t.Parallel()
		dir, err := os.MkdirTemp(".", "_receiver-") // inside the module, whose go.mod has the library, and not one of its packages
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		put(t, filepath.Join(dir, "main.go"), `package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

var seen = map[string]bool{}

func remember(id string) bool { was := seen[id]; seen[id] = true; return !was }
func enqueue(body []byte)     { fmt.Println("work", string(body)) }

func main() {
	listener, _ := net.Listen("tcp", "127.0.0.1:0")
	fmt.Println("http://" + listener.Addr().String())
	_ = http.Serve(listener, http.HandlerFunc(receive))
}

`+snippet(t, "go"))
		program := filepath.Join(t.TempDir(), "receiver")
		if out, err := exec.Command("go", "build", "-o", program, "./"+dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		tryReceiver(t, secret, exec.Command(program))
	})
	t.Run("Node", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		put(t, filepath.Join(dir, "package.json"), `{"private":true,"dependencies":{"standardwebhooks":"1.0.0"}}`)
		needs(t, dir, "npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts")
		put(t, filepath.Join(dir, "receiver.js"), snippet(t, "js")+`
const seen = new Set();
const remember = (id) => !seen.has(id) && !!seen.add(id);
const enqueue = (body) => console.log("work", body);
server.listen(0, "127.0.0.1", () => console.log("http://127.0.0.1:" + server.address().port));
`)
		cmd := exec.Command("node", "receiver.js")
		cmd.Dir = dir
		tryReceiver(t, secret, cmd)
	})
	t.Run("Python", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		needs(t, dir, "python3", "--version")
		if exec.Command("python3", "-c", "import standardwebhooks").Run() != nil {
			t.Log("the library is not installed: its place is taken by what the specification says")
			put(t, filepath.Join(dir, "standardwebhooks", "webhooks.py"), pythonVerifier)
		}
		put(t, filepath.Join(dir, "receiver.py"), snippet(t, "python")+`
from http.server import HTTPServer
seen = set()
def remember(id):
    new = id not in seen
    seen.add(id)
    return new
def enqueue(body): print("work", body.decode(), flush=True)
server = HTTPServer(("127.0.0.1", 0), Receiver)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
`)
		cmd := exec.Command("python3", "receiver.py")
		cmd.Dir = dir
		tryReceiver(t, secret, cmd)
	})
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pythonVerifier stands in for Python's library of Standard Webhooks, with the standard library alone: the verification of the
// specification (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md), behind the same call.
const pythonVerifier = `import base64, hashlib, hmac, json, time

class Webhook:
    def __init__(self, secret):
        self.key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)

    def verify(self, data, headers):
        signed = "{webhook-id}.{webhook-timestamp}.".format(**headers).encode() + data
        if abs(time.time() - int(headers["webhook-timestamp"])) > 300:
            raise ValueError("too old, or too new")
        own = "v1," + base64.b64encode(hmac.new(self.key, signed, hashlib.sha256).digest()).decode()
        if not any(hmac.compare_digest(own, one) for one in headers["webhook-signature"].split(" ")):
            raise ValueError("no signature matches")
        return json.loads(data)
`

// needs runs what a receiver cannot do without. Where that fails the test is skipped, but never in CI.
func needs(t *testing.T, dir string, command ...string) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		servers.Missing(t, "%s: %v: %s", strings.Join(command, " "), err, out)
	}
}

// tryReceiver starts a receiver, which prints its address and then what it works on, and sends it well and badly signed requests.
func tryReceiver(t *testing.T, secret string, cmd *exec.Cmd) {
	t.Helper()
	cmd.Env = append(os.Environ(), "WEBHOOK_SECRET="+secret)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	lines.Scan()
	url := lines.Text()
	send := func(id, body, signed string, at time.Time) int {
		t.Helper()
		signature, err := egress.Sign(id, at, []byte(signed), egress.NewSecret(), secret) // a rotated secret signs beside the new one
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Webhook-Id", id)
		req.Header.Set("Webhook-Timestamp", fmt.Sprint(at.Unix()))
		req.Header.Set("Webhook-Signature", signature)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	now := time.Now()
	for _, c := range []struct {
		what, id, body, signed string
		at                     time.Time
		want                   int
	}{
		{"another body", "evt_1", `{"a":2}`, `{"a":1}`, now, 401},
		{"an hour old", "evt_1", `{"a":1}`, `{"a":1}`, now.Add(-time.Hour), 401},
		{"well signed", "evt_1", `{"a":"ä"}`, `{"a":"ä"}`, now, 204},
		{"the same again", "evt_1", `{"a":"ä"}`, `{"a":"ä"}`, now, 204},
		{"another one", "evt_2", `{"a":3}`, `{"a":3}`, now, 204},
	} {
		if got := send(c.id, c.body, c.signed, c.at); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
	for _, want := range []string{`work {"a":"ä"}`, `work {"a":3}`} {
		if lines.Scan(); lines.Text() != want {
			t.Errorf("it worked on %q, want %q", lines.Text(), want)
		}
	}
}
