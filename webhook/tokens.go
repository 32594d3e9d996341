package webhook

import (
	"slices"
	"sync/atomic"
	"time"
)

const (
	maxTokens = 64                     // attempts that may cost CPU time at once
	brief     = 25 * time.Millisecond  // an attempt that waits for its answer hands its token back after this
	youth     = 200 * time.Millisecond // and any other one after this
)

// tokens keep attempts from taking the CPU all at once, and endpoints that answer at once from having more connections than it
// takes: each attempt holds one while it is prepared, connects, writes its request and, for a moment, waits. To wait for longer
// costs no token, for it costs no CPU time: an endpoint that takes 190 ms to answer keeps no other waiting. They are the scheduler's
// alone.
type tokens struct {
	young []*token    // those that were taken, but for some that are back
	held  int         // of them
	again *time.Timer // runs while there are none
}

// token lets one attempt be made.
type token struct {
	began   time.Time
	written atomic.Bool // the request is
	back    bool
}

func newTokens() tokens {
	again := time.NewTimer(youth)
	again.Stop()
	return tokens{again: again}
}

// left says whether there are any, having taken back those of attempts that are no longer young. While there are none, again fires
// when one may be.
func (ts *tokens) left(now time.Time) bool {
	for len(ts.young) > 0 && ts.young[0].back {
		ts.young = ts.young[1:]
	}
	if ts.held >= maxTokens && now.Sub(ts.young[0].began) > brief || len(ts.young) >= 2*maxTokens {
		ts.young = slices.DeleteFunc(ts.young, func(t *token) bool {
			if age := now.Sub(t.began); age > youth || age > brief && t.written.Load() {
				ts.giveBack(t)
			}
			return t.back
		})
	}
	if ts.held >= maxTokens {
		ts.again.Reset(brief / 2)
	}
	return ts.held < maxTokens
}

func (ts *tokens) take(now time.Time) *token {
	t := &token{began: now}
	ts.held++
	ts.young = append(ts.young, t)
	return t
}

func (ts *tokens) giveBack(t *token) {
	if !t.back {
		t.back = true
		ts.held--
	}
}
