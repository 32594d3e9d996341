package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Gather reads values by key, many at once: while reads are under way, one more is gathered for all
// who ask meanwhile. What it returns was read after it was asked for.
type Gather[V any] struct {
	most  int           // reads at once
	limit time.Duration // of one, whoever has left
	read  func(ctx context.Context, keys []string) (map[string]V, error)

	mu      sync.Mutex // guards what follows
	next    *gathered[V]
	reading int
}

// gathered is one read.
type gathered[V any] struct {
	keys  []string
	asked map[string]bool
	begun chan struct{} // closed when it has begun
	done  chan struct{} // closed when what follows is there
	of    map[string]V
	err   error
}

const gatheredMost = 500 // keys of one read

// NewGather makes a Gather of a function that reads the values of keys, each once, and leaves out
// those that are not there: so many reads at once, each for so long.
func NewGather[V any](most int, limit time.Duration, read func(ctx context.Context, keys []string) (map[string]V, error)) *Gather[V] {
	return &Gather[V]{most: most, limit: limit, read: read}
}

// Get reads a value as it is now, or later. There may be none.
func (g *Gather[V]) Get(ctx context.Context, key string) (value V, found bool, err error) {
	g.mu.Lock()
	for g.next != nil && len(g.next.keys) >= gatheredMost {
		full := g.next.begun
		g.mu.Unlock()
		select {
		case <-full:
		case <-ctx.Done():
			return value, false, context.Cause(ctx)
		}
		g.mu.Lock()
	}
	if g.next == nil {
		g.next = &gathered[V]{asked: map[string]bool{}, begun: make(chan struct{}), done: make(chan struct{})}
	}
	mine := g.next
	if !mine.asked[key] {
		mine.asked[key] = true
		mine.keys = append(mine.keys, key)
	}
	if g.reading < g.most {
		g.reading++
		go g.run(context.WithoutCancel(ctx))
	}
	g.mu.Unlock()
	select {
	case <-mine.done:
	case <-ctx.Done():
		return value, false, context.Cause(ctx)
	}
	value, found = mine.of[key]
	return value, found, mine.err
}

// run reads what is gathered, until nothing is.
func (g *Gather[V]) run(ctx context.Context) {
	for {
		g.mu.Lock()
		b := g.next
		g.next = nil
		if b == nil {
			g.reading--
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		close(b.begun)
		limited, cancel := context.WithTimeout(ctx, g.limit)
		if b.of, b.err = g.read(limited, b.keys); b.err != nil {
			b.err = fmt.Errorf("read %d values at once: %w", len(b.keys), b.err)
		}
		cancel()
		close(b.done)
	}
}
