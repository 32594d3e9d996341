package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"parley/egress"
)

// raw is a server that answers each request of a connection byte by byte as told, and counts connections. The answer says whether the
// connection stays.
func raw(t *testing.T, answer func(conn net.Conn, connection, request int) (stays bool)) (address string, connections *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String(), rawOn(listener, answer)
}

// rawAtOnce makes a raw server that the client reaches on a Unix socket: there an end, or what is sent, has arrived when it is made, while
// TCP may take its time on one machine, too.
func rawAtOnce(t *testing.T, client *http.Client, answer func(conn net.Conn, connection, request int) (stays bool)) *atomic.Int32 {
	t.Helper()
	dir, err := os.MkdirTemp("", "raw") // short: a socket's path may not be long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	client.Transport.(egress.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", listener.Addr().String())
	}
	return rawOn(listener, answer)
}

func rawOn(listener net.Listener, answer func(conn net.Conn, connection, request int) (stays bool)) *atomic.Int32 {
	connections := new(atomic.Int32)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			n := int(connections.Add(1))
			go func() {
				defer func() { _ = conn.Close() }()
				in := bufio.NewReader(conn)
				for i := 1; ; i++ {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					if !answer(conn, n, i) {
						return
					}
				}
			}()
		}
	}()
	return connections
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

// TestAnswersAreReadAsByNetHTTP compares what becomes of two requests, one after the other, with net/http's own, whatever the
// server answers: status, header, body, errors, and whether the connection is used again. What comes after an answer has its own test:
// net/http sometimes takes it for the next one.
func TestAnswersAreReadAsByNetHTTP(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"a length":                  "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"nothing":                   "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"no content":                "HTTP/1.1 204 No Content\r\n\r\n",
		"not modified":              "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
		"chunks":                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n",
		"chunks and trailers":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n5\r\nhello\r\n0\r\nX-A: b\r\n\r\n",
		"a bad chunk":               "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
		"a long body":               "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100_000),
		"interims":                  strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 3) + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"too many interims":         strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 50) + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"it closes":                 "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.0":                  "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.0 that stays":       "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
		"two lengths":               "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk",
		"a length below zero":       "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
		"a length and chunks":       "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"an unknown encoding":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: x\r\n\r\nok",
		"a header without a colon":  "HTTP/1.1 200 OK\r\nContent-Length 2\r\n\r\nok",
		"a header on two lines":     "HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 2\r\n\r\nok",
		"a status that is none":     "HTTP/1.1 20 OK\r\n\r\n",
		"no reason":                 "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
		"lines that end early":      "HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
		"not HTTP":                  "SSH-2.0-OpenSSH_9.9\r\n\r\n",
		"a redirect":                "HTTP/1.1 307 There\r\nLocation: http://example.com/\r\nContent-Length: 0\r\n\r\n",
		"a redirect to nowhere":     "HTTP/1.1 302 There\r\nLocation: ://\r\nContent-Length: 0\r\n\r\n",
		"a line that is too long":   "HTTP/1.1 200 " + strings.Repeat("x", 100_000) + "\r\n\r\n",
		"a header that is too long": "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 100_000) + "\r\n\r\n",
		"a long header":             "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 30_000) + "\r\nContent-Length: 2\r\n\r\nok",
		"gzip":                      "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ask := func(transport http.RoundTripper) (all []string, connections int32) {
				address, made := raw(t, func(conn net.Conn, _, _ int) bool {
					_, _ = io.WriteString(conn, answer)
					return !strings.Contains(answer, "Connection: close") && !strings.HasPrefix(answer, "HTTP/1.0 200 OK\r\nContent")
				})
				client := *local(t)
				if transport != nil {
					client.Transport = transport
				}
				defer client.CloseIdleConnections()
				for range 2 {
					resp, body, err := post(t, &client, "http://"+address)
					said := fmt.Sprintf("%q, failed: %v", body, err != nil)
					if resp != nil {
						said += fmt.Sprintf(", %s %v %v %v %v", resp.Status, resp.Header, resp.Trailer, resp.ContentLength, resp.Close)
					}
					all = append(all, said)
				}
				return all, made.Load()
			}
			ours, made := ask(nil)
			theirs, madeByThem := ask(&http.Transport{DisableCompression: true, MaxResponseHeaderBytes: 64 << 10})
			if made != madeByThem || fmt.Sprint(ours) != fmt.Sprint(theirs) {
				t.Errorf("on %d connections\n%.300s\nnet/http, on %d\n%.300s", made, strings.Join(ours, "\n"), madeByThem, strings.Join(theirs, "\n"))
			}
		})
	}
}

// TestAConnectionThatEndedIsNotUsed: the server closes each connection, without having said so, once it has answered.
func TestAConnectionThatEndedIsNotUsed(t *testing.T) {
	t.Parallel()
	client := local(t)
	closed := make(chan struct{})
	connections := rawAtOnce(t, client, func(conn net.Conn, _, _ int) bool {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		_ = conn.Close()
		closed <- struct{}{}
		return false
	})
	for range 20 {
		if _, _, err := post(t, client, "http://example.com"); err != nil {
			t.Fatal(err)
		}
		<-closed
	}
	if n := connections.Load(); n != 20 {
		t.Errorf("%d connections, want 20", n)
	}
}

