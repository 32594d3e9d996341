package openai_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"parley/agent"
	"parley/agent/openai"
)

func TestFailures(t *testing.T) {
	t.Parallel()
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.Header().Set("x-should-retry", "true")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	type outcome struct{ failed, refused, timeout bool }
	failed, refused := outcome{failed: true}, outcome{failed: true, refused: true}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   outcome
	}{
		"400":                {status(400, `{"error":{"message":"no","type":"invalid_request_error","param":"temperature","code":"x"}}`), refused},
		"401":                {status(401, `{"error":{"message":"bad key"}}`), refused},
		"401 without JSON":   {status(401, "no"), refused},
		"404 without a body": {status(404, ""), refused},
		"422":                {status(422, "{}"), refused},
		"408":                {status(408, "{}"), failed},
		"409":                {status(409, "{}"), failed},
		"425":                {status(425, "{}"), failed},
		"429":                {status(429, `{"error":{"message":"slow down"}}`), failed},
		"500":                {status(500, "oops"), failed},
		"503":                {status(503, whole), failed},
		"204":                {status(204, ""), failed},
		"a redirect":         {status(307, whole), failed},
		"a whole 302":        {status(302, whole), failed},
		"nothing":            {said(""), failed},
		"null":               {said("null"), failed},
		"not JSON":           {said("<html>"), failed},
		"half of it":         {said(whole[:len(whole)/2]), failed},
		"another document":   {said(`[1,2]`), failed},
		"no choices":         {said(`{"model":"m"}`), failed},
		"empty choices":      {said(`{"choices":[]}`), failed},
		"choices of no kind": {said(`{"choices":"x"}`), failed},
		"null choice":        {said(`{"choices":[null]}`), failed},
		"no message":         {said(`{"choices":[{"finish_reason":"stop"}]}`), failed},
		"null content":       {said(`{"choices":[{"finish_reason":"stop","message":{"content":null}}]}`), failed},
		"blank content":      {said(`{"choices":[{"finish_reason":"stop","message":{"content":" \n"}}]}`), failed},
		"no finish_reason":   {said(`{"choices":[{"message":{"content":"Hello"}}]}`), failed},
		"null finish_reason": {said(`{"choices":[{"message":{"content":"Hello"},"finish_reason":null}]}`), failed},
		"reset in mid-body":  {reset(whole[:40], 400), failed},
		"reset at once":      {reset("", 0), failed},
		"closed in mid-body": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "400")
			_, _ = io.WriteString(w, whole[:40])
		}, failed},
		"an endless body": {endless(`{"choices":[`, strings.Repeat(" ", 4096)), failed},
		"an endless 400": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			endless("", strings.Repeat("x", 4096))(w, r)
		}, refused},
		"a hang":               {hang(""), outcome{timeout: true}},
		"a hang in mid-body":   {hang(whole[:40]), outcome{timeout: true}},
		"a byte now and then":  {drip, outcome{timeout: true}},
		"an enormous number":   {said(`{"created":` + strings.Repeat("9", 1<<20) + `e,"choices":[]}`), failed},
		"a very deep document": {said(strings.Repeat(`[`, 1<<20)), failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newRecorder(t, c.answer)
			ctx, limit := t.Context(), 30*time.Second
			if c.want.timeout {
				limit = 100 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			reply, err := operated(t, server.URL).Generate(ctx, ask("Hi"))
			got := outcome{errors.Is(err, agent.ErrModelFailed), errors.Is(err, agent.ErrModelRefused), errors.Is(err, agent.ErrModelTimeout)}
			if got != c.want || reply != (agent.Reply{}) {
				t.Errorf("got %+v (%v), %+v, want %+v", got, err, reply, c.want)
			}
			if len(err.Error()) > 5000 || strings.Contains(err.Error(), operatorKey) {
				t.Errorf("an error of %d bytes, or one with the key: %.200s", len(err.Error()), err)
			}
			if n := len(server.seen()); n != 1 && (!c.want.timeout || n != 0) { // on a busy machine its time may be over before
				t.Errorf("%d requests were sent, want 1", n)
			}
		})
	}
}

// reset sends some of a body and resets the connection.
func reset(some string, length int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, out, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		if length > 0 {
			_, _ = fmt.Fprintf(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", length, some)
			_ = out.Flush()
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
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

func TestACancelledCallerIsNoTimeout(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	server := newRecorder(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	_, err := operated(t, server.URL).Generate(ctx, ask("Hi"))
	if !errors.Is(err, agent.ErrModelFailed) || errors.Is(err, agent.ErrModelTimeout) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestTimeoutSecondsShortenTheDeadline(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[int]time.Duration{1: time.Second, 7: 7 * time.Second, 3600: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			silent := &http.Client{Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
				<-req.Context().Done()
				return nil, req.Context().Err()
			})}
			model := openai.New(openai.Config{Client: silent, OperatorClient: silent})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			req := ask("Hi")
			req.Agent.Model.TimeoutSeconds = &timeout
			start := time.Now()
			_, err := model.Generate(ctx, req)
			if took := time.Since(start); !errors.Is(err, agent.ErrModelTimeout) || errors.Is(err, agent.ErrModelFailed) || took != want {
				t.Errorf("%d s: got %v after %v, want a timeout after %v", timeout, err, took, want)
			}
		})
	}
}

// FuzzAnswer: whatever a server says, there is a reply with a text, or one of agent's errors.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{whole, "", "null", `{"choices":[{"message":{"content":[{"type":"text","text":"x"}]},"finish_reason":{}}]}`, `{"choices":{}}`} {
		f.Add(200, seed)
		f.Add(429, seed)
	}
	f.Fuzz(func(t *testing.T, code int, body string) {
		c := &http.Client{Transport: roundTrip(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
		}), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		reply, err := openai.New(openai.Config{OperatorClient: c, APIKey: operatorKey}).Generate(t.Context(), ask("Hi"))
		if (err == nil) != (strings.TrimSpace(reply.Text) != "") || err != nil && !errors.Is(err, agent.ErrModelFailed) {
			t.Errorf("got %+v, %v", reply, err)
		}
	})
}
