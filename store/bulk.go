package store

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Bulk is a statement over rows, which stand in its text as `{rows}`, the last of its FROM, and
// their columns as `new.name`. All rows that a batch's writes queue for it PostgreSQL takes as an
// array a column, and runs it once: a third of the work of one statement each. SQLite runs it for
// each row, with its values where `new` stands.
type Bulk struct {
	columns       []Column
	remote, local string // PostgreSQL's text, and SQLite's
	order         []int  // of the columns, as SQLite's text takes them
}

// Column is one of a Bulk's rows: its name, and its type in PostgreSQL, which is text, bigint or boolean.
type Column struct{ Name, Type string }

var columnOfNew = regexp.MustCompile(`\bnew\.([a-z_]+)`)

// NewBulk makes a statement. What it returns, if anything, begins with `new.row`, a column that is
// added and counts the rows.
func NewBulk(text string, columns ...Column) *Bulk {
	b := &Bulk{columns: append(slices.Clone(columns), Column{"row", "bigint"})}
	arrays, names := make([]string, len(b.columns)), make([]string, len(b.columns))
	for i, c := range b.columns {
		arrays[i], names[i] = "$"+strconv.Itoa(i+1)+"::"+c.Type+"[]", c.Name
	}
	b.remote = strings.Replace(text, "{rows}", "unnest("+strings.Join(arrays, ", ")+") AS new("+strings.Join(names, ", ")+")", 1)
	local := strings.NewReplacer("FROM {rows}", "", ", {rows}", "", "new.row, ", "").Replace(text)
	b.local = columnOfNew.ReplaceAllStringFunc(local, func(found string) string {
		name := strings.TrimPrefix(found, "new.")
		b.order = append(b.order, slices.IndexFunc(columns, func(c Column) bool { return c.Name == name }))
		return "?"
	})
	return b
}

// Bulk queues a row of a Bulk, and tells got what the statement returns of it; nil: it returns
// nothing. Rows are taken in the order of their keys.
func (t *Tx) Bulk(r rank, key string, b *Bulk, row []any, got func(scan func(...any) error) error) {
	q := &query{rank: r, key: key, row: got}
	if t.remote {
		q.bulk, q.args = b, row
	} else {
		q.text, q.args = b.local, make([]any, len(b.order))
		for i, c := range b.order {
			q.args[i] = row[c]
		}
	}
	t.queue = append(t.queue, q)
}

// rowsInOrder locks rows in the order of their keys, before a Bulk changes those of its rank in
// whatever order.
var rowsInOrder = map[rank]string{
	LockSessions: `SELECT id FROM sessions WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE`,
}

// merged is a queue in its order, with the rows of each Bulk as one statement, which comes before
// all others of its rank.
func merged(queue []*query) []*query {
	slices.SortStableFunc(queue, func(a, b *query) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.key, b.key)) })
	rows := map[*Bulk][]*query{}
	keys := map[rank][]string{}
	bulky := map[rank]bool{}
	for _, q := range queue {
		if q.bulk != nil {
			rows[q.bulk] = append(rows[q.bulk], q)
			bulky[q.rank] = true
		}
		if n := len(keys[q.rank]); n == 0 || keys[q.rank][n-1] != q.key {
			keys[q.rank] = append(keys[q.rank], q.key)
		}
	}
	if len(rows) == 0 {
		return queue
	}
	all := make([]*query, 0, len(queue))
	for len(queue) > 0 {
		r := queue[0].rank
		n := slices.IndexFunc(queue, func(q *query) bool { return q.rank != r })
		if n < 0 {
			n = len(queue)
		}
		if text := rowsInOrder[r]; text != "" && bulky[r] && len(keys[r]) > 1 {
			all = append(all, &query{text: text, args: []any{keys[r]}})
		}
		for _, q := range queue[:n] {
			if of := rows[q.bulk]; len(of) > 0 {
				all = append(all, q.bulk.over(of))
				delete(rows, q.bulk)
			}
		}
		for _, q := range queue[:n] {
			if q.bulk == nil {
				all = append(all, q)
			}
		}
		queue = queue[n:]
	}
	return all
}

// over is the statement over some rows.
func (b *Bulk) over(rows []*query) *query {
	one := &query{text: b.remote, args: make([]any, len(b.columns))}
	for c, column := range b.columns {
		one.args[c] = arrayOf(column.Type, len(rows), func(i int) any {
			if c == len(b.columns)-1 {
				return int64(i)
			}
			return rows[i].args[c]
		})
	}
	if rows[0].row != nil {
		one.of = rows
	}
	return one
}

// tell tells each row's writer what the statement returned of it.
func tell(rows pgx.Rows, writers []*query) error {
	defer rows.Close()
	var i int64
	var columns []any // nil: to be skipped
	scan := func(into ...any) error { return rows.Scan(append([]any{nil}, into...)...) }
	for rows.Next() {
		// Not before there is a row: a connection that was lost has not even descriptions of them.
		if columns == nil {
			columns = make([]any, len(rows.FieldDescriptions()))
			columns[0] = &i
		}
		if err := rows.Scan(columns...); err != nil {
			return err
		}
		if err := writers[i].row(scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
