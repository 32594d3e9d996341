package store

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/uptrace/bun"
)

// Lists are Relay connections, paged by keyset: a page goes on after the id that the last one ended with, so that it stays
// right while rows are added, and an index finds it.

// PageInput asks for the first First rows after the cursor After.
type PageInput struct {
	First int
	After *string
}

// MaxPage is the longest page, and DefaultPage the one of who names no length.
const (
	MaxPage     = 100
	DefaultPage = 20
)

// PageInfo says where a page lies in its list (Relay).
type PageInfo struct {
	HasNextPage     bool
	HasPreviousPage bool
	StartCursor     *string
	EndCursor       *string
}

// Edge is a row of a page with its cursor.
type Edge[T any] struct {
	Cursor string
	Node   T
}

type order string

const (
	oldestFirst order = ""
	newestFirst order = " DESC"
)

// validate finds the faults of a page's arguments.
func (p PageInput) validate() Faults {
	if p.First < 0 || p.First > MaxPage {
		return valueError(fmt.Sprintf("first must be between 0 and %d", MaxPage)).Under("first")
	}
	return nil
}

const rowCursor = "id:"

// keyset adds the page's WHERE, ORDER and LIMIT to q, one row more than asked for: that it is there means that there is a
// next page.
func (p PageInput) keyset(q *bun.SelectQuery, column string, o order) (*bun.SelectQuery, error) {
	q, err := p.after(q, column, o)
	if err != nil {
		return nil, err
	}
	return q.OrderExpr("?TableAlias.?"+string(o), bun.Ident(column)).Limit(int64(p.First + 1)), nil
}

// after adds the page's WHERE alone.
func (p PageInput) after(q *bun.SelectQuery, column string, o order) (*bun.SelectQuery, error) {
	faults := p.validate()
	if p.After != nil {
		raw, err := base64.RawURLEncoding.DecodeString(*p.After)
		id, ok := strings.CutPrefix(string(raw), rowCursor)
		switch {
		case err != nil || !ok || !storable(id):
			faults = append(faults, valueError("this is not a cursor of this list").Under("after")...)
		case o == newestFirst:
			q = q.Where("?TableAlias.? < ?", bun.Ident(column), id)
		default:
			q = q.Where("?TableAlias.? > ?", bun.Ident(column), id)
		}
	}
	return q, faults.Err()
}

// pagesAtOnce is how many pages one statement reads: SQLite takes 500 parts of a compound statement.
const pagesAtOnce = 100

// Place is what stood behind the page's After cursor; empty for the first page.
func (p PageInput) Place() (string, Faults) {
	faults := p.validate()
	if p.After == nil {
		return "", faults
	}
	raw, err := base64.RawURLEncoding.DecodeString(*p.After)
	place, ok := strings.CutPrefix(string(raw), rowCursor)
	if err != nil || !ok || place == "" || !storable(place) {
		faults = append(faults, valueError("this is not a cursor of this list").Under("after")...)
	}
	return place, faults
}

// PageOf makes the edges of a page out of rows, of which there may be one more than it takes: then there is a next page.
// place is what a cursor of the list stands for.
func PageOf[T any](rows []T, p PageInput, place func(T) string) ([]Edge[T], PageInfo) {
	return pageOf(rows, p, place)
}

// Nodes are the rows of edges.
func Nodes[T any](edges []Edge[T]) []T { return nodes(edges) }

// AtOnce is one statement of several pages: each comes from its index.
func (s *Store) AtOnce(pages ...*bun.SelectQuery) *bun.RawQuery { return s.atOnce(pages...) }

// EachAtOnce makes the page of each key, and has up to 100 of them read together. A key may stand there twice.
func (s *Store) EachAtOnce(keys []string, page func(key string) (*bun.SelectQuery, error), read func(pages []*bun.SelectQuery, keys []string) error) error {
	return s.eachAtOnce(keys, page, read)
}

// eachAtOnce makes the page of each key, and has up to 100 of them read together. A key may stand there twice.
func (s *Store) eachAtOnce(keys []string, page func(key string) (*bun.SelectQuery, error), read func(pages []*bun.SelectQuery, keys []string) error) error {
	for chunk := range slices.Chunk(slices.Compact(slices.Sorted(slices.Values(keys))), pagesAtOnce) {
		pages := make([]*bun.SelectQuery, len(chunk))
		for i, key := range chunk {
			q, err := page(key)
			if err != nil {
				return err
			}
			pages[i] = q
		}
		if err := read(pages, chunk); err != nil {
			return err
		}
	}
	return nil
}

// atOnce is one statement of several pages: each comes from its index.
func (s *Store) atOnce(pages ...*bun.SelectQuery) *bun.RawQuery {
	query, args := together(pages)
	return s.read.NewRaw(query, args...)
}

// together is the text of that statement, and its arguments.
func together(pages []*bun.SelectQuery) (query string, args []any) {
	parts := make([]string, len(pages))
	for i, q := range pages {
		parts[i], args = fmt.Sprintf("SELECT * FROM (?) AS page%d", i), append(args, q)
	}
	return strings.Join(parts, " UNION ALL "), args
}

// pageOf makes the edges of the rows that keyset selected.
func pageOf[T any](rows []T, p PageInput, id func(T) string) ([]Edge[T], PageInfo) {
	more := len(rows) > p.First
	if more {
		rows = rows[:p.First]
	}
	edges := make([]Edge[T], len(rows))
	for i, row := range rows {
		edges[i] = Edge[T]{Cursor: base64.RawURLEncoding.EncodeToString([]byte(rowCursor + id(row))), Node: row}
	}
	return edges, pageInfo(edges, more, p.After != nil)
}

func pageInfo[T any](edges []Edge[T], next, previous bool) PageInfo {
	info := PageInfo{HasNextPage: next, HasPreviousPage: previous}
	if len(edges) > 0 {
		info.StartCursor, info.EndCursor = &edges[0].Cursor, &edges[len(edges)-1].Cursor
	}
	return info
}

func nodes[T any](edges []Edge[T]) []T {
	out := make([]T, len(edges))
	for i, e := range edges {
		out[i] = e.Node
	}
	return out
}
