package e2e_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"parley/e2e/servers"
)

// TestRollingRestart replaces two replicas behind a balancer, each twice, under a load of chats:
// nobody is refused.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	f := fleetOn(t, servers.Database(t), "PARLEY_DRAIN_DELAY=2s", "PARLEY_EMBEDDED_MODEL_LATENCY=50ms")
	var addresses []string
	for range 2 {
		addr := servers.FreePort(t)
		addresses = append(addresses, addr)
		s := &server{t: t, binary: binary, dir: t.TempDir(), env: append(f.env[:len(f.env):len(f.env)], "PARLEY_ADDR="+addr)}
		f.replicas = append(f.replicas, s)
		s.up()
	}
	balancer := servers.Balance(t, addresses...)
	seen := func(n int) {
		t.Helper()
		eventually(t, "seen", func() bool { return balancer.SeesUp() == n })
	}
	seen(2)

	ctx, done := context.WithCancel(t.Context())
	defer done()
	var load sync.WaitGroup
	var chats atomic.Int64
	for range 8 {
		load.Go(func() {
			for ctx.Err() == nil {
				req, _ := http.NewRequest(http.MethodPost, "http://"+balancer.Addr+"/agents/demo/chat", strings.NewReader(`{"message": "Hello", "channel": "sms"}`))
				req.Header = withKey(apiKey)
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Errorf("a chat: %v", err)
					return
				}
				body, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if chats.Add(1); err != nil || res.StatusCode != http.StatusOK {
					t.Errorf("a chat: %d %s %v", res.StatusCode, body, err)
				}
			}
		})
	}
	for range 2 {
		for _, s := range f.replicas {
			if code := s.stop(); code != 0 {
				t.Errorf("ended with %d", code)
			}
			seen(1)
			s.up()
			seen(2)
		}
	}
	done()
	load.Wait()
	t.Logf("%d chats", chats.Load())
}

// TestDrainDelay: after a SIGTERM a server says that it is not ready, and serves as before, on
// connections that are kept open, too: their answers say that they end. A second signal ends it at
// once. Ctrl-C is waited for by nobody.
func TestDrainDelay(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_DRAIN_DELAY=1h")
	kept := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	chat := func() *http.Response {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url()+"/agents/demo/chat", strings.NewReader(`{"message": "Hello", "channel": "sms"}`))
		req.Header = withKey(apiKey)
		res, err := kept.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return res
	}
	if res := chat(); res.StatusCode != http.StatusOK || res.Close {
		t.Errorf("a chat before: %v", res)
	}
	signal := func(sig syscall.Signal) {
		t.Helper()
		if err := s.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGTERM)
	eventually(t, "draining", func() bool {
		status, _, body := s.call("GET", "/readyz", nil, "")
		return status == http.StatusServiceUnavailable && at(body, "status") == "draining"
	})
	for range 2 {
		if res := chat(); res.StatusCode != http.StatusOK || !res.Close {
			t.Errorf("a chat while it drains: %v", res)
		}
	}
	signal(syscall.SIGTERM)
	if code := s.wait(); code == 0 {
		t.Error("the second signal was waited for")
	}
	s.up()
	signal(syscall.SIGINT)
	if code := s.wait(); code != 0 {
		t.Errorf("ended with %d", code)
	}
}
