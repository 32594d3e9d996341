package transport

import (
	"context"
	"sync"
)

// Quota bounds how many WebSockets and event streams are open at a time for one account.
type Quota struct {
	Of  func(ctx context.Context) (account string) // by the context that operations run in; empty: not bounded
	Max int

	mu   sync.Mutex // guards open
	open map[string]int
}

const reasonTooMany = "this credential has as many connections open as it may: close one first"

// enter counts a connection in, until leave is called. It is false if there are too many.
func (q *Quota) enter(ctx context.Context) (leave func(), ok bool) {
	if q == nil {
		return func() {}, true
	}
	account := q.Of(ctx)
	if account == "" {
		return func() {}, true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.open[account] >= q.Max {
		return nil, false
	}
	if q.open == nil {
		q.open = map[string]int{}
	}
	q.open[account]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.open[account]--; q.open[account] == 0 {
			delete(q.open, account)
		}
	}, true
}
