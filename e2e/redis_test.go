package e2e_test

import (
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
)

// redisServer starts a real Redis on a free port, and returns its address and how to start it again after a kill.
func redisServer(t *testing.T) (addr string, kill, up func()) {
	t.Helper()
	program := need(t, "redis-server")
	addr = freePort(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var cmd *exec.Cmd
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	up = func() {
		cmd = exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", dir,
			"--logfile", filepath.Join(dir, "log"))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "answering", func() bool {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	}
	up()
	t.Cleanup(func() { kill() })
	return addr, kill, up
}

// TestRealRedis runs the main job on a real Redis, takes that away, and brings an empty one back: the feed and the deliveries
// go on through all of it, each event once on the feed, and /readyz says how things stand.
func TestRealRedis(t *testing.T) {
	t.Parallel()
	addr, kill, up := redisServer(t)
	s := start(t, "PARLEY_REDIS_URL=redis://"+addr+"/0")
	r := receive(t, nil)
	s.register(r.URL, everything...)
	live := s.subscribe(token, eventsLive, object{"after": at(s.query(token, `{feedCursor}`, nil), "feedCursor")})
	redis := func(want string) {
		t.Helper()
		eventually(t, "redis "+want, func() bool {
			status, _, body := s.call("GET", "/readyz", nil, "")
			return status == http.StatusOK && at(body, "redis") == want
		})
	}
	turn := func() {
		t.Helper()
		session := s.chat("Hello", "")["session_id"]
		arrived := map[string]bool{}
		for i := range 3 {
			node := at(live.wait(), "events", "node")
			if at(node, "sessionId") != session || at(node, "sequence") != float64(i+1) {
				t.Fatalf("on the feed: %v", node)
			}
			arrived[r.wait().header.Get("Webhook-Id")] = true
		}
		if len(arrived) != 3 {
			t.Fatalf("%d of 3 events arrived", len(arrived))
		}
	}
	redis("ok")
	turn()
	kill()
	turn() // at once: nobody has noticed yet
	redis("degraded")
	turn()
	up()
	redis("ok")
	turn()
	turn()
}