// TestWhatComesUnaskedIsNoAnswer: a server sends a second answer with the first, on plain connections and in one record of TLS, and
// much later. The next request gets its own.
func TestWhatComesUnaskedIsNoAnswer(t *testing.T) {
	t.Parallel()
	some := httptest.NewTLSServer(nil) // for its certificate
	t.Cleanup(some.Close)
	const (
		answer  = "HTTP/1.1 200 OK\r\nX-Long: %s\r\nContent-Length: 2\r\n\r\nok"
		unasked = "HTTP/1.1 500 Unasked\r\nContent-Length: 0\r\n\r\n"
	)
	first := fmt.Sprintf(answer, strings.Repeat("x", 2<<10-len(answer)+2)) // it ends where what is read at once does
	for _, scheme := range []string{"http", "https"} {
		for _, kind := range []string{"at once", "later"} {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			on := listener
			if scheme == "https" {
				on = tls.NewListener(listener, &tls.Config{Certificates: some.TLS.Certificates, MinVersion: tls.VersionTLS12})
			}
			sent := make(chan struct{}, 3)
			connections := rawOn(on, func(conn net.Conn, _, _ int) bool {
				if kind == "at once" {
					_, _ = io.WriteString(conn, first+unasked)
				} else {
					_, _ = io.WriteString(conn, first)
					_, _ = io.WriteString(conn, unasked)
				}
				sent <- struct{}{}
				return true
			})
			client := local(t)
			client.Transport.(egress.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // its own server
			for i := range 3 {
				resp, body, err := post(t, client, scheme+"://"+listener.Addr().String())
				if err != nil || resp.StatusCode != http.StatusOK || body != "ok" {
					t.Fatalf("%s, %s, request %d: %v, %q, %v", scheme, kind, i, resp, body, err)
				}
				<-sent
			}
			if n := connections.Load(); n != 3 {
				t.Errorf("%s, %s: %d connections, want 3", scheme, kind, n)
			}
		}
	}
}

// TestServersOfHTTPSChooseTheirProtocol: one that speaks HTTP/2 gets it on the first connection, one that does not is kept on it, too.
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

// TestAGivenUpRequestLeavesNothing: its connection ends when its context does, while it is dialled, sent, or answered.
func TestAGivenUpRequestLeavesNothing(t *testing.T) {
	t.Parallel()
	client := local(t)
	ended, asked := make(chan error, 1), make(chan struct{})
	address, _ := raw(t, func(conn net.Conn, _, _ int) bool {
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
	if n, _ := client.Transport.(egress.Transport).Waiting(); n != 0 {
		t.Errorf("%d connections are kept", n)
	}
}

// TestFewConnectionsAreKept: of eight at once four stay, for as long as they may be idle and their server is there; then nothing is left.
func TestFewConnectionsAreKept(t *testing.T) {
	t.Parallel()
	client := local(t)
	transport := client.Transport.(egress.Transport)
	arrived, release := make(chan struct{}, 8), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	t.Cleanup(server.Close)
	done := make(chan error, 8)
	for range 8 {
		go func() {
			_, _, err := post(t, client, server.URL)
			done <- err
		}()
	}
	for range 8 {
		<-arrived
	}
	close(release)
	for range 8 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	transport.Sweep()
	if n, of := transport.Waiting(); n != 4 || of != 1 {
		t.Errorf("%d connections of %d targets are kept, want 4 of one", n, of)
	}
	server.CloseClientConnections()
	transport.Sweep()
	if n, of := transport.Waiting(); n != 0 || of != 0 {
		t.Errorf("%d connections of %d targets are kept of a server that is gone", n, of)
	}
	if _, _, err := post(t, client, server.URL); err != nil {
		t.Fatal(err)
	}
	transport.IdleConnTimeout = 0
	transport.Sweep()
	if n, of := transport.Waiting(); n != 0 || of != 0 {
		t.Errorf("%d connections of %d targets are kept for too long", n, of)
	}
}

// TestAConnectionIsLookedAtAsItIsHandedOn: a request waits for its dial, and gets the connection that another is done with, whose server
// has closed it. It is not used.
func TestAConnectionIsLookedAtAsItIsHandedOn(t *testing.T) {
	t.Parallel()
	proceed, done := make(chan struct{}), make(chan struct{}) // to the first connection's server, and from it
	client := local(t)
	connections := rawAtOnce(t, client, func(conn net.Conn, connection, _ int) bool {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		if connection > 1 {
			return true
		}
		<-proceed
		_ = conn.Close()
		close(done)
		return false
	})
	transport := client.Transport.(egress.Transport)
	dial, dialling, dialled := transport.DialContext, make(chan struct{}), make(chan struct{})
	var dials atomic.Int32
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) == 2 {
			close(dialling)
			<-dialled
		}
		return dial(ctx, network, addr)
	}
	defer close(dialled)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://example.com", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	first, err := client.Do(req) // its body is unread
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Body.Close() }()
	second := make(chan error, 1)
	go func() {
		resp, body, err := post(t, client, "http://example.com")
		if err == nil && (resp.StatusCode != http.StatusOK || body != "ok") {
			err = fmt.Errorf("%s, %q", resp.Status, body)
		}
		second <- err
	}()
	<-dialling
	close(proceed)
	<-done
	if _, err := io.ReadAll(first.Body); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
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
