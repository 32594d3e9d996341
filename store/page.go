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
	if err := faults.Err(); err != nil {
		return nil, err
	}
	return q.OrderExpr("?TableAlias.?"+string(o), bun.Ident(column)).Limit(int64(p.First + 1)), nil
}

// atOnce is how many pages one statement reads: SQLite takes 500 parts of a compound statement.
const atOnce = 100

// eachAtOnce reads the page of each key, which page makes, in one statement for up to 100 of them: each page comes from its
// index. A key may stand there twice.
func (s *Store) eachAtOnce(keys []string, page func(key string) (*bun.SelectQuery, error), read func(q *bun.RawQuery) error) error {
	for chunk := range slices.Chunk(slices.Compact(slices.Sorted(slices.Values(keys))), atOnce) {
		parts, pages := make([]string, len(chunk)), make([]any, len(chunk))
		for i, key := range chunk {
			q, err := page(key)
			if err != nil {
				return err
			}
			parts[i], pages[i] = fmt.Sprintf("SELECT * FROM (?) AS page%d", i), q
		}
		if err := read(s.read.NewRaw(strings.Join(parts, " UNION ALL "), pages...)); err != nil {
			return err
		}
	}
	return nil
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
