package deploy_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"parley/e2e/servers"
)

// TestSocket restarts the server under load on a socket that outlives it, handed over as systemd
// does: whoever connects meanwhile is answered. A request that had been taken and not read when the
// stop came may be sent away, and no other.
func TestSocket(t *testing.T) {
	t.Parallel()
	const clients, restarts = 4, 3
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	held, err := socket.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	dir := t.TempDir()
	up := func() *server {
		cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0"`, binary)
		cmd.Dir = dir
		cmd.Env = slices.Concat(settings, []string{"LISTEN_FDS=1", "PARLEY_ADDR=192.0.2.1:1", "PARLEY_EMBEDDED_MODEL_LATENCY=200ms"})
		cmd.ExtraFiles = []*os.File{held}
		return start(t, cmd, dir)
	}
	s := up()
	if s.url != "http://"+socket.Addr().String() {
		t.Fatalf("it runs at %s", s.url)
	}
	var load errgroup.Group
	var stopped atomic.Bool
	var sentAway atomic.Int64
	answered := make(chan struct{}, 100_000)
	for range clients {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		load.Go(func() error {
			for !stopped.Load() {
				res, err := post(client, s.url+chatPath, "application/json", chatBody)
				if err != nil {
					return err
				}
				body, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				switch {
				case err != nil:
					return err
				case res.StatusCode == http.StatusOK:
					answered <- struct{}{}
				case strings.Contains(string(body), "shutting_down"):
					sentAway.Add(1)
				default:
					t.Errorf("%s %s", res.Status, body)
					return nil
				}
			}
			return nil
		})
	}
	for range restarts {
		for range 2 * clients {
			<-answered
		}
		s.stop()
		s = up()
	}
	for range 2 * clients {
		<-answered
	}
	stopped.Store(true)
	if err := load.Wait(); err != nil {
		t.Error(err)
	}
	if n := sentAway.Load(); n > clients*restarts {
		t.Errorf("%d requests were sent away", n)
	}
}

// TestUnits has systemd read the units.
func TestUnits(t *testing.T) {
	t.Parallel()
	analyze := servers.Need(t, "systemd-analyze")
	dir := t.TempDir()
	var files []string
	for _, name := range []string{"parley.service", "parley.socket"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/parley", "/bin/true")), 0o644); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	if out, err := exec.Command(analyze, append([]string{"verify", "--man=no"}, files...)...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%s %v", out, err)
	}
}
