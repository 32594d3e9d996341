package graph

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/99designs/gqlgen/graphql"
)

// loads are what the resolvers of one response have read for many objects at once.
//
// A field that needs a query of its own is resolved for all objects that stand at the same place of the response, in whatever
// page: the first of them reads for all. Which those are is known without waiting for any: they are what the last such field
// above them has read, or the list that the operation itself asked for. So a response takes one query for each such field of the
// operation, however long its pages are. gqlgen's own batch resolvers see the list right above alone: no connection's edges,
// and of fifty pages each for itself.
type loads struct {
	mu sync.Mutex // guards at
	at map[string]*load
}

// load is one field, at one place of the response.
type load struct {
	once sync.Once
	of   any // map[string]R
	rows []any
	err  error
}

var errUnread = errors.New("a read for many objects panicked")

type loadsKey struct{}

// oneLoad is the gqlgen extension that gives each response its loads.
type oneLoad struct{}

var _ interface {
	graphql.HandlerExtension
	graphql.ResponseInterceptor
} = oneLoad{}

func (oneLoad) ExtensionName() string { return "Loads" }

func (oneLoad) Validate(graphql.ExecutableSchema) error { return nil }

func (oneLoad) InterceptResponse(ctx context.Context, next graphql.ResponseHandler) *graphql.Response {
	return next(context.WithValue(ctx, loadsKey{}, &loads{at: map[string]*load{}}))
}

// together resolves a field of obj by its key: read gets the keys of all objects at its place, each once, and returns what they
// stand for. Objects without a key have none.
func together[T, R any](ctx context.Context, obj T, key func(T) string, read func(keys []string) (map[string]R, error)) (R, error) {
	l, peers := loadOf(ctx, obj)
	l.once.Do(func() {
		var keys []string
		seen := map[string]bool{"": true}
		for _, o := range slices.Concat(peers(), []T{obj}) { // the peers' slice is shared
			if k := key(o); !seen[k] {
				seen[k] = true
				keys = append(keys, k)
			}
		}
		of := map[string]R{}
		if len(keys) > 0 {
			l.err = errUnread // stays if read panics: the first reports that, and the others must not show nothing
			of, l.err = read(keys)
		}
		l.of = of
		for _, k := range keys {
			if row, ok := of[k]; ok {
				l.rows = append(l.rows, row)
			}
		}
	})
	of, _ := l.of.(map[string]R)
	return of[key(obj)], l.err
}

// loadOf finds the load of the field that is being resolved, and the objects of obj's type that it is for.
func loadOf[T any](ctx context.Context, _ T) (l *load, peers func() []T) {
	all, ok := ctx.Value(loadsKey{}).(*loads)
	field := graphql.GetFieldContext(ctx)
	if !ok || field == nil {
		return &load{}, func() []T { return nil }
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	place := placeOf(field)
	if l = all.at[place]; l == nil {
		l = &load{}
		all.at[place] = l
	}
	return l, func() (rows []T) {
		all.mu.Lock()
		defer all.mu.Unlock()
		for above := field.Parent; above != nil; above = above.Parent {
			if above.Field.Field == nil || above.Index != nil {
				continue
			}
			if from := all.at[placeOf(above)]; from != nil {
				for _, row := range from.rows {
					rows = append(rows, rowsOf[T](row)...)
				}
				return rows
			}
			if above.Object == "Query" || above.Object == "Mutation" {
				return rowsOf[T](above.Result)
			}
		}
		return nil
	}
}

// placeOf is a field's place in the response: the response keys on the way to it, without the places in lists.
func placeOf(field *graphql.FieldContext) string {
	var place strings.Builder
	for ; field != nil; field = field.Parent {
		if field.Field.Field != nil && field.Index == nil {
			place.WriteString(field.Field.Alias)
			place.WriteByte('<')
		}
	}
	return place.String()
}

// rowsOf are the objects of type T in a resolver's result.
func rowsOf[T any](result any) []T {
	switch r := result.(type) {
	case []T:
		return r
	case interface{ Nodes() []T }:
		return r.Nodes()
	case T:
		return []T{r}
	}
	return nil
}
