package webhook

import (
	"context"
	"crypto/tls"
	"net/http/httptrace"
	"sync"
	"time"

	"parley/store/hook"
)

// trace takes the times of one attempt. Each is measured for itself: a connection that is used again has no look-up, connect
// or handshake, and where several addresses are dialled at once, it is the one that answered that counts.
type trace struct {
	start time.Time
	token *token // is told when the request is written

	mu      sync.Mutex // guards what follows: a dial may outlive its request
	got     bool       // there is a connection: a dial that goes on was not needed
	began   map[string]time.Time
	looking time.Time
	shaking time.Time
	made    hook.Timings
}

func newTrace(start time.Time, held *token) *trace { return &trace{start: start, token: held} }

// on is ctx with the trace in it.
func (t *trace) on(ctx context.Context) context.Context {
	locked := func(note func(now time.Time)) {
		t.mu.Lock()
		defer t.mu.Unlock()
		note(time.Now())
	}
	dialling := func(note func(now time.Time)) {
		locked(func(now time.Time) {
			if !t.got {
				note(now)
			}
		})
	}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn:  func(string) { locked(func(time.Time) { t.got = false }) }, // again, where the one that was used before was dead
		DNSStart: func(httptrace.DNSStartInfo) { dialling(func(now time.Time) { t.looking = now }) },
		DNSDone: func(httptrace.DNSDoneInfo) {
			dialling(func(now time.Time) { t.made.DNSMs = milliseconds(t.looking, now) })
		},
		ConnectStart: func(_, addr string) {
			dialling(func(now time.Time) {
				if t.began == nil { // most attempts dial nothing
					t.began = map[string]time.Time{}
				}
				t.began[addr], t.made.TLSMs = now, nil
			})
		},
		ConnectDone: func(_, addr string, err error) {
			dialling(func(now time.Time) {
				if err == nil {
					t.made.ConnectMs, t.made.RemoteAddress = milliseconds(t.began[addr], now), &addr
				}
			})
		},
		TLSHandshakeStart: func() { dialling(func(now time.Time) { t.shaking = now }) },
		TLSHandshakeDone: func(tls.ConnectionState, error) {
			dialling(func(now time.Time) { t.made.TLSMs = milliseconds(t.shaking, now) })
		},
		GotConn: func(c httptrace.GotConnInfo) {
			locked(func(time.Time) {
				t.got = true
				if c.Reused { // another request's dial may have been noted here, which was then not needed
					t.made.DNSMs, t.made.ConnectMs, t.made.TLSMs = nil, nil, nil
				}
				addr := c.Conn.RemoteAddr().String()
				t.made.RemoteAddress = &addr
			})
		},
		WroteRequest: func(httptrace.WroteRequestInfo) { t.token.written.Store(true) },
		GotFirstResponseByte: func() {
			locked(func(now time.Time) { t.made.FirstByteMs = milliseconds(t.start, now) })
		},
	})
}

// timings are the times so far.
func (t *trace) timings() hook.Timings {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.made
}

func milliseconds(from, to time.Time) *int {
	if from.IsZero() {
		return nil
	}
	ms := int(to.Sub(from).Milliseconds())
	return &ms
}
