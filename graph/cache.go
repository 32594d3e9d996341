package graph

import (
	"container/list"
	"context"
	"sync"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"

	"parley/store"
)

const (
	// A parsed document takes some 64 times the bytes of its text, so that is what it counts for: 32 MiB are some thousand usual
	// documents.
	parsedBytes  = 32 << 20
	parsedFactor = 64

	persistedBytes = 4 << 20 // of persisted documents' texts

	entryBytes = 256 // what an entry costs beside its texts
)

// cache keeps what was last used, as much as fits into so many bytes. What would take more than a sixteenth of it is not kept:
// one document must not push out all others.
type cache[T any] struct {
	limit int
	size  func(key string, value T) int

	mu      sync.Mutex // guards what follows
	held    int
	order   *list.List // of *entry[T], the last used first
	entries map[string]*list.Element
}

type entry[T any] struct {
	key   string
	value T
	size  int
}

var (
	_ graphql.Cache[*ast.QueryDocument] = forViewers[*ast.QueryDocument]{}
	_ graphql.Cache[string]             = forViewers[string]{}
)

// forViewers is a cache that all callers read, and to which none but those with a credential add: others could push out what
// every business's clients use.
type forViewers[T any] struct{ *cache[T] }

// Add keeps a viewer's value.
func (c forViewers[T]) Add(ctx context.Context, key string, value T) {
	if _, err := store.ViewerOf(ctx); err == nil {
		c.cache.Add(ctx, key, value)
	}
}

func newCache[T any](limit int, size func(key string, value T) int) *cache[T] {
	return &cache[T]{limit: limit, size: size, order: list.New(), entries: map[string]*list.Element{}}
}

// parsedDocuments keeps documents parsed and validated, by their text.
func parsedDocuments() forViewers[*ast.QueryDocument] {
	size := func(text string, _ *ast.QueryDocument) int { return parsedFactor*len(text) + entryBytes }
	return forViewers[*ast.QueryDocument]{newCache(parsedBytes, size)}
}

// persistedDocuments keeps the texts of automatic persisted queries, by their hash.
func persistedDocuments() forViewers[string] {
	return forViewers[string]{newCache(persistedBytes, func(hash, text string) int { return len(hash) + len(text) + entryBytes })}
}

// Get finds what was kept for the key.
func (c *cache[T]) Get(_ context.Context, key string) (value T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.entries[key]
	if !ok {
		return value, false
	}
	c.order.MoveToFront(at)
	return at.Value.(*entry[T]).value, true
}

// Add keeps a value, and forgets what was not used for the longest time.
func (c *cache[T]) Add(_ context.Context, key string, value T) {
	size := c.size(key, value)
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.entries[key]; ok {
		c.remove(at)
	}
	if size > c.limit/16 {
		return
	}
	c.entries[key] = c.order.PushFront(&entry[T]{key, value, size})
	for c.held += size; c.held > c.limit; {
		c.remove(c.order.Back())
	}
}

func (c *cache[T]) remove(at *list.Element) {
	e := c.order.Remove(at).(*entry[T])
	delete(c.entries, e.key)
	c.held -= e.size
}
