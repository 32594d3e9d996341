package egress_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"parley/egress"
)

// TestProxyIsInCharge: with a proxy every call but those to what is trusted goes through it, and it alone decides: it may refuse,
// and it may reach what a guard would not. It is no way to whatever else stands beside it.
func TestProxyIsInCharge(t *testing.T) {
	t.Parallel()
	answer := func(what string) *httptest.Server {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, what) }))
		t.Cleanup(server.Close)
		return server
	}
	inside, trusted := answer("inside"), answer("trusted")
	var asked atomic.Pointer[string]
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target := r.Method + " " + r.URL.String()
		if r.Method == http.MethodConnect {
			target = r.Method + " " + r.Host
		}
		asked.Store(&target)
		if r.Method == http.MethodConnect || r.URL.Host != inside.Listener.Addr().String() {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, "by way of the proxy")
	}))
	t.Cleanup(proxy.Close)
	parsed, err := egress.ParseProxy(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	guard := newGuard(t, egress.Policy{Proxy: parsed, Trusted: []string{trusted.Listener.Addr().String()}})
	client := egress.NewClient(guard, 1)
	t.Cleanup(client.CloseIdleConnections)
	get := func(url string) (string, error) {
		asked.Store(nil)
		resp, err := client.Get(url)
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(resp.Body)
		return strings.TrimSpace(string(body)), nil
	}
	if body, err := get(inside.URL); err != nil || body != "by way of the proxy" || asked.Load() == nil {
		t.Errorf("an inner address: %q, %v", body, err)
	}
	if body, err := get(trusted.URL); err != nil || body != "trusted" || asked.Load() != nil {
		t.Errorf("a trusted address: %q, %v", body, err)
	}
	if body, err := get(proxy.URL); err != nil || body != "no" {
		t.Errorf("the proxy itself: %q, %v", body, err)
	}
	if _, err := get("https://169.254.169.254/"); !errors.Is(err, egress.ErrProxy) || asked.Load() == nil || *asked.Load() != "CONNECT 169.254.169.254:443" {
		t.Errorf("over TLS: %v", err)
	}
	proxy.Close()
	if _, err := get(inside.URL); err == nil {
		t.Error("without its proxy it goes on by itself")
	} else if op := new(net.OpError); !errors.As(err, &op) || op.Op != "proxyconnect" {
		t.Errorf("without its proxy: %v", err)
	}
}

func TestParseProxy(t *testing.T) {
	t.Parallel()
	for raw, good := range map[string]bool{
		"http://proxy:3128": true, "https://u:p@proxy": true, "socks5://10.0.0.1": true, "http://proxy/": true,
		"": false, "proxy:3128": false, "ftp://proxy": false, "http://": false, "http://proxy/path": false, "http://u:hunter2@[x": false,
	} {
		if _, err := egress.ParseProxy(raw); (err == nil) != good || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", raw, err)
		}
	}
}
