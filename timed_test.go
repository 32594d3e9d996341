package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// connect is a connection that holds little of what it is sent.
func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) }), err)
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(address, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second)) // no measure of anything
	return conn
}

// A client that takes nothing of its answers is cut off. What it goes on sending shows when.
func TestAClientMustTakeItsAnswers(t *testing.T) {
	t.Parallel()
	url := serveInProcess(t, func(s *Settings) { s.takenWithin = 50 * time.Millisecond })
	many := bytes.Repeat([]byte("GET /graphiql/app.js HTTP/1.1\r\nHost: x\r\n\r\n"), 100)
	for conn, err := connect(t, url), error(nil); err == nil; {
		if _, err = conn.Write(many); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("it was not cut off")
		}
	}
}

// Whoever takes its answers gets them whole.
func TestAClientGetsItsWholeAnswer(t *testing.T) {
	t.Parallel()
	const within = 20 * time.Second // no measure of anything
	body := bytes.Repeat([]byte("x"), 1<<20)
	bound, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: within, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/copied" {
			_, _ = io.Copy(w, bytes.NewReader(body))
		} else {
			_, _ = w.Write(body)
		}
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(timedListener{bound, within}) }()
	t.Cleanup(func() {
		_ = server.Shutdown(context.Background())
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	conn := connect(t, bound.Addr().String())
	answers := bufio.NewReader(conn)
	for _, path := range []string{"/", "/copied"} {
		if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%s: %d bytes, %v", path, len(got), err)
		}
	}
}
