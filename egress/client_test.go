package egress_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"parley/egress"
)

func local(t *testing.T) *http.Client {
	client := egress.NewClient(newGuard(t, egress.Policy{AllowPrivate: true}), 4)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var followed atomic.Bool
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Store(true) }))
	t.Cleanup(target.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		server := httptest.NewServer(http.RedirectHandler(target.URL, status))
		resp, err := local(t).Post(server.URL, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		server.Close()
		if resp.StatusCode != status || followed.Load() {
			t.Errorf("%d: got %d, followed: %v", status, resp.StatusCode, followed.Load())
		}
	}
}

// ways are a request of each kind.
var ways = map[string]func(ctx context.Context, url string) (*http.Request, error){
	"a POST": func(ctx context.Context, url string) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	},
	"a long POST": func(ctx context.Context, url string) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(strings.Repeat(" ", 64<<10)))
	},
	"a GET": func(ctx context.Context, url string) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	},
}

// ask makes a request in one of the ways.
func ask(t *testing.T, ctx context.Context, way, url string) (*http.Response, error) { //nolint:revive // t stands first
	t.Helper()
	req, err := ways[way](ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	return local(t).Do(req)
}

func TestAnEndlessHeaderIsCut(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("x", 80<<10))
	}))
	t.Cleanup(server.Close)
	for way := range ways {
		resp, err := ask(t, t.Context(), way, server.URL)
		if err == nil {
			_ = resp.Body.Close()
			t.Errorf("%s: a header of 80 KiB was read", way)
		}
	}
}

func TestTheContextBoundsTheBodyToo(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	for way := range ways {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		resp, err := ask(t, ctx, way, server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		cancel()
		if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want the context's end", way, err)
		}
	}
}

// TestNobodySwitchesProtocols: a server that switches to another protocol, and is silent there, is left at once.
func TestNobodySwitchesProtocols(t *testing.T) {
	t.Parallel()
	for way := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			left := make(chan error, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				conn, out, err := http.NewResponseController(w).Hijack()
				if err != nil {
					left <- err
					return
				}
				defer func() { _ = conn.Close() }()
				_, _ = out.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				_ = out.Flush()
				_, err = io.Copy(io.Discard, out)
				left <- err
			}))
			t.Cleanup(server.Close)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			resp, err := ask(t, ctx, way, server.URL)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = resp.Body.Close() })
			select {
			case err = <-left: // before anything is read or closed here
			case <-ctx.Done():
				t.Fatal("the connection is still open")
			}
			raw, read := io.ReadAll(resp.Body)
			if err != nil || read != nil || len(raw) > 0 || resp.StatusCode != http.StatusSwitchingProtocols {
				t.Errorf("%d, %q, %v, and the server saw %v", resp.StatusCode, raw, read, err)
			}
		})
	}
}

// TestTheEnvironmentSetsNoProxy also shows that nothing is unpacked and no cookie is kept.
func TestTheEnvironmentSetsNoProxy(t *testing.T) {
	t.Parallel()
	client := local(t)
	transport := client.Transport.(egress.Transport)
	if transport.Proxy != nil || client.Jar != nil || !transport.DisableCompression {
		t.Error("a proxy, a cookie jar or compression")
	}
}

// TestConnectionsAreUsedAgain has four requests at once, twice, on no more than four connections.
func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	arrived, release := make(chan struct{}, 4), make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	client := local(t)
	for range 2 {
		done := make(chan error, 4)
		for range 4 {
			go func() {
				resp, err := client.Get(server.URL)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				done <- err
			}()
		}
		for range 4 {
			<-arrived
		}
		for range 4 {
			release <- struct{}{}
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := connections.Load(); n > 4 {
		t.Errorf("8 requests, 4 at once, made %d connections", n)
	}
}
