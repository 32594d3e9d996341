package deploy_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long anything may take before a test is given up: a backstop, never a measure.
const patience = 120 * time.Second

// binary is an ordinary build.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "parley-deploy")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "parley")
	if out, err := exec.Command("go", "build", "-o", binary, "parley").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the server: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// server is a running Parley.
type server struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	done chan struct{}
}

const (
	apiKey = "sk_deploy_key_0123456789"
	token  = "at_deploy_token_0123456789"
)

// settings are of a server with credentials that are known, and without a balancer that would have
// to look away.
var settings = []string{"PARLEY_ADDR=127.0.0.1:0", "PARLEY_DRAIN_DELAY=0s", "PARLEY_BOOTSTRAP_API_KEY=" + apiKey, "PARLEY_BOOTSTRAP_TOKEN=" + token}

// start runs a server, and waits until it says where it is and is ready. What it prints goes to
// files in dir.
func start(t *testing.T, cmd *exec.Cmd, dir string) *server {
	t.Helper()
	var files [2]*os.File
	for i, name := range []string{"stdout", "stderr"} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		files[i] = f
	}
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-s.done
	})
	said := func(i int) string {
		raw, _ := os.ReadFile(files[i].Name())
		return string(raw)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		if s.url = regexp.MustCompile(`http://\S+`).FindString(said(0)); s.url != "" {
			if res, err := http.Get(s.url + "/readyz"); err == nil {
				_ = res.Body.Close()
				if res.StatusCode == http.StatusOK {
					return s
				}
			}
		}
		select {
		case <-tick.C:
		case <-s.done:
			t.Fatalf("the server ended with %v: %s", cmd.ProcessState, said(1))
		case <-deadline:
			t.Fatalf("the server is not ready: %s", said(1))
		}
	}
}

// stop asks the server to end, and waits until it has.
func (s *server) stop() {
	s.t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatal("the server does not end")
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		s.t.Errorf("the server ended with %d", code)
	}
}

// post calls a path with both credentials, and returns the answer.
func post(client *http.Client, url, accept, body string) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{"X-Api-Key": {apiKey}, "Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}, "Accept": {accept}}
	return client.Do(req)
}

const (
	chatPath = "/agents/demo/chat"
	chatBody = `{"message": "When are you open on Saturday?", "channel": "whatsapp"}`
)

// chats says something to the demo agent, and fails unless it answers.
func chats(t *testing.T, client *http.Client, url string) {
	t.Helper()
	res, err := post(client, url+chatPath, "application/json", chatBody)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(answer), "16:00") {
		t.Fatalf("chat: %s %s %v", res.Status, answer, err)
	}
}

// TestSettingsAreSettings: whatever the files here call a setting is one.
func TestSettingsAreSettings(t *testing.T) {
	t.Parallel()
	help, err := exec.Command(binary, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`PARLEY_[A-Z_]+`)
	seen := 0
	for _, pattern := range []string{"*", "../README.md", "../docs/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, "changelog.md") {
				continue
			}
			for _, name := range named.FindAllString(string(text), -1) {
				seen++
				if !strings.HasSuffix(name, "_") && !strings.Contains(string(help), "($"+name+")") {
					t.Errorf("%s: %s is no setting", file, name)
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("%d settings are named", seen)
	}
}
