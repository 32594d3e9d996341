package egress_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"parley/egress"
)

// TestAPostArrivesOnce: a server answers the first request of a connection, takes the second one,
// and ends the connection. It may have done what it was asked to: whatever the request's body and
// headers are, it fails, and comes no third time.
func TestAPostArrivesOnce(t *testing.T) {
	t.Parallel()
	for body, size := range map[string]int{"no body": 0, "a body": 2, "a long body": 64 << 10} {
		for _, header := range []string{"Webhook-Id", "Idempotency-Key", "X-Idempotency-Key", "idempotency-key"} {
			for _, end := range []string{"closed", "reset"} {
				for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
					var requests atomic.Int32
					address := raw(t, func(conn net.Conn, request int) bool {
						requests.Add(1)
						if request == 2 {
							if end == "reset" {
								_ = conn.(*net.TCPConn).SetLinger(0)
							}
							return false
						}
						_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
						return true
					})
					client, what := local(t), strings.Join([]string{method, body, header, end}, ", ")
					for i := range 2 {
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						req, err := http.NewRequestWithContext(ctx, method, "http://"+address, bytes.NewReader(make([]byte, size)))
						if err != nil {
							t.Fatal(err)
						}
						req.Header.Set(header, "once")
						resp, err := client.Do(req)
						if err == nil {
							_ = resp.Body.Close()
						}
						cancel()
						if (err == nil) != (i == 0) {
							t.Errorf("%s: request %d: %v", what, i+1, err)
						}
					}
					if n := requests.Load(); n != 2 {
						t.Errorf("%s: %d requests came, want 2", what, n)
					}
				}
			}
		}
	}
}

// TestKeysAreSent: what hides a header from net/http does not hide it from the server, nor change
// the caller's request.
func TestKeysAreSent(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Idempotency-Key")+r.Header.Get("X-Idempotency-Key"))
	}))
	t.Cleanup(server.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k")
	resp, err := egress.WithHeaders(local(t), map[string]string{"X-Idempotency-Key": "x"}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "kx" || req.Header.Get("Idempotency-Key") != "k" || len(req.Header) != 1 {
		t.Errorf("the server got %q, %v; the caller has %v", got, err, req.Header)
	}
}

// TestAPostArrivesOnceByHTTP2, and is sent again only if the server has said that it has not looked
// at it, as servers do which let no connection grow old.
func TestAPostArrivesOnceByHTTP2(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first    func(f *http2.Framer, stream uint32) // what the server makes of the first request, before it ends the connection
		requests int32
	}{
		"it has not looked at it":    {func(f *http2.Framer, _ uint32) { _ = f.WriteGoAway(0, http2.ErrCodeNo, nil) }, 2},
		"it has, and closes":         {func(*http2.Framer, uint32) {}, 1},
		"it has, and says goodbye":   {func(f *http2.Framer, stream uint32) { _ = f.WriteGoAway(stream, http2.ErrCodeNo, nil) }, 1},
		"it has, and resets":         {func(f *http2.Framer, stream uint32) { _ = f.WriteRSTStream(stream, http2.ErrCodeInternal) }, 1},
		"it has, and cancels":        {func(f *http2.Framer, stream uint32) { _ = f.WriteRSTStream(stream, http2.ErrCodeCancel) }, 1},
		"it has, and goes in a fury": {func(f *http2.Framer, stream uint32) { _ = f.WriteGoAway(stream, http2.ErrCodeInternal, nil) }, 1},
	} {
		var requests atomic.Int32
		address := rawHTTP2(t, func(f *http2.Framer, stream uint32) (stays bool) {
			if requests.Add(1) == 1 {
				c.first(f, stream)
				return false
			}
			var head bytes.Buffer
			_ = hpack.NewEncoder(&head).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true})
			return true
		})
		client := local(t)
		client.Transport.(egress.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // its own server
		_, _, err := post(t, client, "https://"+address)
		if n := requests.Load(); n != c.requests || (err == nil) != (n == 2) {
			t.Errorf("%s: %d requests came, want %d: %v", name, n, c.requests, err)
		}
	}
}

// rawHTTP2 is a server that answers the requests of its connections frame by frame as told.
func rawHTTP2(t *testing.T, answer func(f *http2.Framer, stream uint32) (stays bool)) (address string) {
	t.Helper()
	some := httptest.NewTLSServer(nil) // for its certificate
	some.Close()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: some.TLS.Certificates, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	serve := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		f := http2.NewFramer(conn, conn)
		_ = f.WriteSettings()
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if data, ok := frame.(*http2.DataFrame); ok && data.StreamEnded() && !answer(f, data.StreamID) {
				return
			}
		}
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return listener.Addr().String()
}
