package webhook

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

const (
	maxTokens = 64                     // attempts that cost CPU time at once
	youth     = 200 * time.Millisecond // an older attempt hands its token back, whatever it is at
)

// tokens keep attempts from taking the CPU all at once: each holds one while it is prepared, connects and writes its request.
// To wait for an answer costs no token, for it costs no CPU time: an endpoint that takes 190 ms to answer keeps no other waiting.
type tokens struct {
	held  atomic.Int64
	freed chan struct{} // one was handed back: one stroke waits at most
	young []*token      // those that may be held, oldest first; the scheduler's alone
}

// token lets one attempt be made.
type token struct {
	began time.Time
	back  atomic.Bool
	of    *tokens
}

func newTokens() tokens { return tokens{freed: make(chan struct{}, 1)} }

// left says whether there are any, having taken back those of attempts that are no longer young.
func (ts *tokens) left(now time.Time) bool {
	for len(ts.young) > 0 {
		if eldest := ts.young[0]; now.Sub(eldest.began) > youth {
			eldest.giveBack()
		} else if !eldest.back.Load() {
			break
		}
		ts.young[0] = nil
		ts.young = ts.young[1:]
	}
	return ts.held.Load() < maxTokens
}

func (ts *tokens) take(now time.Time) *token {
	t := &token{began: now, of: ts}
	ts.held.Add(1)
	ts.young = append(ts.young, t)
	return t
}

// giveBack is for anyone to call, and counts once.
func (t *token) giveBack() {
	if t.back.Swap(true) {
		return
	}
	t.of.held.Add(-1)
	select {
	case t.of.freed <- struct{}{}:
	default:
	}
}

// untilWritten is ctx for a request that gives the token back when it has been written.
func (t *token) untilWritten(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { t.giveBack() },
	})
}
