package graph

import (
	"context"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"

	"parley/lru"
	"parley/store"
)

const (
	// A parsed document takes some 64 times the bytes of its text, so that is what it counts for:
	// 32 MiB are some thousand usual documents.
	parsedBytes  = 32 << 20
	parsedFactor = 64

	persistedBytes = 4 << 20 // of persisted documents' texts
)

// cache is what all callers read, and to which none but those with a credential add: others could
// push out what every business's clients use. Nor can one business: it takes a quarter from the
// others at most.
type cache[T any] struct {
	kept *lru.Cache[string, T]
	size func(key string, value T) int
}

var (
	_ graphql.Cache[*ast.QueryDocument] = cache[*ast.QueryDocument]{}
	_ graphql.Cache[string]             = cache[string]{}
)

func newCache[T any](limit int, size func(key string, value T) int) cache[T] {
	return cache[T]{lru.New[string, T](limit, limit/4), size}
}

// parsedDocuments keeps documents parsed and validated, by their text.
func parsedDocuments() cache[*ast.QueryDocument] {
	return newCache(parsedBytes, func(text string, _ *ast.QueryDocument) int { return parsedFactor * len(text) })
}

// persistedDocuments keeps the texts of automatic persisted queries, by their hash.
func persistedDocuments() cache[string] {
	return newCache(persistedBytes, func(hash, text string) int { return len(hash) + len(text) })
}

// Get finds what was kept for the key.
func (c cache[T]) Get(_ context.Context, key string) (value T, ok bool) { return c.kept.Get(key) }

// Add keeps a viewer's value.
func (c cache[T]) Add(ctx context.Context, key string, value T) {
	if v, err := store.ViewerOf(ctx); err == nil {
		c.kept.Put(v.BusinessID, key, value, c.size(key, value))
	}
}
