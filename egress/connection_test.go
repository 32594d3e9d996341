package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
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

// raw is a server that answers the requests of its connections byte by byte as told. The answer
// says whether the connection stays.
func raw(t *testing.T, answer func(conn net.Conn, request int) (stays bool)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				in := bufio.NewReader(conn)
				for i := 1; ; i++ {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					if !answer(conn, i) {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

func post(t *testing.T, client *http.Client, url string) (*http.Response, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// TestServersOfHTTPSChooseTheirProtocol: one that speaks HTTP/2 gets it on the first connection,
// one that does not is kept on it, too.
func TestServersOfHTTPSChooseTheirProtocol(t *testing.T) {
	t.Parallel()
	for _, major := range []int{1, 2} {
		var connections atomic.Int32
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != major {
				t.Errorf("HTTP/%d, want HTTP/%d", r.ProtoMajor, major)
			}
			_, _ = io.Copy(w, r.Body)
		}))
		server.EnableHTTP2 = major == 2
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections.Add(1)
			}
		}
		server.StartTLS()
		t.Cleanup(server.Close)
		client := local(t)
		client.Transport.(egress.Transport).TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		client.Transport.(egress.Transport).TLSClientConfig.NextProtos = nil
		for range 5 {
			resp, body, err := post(t, client, server.URL)
			if err != nil || body != "{}" || resp.ProtoMajor != major {
				t.Fatalf("HTTP/%d: %v, %q, %v", major, resp, body, err)
			}
		}
		if n := connections.Load(); n != 1 {
			t.Errorf("HTTP/%d: %d connections, want 1", major, n)
		}
	}
}

// TestACertificateIsChecked, of a server that speaks HTTP/1.1 or HTTP/2.
func TestACertificateIsChecked(t *testing.T) {
	t.Parallel()
	for _, two := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.EnableHTTP2 = two
		server.Config.ErrorLog = nil
		server.StartTLS()
		t.Cleanup(server.Close)
		var wrong *tls.CertificateVerificationError
		if _, _, err := post(t, local(t), server.URL); !errors.As(err, &wrong) {
			t.Errorf("HTTP/2: %v: got %v", two, err)
		}
	}
}

// TestAGivenUpRequestLeavesNothing: its connection ends when its context does, and the error is the
// context's cause.
func TestAGivenUpRequestLeavesNothing(t *testing.T) {
	t.Parallel()
	client := local(t)
	ended, asked := make(chan error, 1), make(chan struct{})
	address := raw(t, func(conn net.Conn, _ int) bool {
		close(asked)
		_, err := conn.Read(make([]byte, 1))
		ended <- err
		return false
	})
	why := errors.New("given up")
	ctx, cancel := context.WithCancelCause(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-asked
		cancel(why)
	}()
	if resp, err := client.Do(req); !errors.Is(err, why) {
		if err == nil {
			_ = resp.Body.Close()
		}
		t.Errorf("got %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the server's connection is still open")
	}
}

// TestWhatHasEndedIsNotSent: a request whose context is over, with a connection at hand.
func TestWhatHasEndedIsNotSent(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(server.Close)
	client := local(t)
	if _, _, err := post(t, client, server.URL); err != nil {
		t.Fatal(err)
	}
	why := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for range 20 {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.Do(req); !errors.Is(err, why) {
			if err == nil {
				_ = resp.Body.Close()
			}
			t.Fatalf("got %v", err)
		}
	}
	if _, _, err := post(t, client, server.URL); err != nil || requests.Load() != 2 {
		t.Errorf("%d requests came, want 2: %v", requests.Load(), err)
	}
}

// TestFewConnectionsAreKept: of eight at once four stay, and carry the next four requests.
func TestFewConnectionsAreKept(t *testing.T) {
	t.Parallel()
	client := local(t)
	arrived, release := make(chan struct{}, 8), make(chan struct{})
	var made atomic.Int32
	closed := make(chan struct{}, 8)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			made.Add(1)
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	atOnce := func(n int) {
		done := make(chan error, n)
		for range n {
			go func() {
				_, _, err := post(t, client, server.URL)
				done <- err
			}()
		}
		for range n {
			<-arrived
		}
		for range n {
			release <- struct{}{}
		}
		for range n {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	atOnce(8)
	for range 4 {
		<-closed
	}
	atOnce(4)
	if n := made.Load(); n != 8 {
		t.Errorf("%d connections were made, want 8", n)
	}
}

// TestTheContextBoundsEachStep: a request ends with its context while its host is looked up, its
// connection is dialled, TLS shakes hands, and its answer is awaited.
func TestTheContextBoundsEachStep(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	talks, lookups, dials := make(chan struct{}, 2), make(chan struct{}, 8), make(chan struct{}, 1)
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			_, _ = conn.Read(make([]byte, 1)) // a request's first byte, or a handshake's
			talks <- struct{}{}
		}
	}()
	guard := newGuard(t, egress.Policy{AllowPrivate: true})
	guard.Resolve(&net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		lookups <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	for name, step := range map[string]struct {
		url     string
		reached chan struct{}
	}{
		"look up":     {"http://slow.example.com./", lookups},
		"dial":        {"http://127.0.0.1:9/", dials},
		"shake hands": {"https://" + silent.Addr().String(), talks},
		"answer":      {"http://" + silent.Addr().String(), talks},
	} {
		client := egress.NewClient(guard, 1)
		if name == "dial" {
			client.Transport.(egress.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
				dials <- struct{}{}
				<-over // whatever it is told
				return nil, net.ErrClosed
			}
		}
		why := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, step.url, strings.NewReader("{}"))
			if err == nil {
				var resp *http.Response
				if resp, err = client.Do(req); err == nil {
					_ = resp.Body.Close()
				}
			}
			done <- err
		}()
		<-step.reached
		cancel(why)
		if err := <-done; !errors.Is(err, why) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
