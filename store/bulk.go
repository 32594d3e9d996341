package store

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bulk is a statement over rows, which stand in its text as `FROM {rows}`, and their columns as `new.name`. PostgreSQL takes
// an array a column, and runs it once for all rows: a third of the work of one statement each. SQLite runs it for each row,
// with its values where `new` stands.
type Bulk struct {
	columns       []Column
	remote, local string // PostgreSQL's text, and SQLite's
	order         []int  // of the columns, as SQLite's text takes them
}

// Column is one of a Bulk's rows: its name, and its type in PostgreSQL, which is text, bigint or boolean.
type Column struct{ Name, Type string }

var columnOfNew = regexp.MustCompile(`\bnew\.([a-z_]+)`)

// NewBulk makes a statement. On PostgreSQL it must return `new.row`, a column that is added and counts the rows.
func NewBulk(text string, columns ...Column) *Bulk {
	b := &Bulk{columns: append(slices.Clone(columns), Column{"row", "bigint"})}
	arrays, names := make([]string, len(b.columns)), make([]string, len(b.columns))
	for i, c := range b.columns {
		arrays[i], names[i] = "$"+strconv.Itoa(i+1)+"::"+c.Type+"[]", c.Name
	}
	b.remote = strings.Replace(text, "{rows}", "unnest("+strings.Join(arrays, ", ")+") AS new("+strings.Join(names, ", ")+")", 1)
	local, _, _ := strings.Cut(text, "RETURNING new.row")
	b.local = columnOfNew.ReplaceAllStringFunc(strings.Replace(local, "FROM {rows}", "", 1), func(found string) string {
		name := strings.TrimPrefix(found, "new.")
		b.order = append(b.order, slices.IndexFunc(columns, func(c Column) bool { return c.Name == name }))
		return "?"
	})
	return b
}

// LockBulk queues a Bulk over some rows, and tells changed which of them it has changed.
func (t *Tx) LockBulk(r rank, b *Bulk, rows [][]any, changed func(i int)) {
	if len(rows) == 0 {
		return
	}
	if !t.remote {
		for i, row := range rows {
			args := make([]any, len(b.order))
			for k, c := range b.order {
				args[k] = row[c]
			}
			t.LockCount(r, "", b.local, args, func(n int64) {
				if n > 0 {
					changed(i)
				}
			})
		}
		return
	}
	args := make([]any, len(b.columns))
	for c, column := range b.columns {
		args[c] = arrayOf(column.Type, len(rows), func(i int) any {
			if c == len(b.columns)-1 {
				return int64(i)
			}
			return rows[i][c]
		})
	}
	t.Lock(r, "", b.remote, args, func(scan func(...any) error) error {
		var i int64
		err := scan(&i)
		if err == nil {
			changed(int(i))
		}
		return err
	})
}
