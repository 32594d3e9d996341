package modeltest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"parley/egress"
)

// Server is a model's server that remembers what it was asked.
type Server struct {
	*httptest.Server

	mu   sync.Mutex // guards seen
	seen []Request
}

// Request is what a Server was asked.
type Request struct {
	Path   string
	Header http.Header
	Body   string
}

// NewServer starts a server that answers so.
func NewServer(t testing.TB, answer http.HandlerFunc) *Server {
	s := &Server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.seen = append(s.seen, Request{Path: r.URL.Path, Header: r.Header.Clone(), Body: string(body)})
		s.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// Seen is what it was asked so far.
func (s *Server) Seen() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// Client is a guarded client that may go to this machine.
func Client(t testing.TB) *http.Client {
	t.Helper()
	guard, err := egress.NewGuard(egress.Policy{Trusted: []string{"127.0.0.0/8"}})
	if err != nil {
		t.Fatal(err)
	}
	c := egress.NewClient(guard, 4)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// Says answers with a body.
func Says(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func status(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.Header().Set("x-should-retry", "true") // which the SDKs would obey
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// inBytes answers byte by byte, so that every event, line and character is cut through.
func inBytes(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := range len(body) {
			_, _ = w.Write([]byte{body[i]})
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// reset begins an answer and resets the connection.
func reset(begin string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, out, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		if begin != "" {
			_, _ = fmt.Fprintf(out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s", len(begin)+400, begin)
			_ = out.Flush()
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
}

// cut begins an answer and closes the connection.
func cut(begin string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(begin)+400))
		_, _ = io.WriteString(w, begin)
	}
}

func endless(first, then string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, first)
		for err == nil {
			_, err = io.WriteString(w, then)
		}
	}
}

func hang(first string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if first != "" {
			_, _ = io.WriteString(w, first)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	}
}

// switches says that it speaks another protocol from now on, and says nothing in it.
func switches(w http.ResponseWriter, _ *http.Request) {
	conn, out, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = out.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	_ = out.Flush()
	_, _ = io.Copy(io.Discard, out)
}

// drip sends a byte now and then, so that no single read takes long.
func drip(w http.ResponseWriter, r *http.Request) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
			_, _ = io.WriteString(w, " ")
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// RoundTrip is a transport.
type RoundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f RoundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func join(events []string) string { return strings.Join(events, "") }
