package webhook

import (
	"slices"
	"sync/atomic"
	"time"
)

const (
	maxTokens = 128                    // attempts that may cost CPU time at once
	brief     = 25 * time.Millisecond  // an attempt that waits for its answer hands its token back after this
	youth     = 200 * time.Millisecond // and any other one after this, unless it was answered
)

// tokens keep attempts from taking the CPU all at once, and endpoints that answer at once from having more connections than it
// takes: each attempt holds one while it is prepared, connects, writes its request and, for a moment, waits. To wait for longer
// costs no token, for it costs no CPU time: slow endpoints keep no others waiting. One that was answered keeps its token until
// there is a permit for its outcome. mu of the Worker guards them.
type tokens struct {
	pool
	young []*token // those that were taken, but for some that are back
}

// token lets one attempt be made.
type token struct {
	b        *business
	began    time.Time
	written  atomic.Bool // the request is
	answered atomic.Bool
	back     bool
}

// left says whether there are any for a business, having taken back those of attempts that are no longer young.
func (ts *tokens) left(b *business, now time.Time) bool {
	if ts.may(b.young, 1) && len(ts.young) < 2*maxTokens {
		return true
	}
	ts.young = slices.DeleteFunc(ts.young, func(t *token) bool {
		if age := now.Sub(t.began); (age > youth || age > brief && t.written.Load()) && !t.answered.Load() {
			ts.giveBack(t)
		}
		return t.back
	})
	return ts.may(b.young, 1)
}

func (ts *tokens) take(t *token, b *business, now time.Time) {
	t.b, t.began = b, now
	ts.used++
	b.young++
	ts.young = append(ts.young, t)
}

func (ts *tokens) giveBack(t *token) {
	if !t.back {
		t.back = true
		ts.used--
		t.b.young--
	}
}
