package store

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"
)

// Rows that come by the hundred are written by statements that are prepared once. What such a statement is given stands in its
// text as one of
//
//	FROM {rows}  the rows, as the table `new`
//	{ids}        a list of ids, as a query of one column
//
// PostgreSQL takes an array a column, and one round trip for all rows. SQLite has neither: there a statement is run for each row,
// with its values where `new` stands, which in the same process costs less than to parse one statement for all of them.

// bulk is a statement over {rows}.
type bulk struct {
	text    string // as it is prepared
	columns []column
	order   []int // SQLite: the columns whose values it takes, in its order
	remote  bool
}

type column struct {
	name string
	kind string // text, bigint or boolean
}

var columnOfNew = regexp.MustCompile(`\bnew\.([a-z_]+)`)

// newBulk makes a statement over rows of these columns.
func newBulk(remote bool, text string, columns ...column) *bulk {
	b := &bulk{columns: columns, remote: remote}
	if remote {
		arrays, names := make([]string, len(columns)), make([]string, len(columns))
		for i, c := range columns {
			arrays[i], names[i] = "?::"+c.kind+"[]", c.name
		}
		b.text = strings.Replace(text, "{rows}", "unnest("+strings.Join(arrays, ", ")+") AS new("+strings.Join(names, ", ")+")", 1)
		return b
	}
	b.text = columnOfNew.ReplaceAllStringFunc(strings.Replace(text, "FROM {rows}", "", 1), func(found string) string {
		name := strings.TrimPrefix(found, "new.")
		b.order = append(b.order, slices.IndexFunc(columns, func(c column) bool { return c.name == name }))
		return "?"
	})
	return b
}

// some are rows that a statement is run over.
type some struct {
	rows int
	row  func(i int) ([]any, error) // with a value for each column
}

// arrays are the rows as PostgreSQL takes them: an array a column.
func (of some) arrays(columns int) ([]any, error) {
	arrays := make([]array, columns)
	for i := range of.rows {
		values, err := of.row(i)
		if err != nil {
			return nil, err
		}
		for c := range arrays {
			arrays[c].add(values[c])
		}
	}
	args := make([]any, columns)
	for c := range arrays {
		args[c] = arrays[c].String()
	}
	return args, nil
}

// run runs the statement over some rows, and returns how many it changed. changed reads what the statement is RETURNING of each on
// PostgreSQL; on SQLite, which must not return anything, that is the first column of its row.
func (t *tx) run(ctx context.Context, b *bulk, of some, changed func(scan func(...any) error) error) (n int64, err error) {
	switch {
	case of.rows == 0:
		return 0, nil
	case !b.remote:
		return t.runEach(ctx, b, of, changed)
	}
	args, err := of.arrays(len(b.columns))
	if err != nil {
		return 0, err
	}
	if changed != nil {
		return t.query(ctx, b.text, args, changed)
	}
	stmt := t.StmtContext(ctx, t.hot[b.text])
	defer func() { _ = stmt.Close() }()
	res, err := stmt.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (t *tx) runEach(ctx context.Context, b *bulk, of some, changed func(scan func(...any) error) error) (n int64, err error) {
	stmt := t.StmtContext(ctx, t.hot[b.text])
	defer func() { _ = stmt.Close() }()
	args := make([]any, len(b.order))
	for i := range of.rows {
		values, err := of.row(i)
		if err != nil {
			return n, err
		}
		for i, c := range b.order {
			args[i] = values[c]
		}
		res, err := stmt.ExecContext(ctx, args...)
		if err != nil {
			return n, err
		}
		one, err := res.RowsAffected()
		if err != nil {
			return n, err
		}
		n += one
		if one == 0 || changed == nil {
			continue
		}
		if err := changed(func(to ...any) error { *to[0].(*string) = values[0].(string); return nil }); err != nil {
			return n, err
		}
	}
	return n, nil
}

// query runs a hot statement, has each of its rows read, and returns how many there were.
func (t *tx) query(ctx context.Context, text string, args []any, read func(scan func(...any) error) error) (n int64, err error) {
	stmt := t.StmtContext(ctx, t.hot[text])
	defer func() { _ = stmt.Close() }()
	found, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	defer func() { _ = found.Close() }()
	for found.Next() {
		if err := read(found.Scan); err != nil {
			return n, err
		}
		n++
	}
	return n, found.Err()
}

// fused are statements over rows that PostgreSQL runs in one round trip, in no order: none may need what another one does.
type fused struct {
	text  string
	parts []*bulk
}

// fuse makes one statement of several, which returns how many rows each of them has changed.
func fuse(parts ...*bulk) *fused {
	f := &fused{parts: parts}
	with, counts := make([]string, len(parts)), make([]string, len(parts))
	for i, b := range parts {
		with[i] = fmt.Sprintf("part%d AS (%s RETURNING 1)", i, b.text)
		counts[i] = fmt.Sprintf("(SELECT count(*) FROM part%d)", i)
	}
	f.text = "WITH " + strings.Join(with, ", ") + " SELECT " + strings.Join(counts, ", ")
	return f
}

// union makes one statement of several that are RETURNING the same columns, for PostgreSQL alone.
func union(parts ...*bulk) *fused {
	f := &fused{parts: parts}
	with, rows := make([]string, len(parts)), make([]string, len(parts))
	for i, b := range parts {
		with[i] = fmt.Sprintf("part%d AS (%s)", i, b.text)
		rows[i] = fmt.Sprintf("SELECT * FROM part%d", i)
	}
	f.text = "WITH " + strings.Join(with, ", ") + " " + strings.Join(rows, " UNION ALL ")
	return f
}

// all makes rows of models that have an insertion.
func all[T any](t *tx, models []*T) some {
	in := t.insertions[reflect.TypeFor[T]()]
	return some{len(models), func(i int) ([]any, error) { return in.row(reflect.ValueOf(models[i]).Elem()) }}
}

// runAll runs the fused statements over their rows: on SQLite one after the other. It returns how many rows each has changed.
func (t *tx) runAll(ctx context.Context, f *fused, of ...some) ([]int64, error) {
	counts := make([]int64, len(of))
	if !t.remote {
		for i, rows := range of {
			var err error
			if counts[i], err = t.run(ctx, f.parts[i], rows, nil); err != nil {
				return nil, err
			}
		}
		return counts, nil
	}
	args, err := f.args(of)
	if err != nil {
		return nil, err
	}
	to := make([]any, len(counts))
	for i := range counts {
		to[i] = &counts[i]
	}
	return counts, t.row(ctx, f.text, args, to...)
}

// args are the rows of the parts as PostgreSQL takes them.
func (f *fused) args(of []some) ([]any, error) {
	var args []any
	for i, rows := range of {
		arrays, err := rows.arrays(len(f.parts[i].columns))
		if err != nil {
			return nil, err
		}
		args = append(args, arrays...)
	}
	return args, nil
}

// array is an array literal of PostgreSQL.
type array struct{ b []byte }

var escapeInArray = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func (a *array) add(v any) {
	if len(a.b) == 0 {
		a.b = append(a.b, '{')
	} else {
		a.b = append(a.b, ',')
	}
	switch v := v.(type) {
	case nil:
		a.b = append(a.b, "NULL"...)
	case int64:
		a.b = strconv.AppendInt(a.b, v, 10)
	case bool:
		a.b = strconv.AppendBool(a.b, v)
	case string:
		a.b = append(a.b, '"')
		if strings.ContainsAny(v, `"\`) {
			v = escapeInArray.Replace(v)
		}
		a.b = append(append(a.b, v...), '"')
	default:
		panic(fmt.Sprintf("store: %T in an array", v))
	}
}

func (a *array) String() string {
	if len(a.b) == 0 {
		return "{}"
	}
	return string(a.b) + "}"
}

// withIDs is a query over {ids}, as it is prepared.
func withIDs(remote bool, text string) string {
	if remote {
		return strings.ReplaceAll(text, "{ids}", "SELECT unnest(?::text[])")
	}
	return strings.ReplaceAll(text, "{ids}", "SELECT value FROM json_each(?)")
}

// idsArg is the argument for {ids}.
func (s *Store) idsArg(ids []string) string {
	if !s.remote() {
		b, _ := json.Marshal(ids) // of strings: it cannot fail
		return string(b)
	}
	var a array
	for _, id := range ids {
		a.add(id)
	}
	return a.String()
}

// insertion inserts rows of a model, all its columns.
type insertion struct {
	*bulk
	fields []*schema.Field
}

// newInsertion reads the columns of a model as bun sees them.
func newInsertion(db *bun.DB, remote bool, model reflect.Type) *insertion {
	table := db.Table(model)
	in := &insertion{fields: table.Fields}
	names := make([]string, len(table.Fields))
	columns := make([]column, len(table.Fields))
	for i, f := range table.Fields {
		names[i] = f.Name
		columns[i] = column{f.Name, kindOf(f.IndirectType)}
	}
	text := "INSERT INTO " + table.Name + " (" + strings.Join(names, ", ") + ") "
	if remote {
		text += "SELECT new." + strings.Join(names, ", new.") + " FROM {rows}"
	} else { // a SELECT may have many rows, and so SQLite would keep each page as it was, in a file, to undo half a statement
		text += "VALUES (new." + strings.Join(names, ", new.") + ")"
	}
	in.bulk = newBulk(remote, text, columns...)
	return in
}

func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return "bigint"
	case reflect.Bool:
		return "boolean"
	default:
		return "text"
	}
}

// row are the values of one row, as a driver takes them.
func (in *insertion) row(model reflect.Value) ([]any, error) {
	values := make([]any, len(in.fields))
	for i, f := range in.fields {
		v, err := plain(f.Value(model))
		if err != nil {
			return nil, fmt.Errorf("column %s of %s: %w", f.Name, f.Table.Name, err)
		}
		values[i] = v
	}
	return values, nil
}

var valuer = reflect.TypeFor[driver.Valuer]()

// plain is a field as nil, a string, an int64 or a bool. Lists and structs are documents.
func plain(v reflect.Value) (any, error) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil, nil //nolint:nilnil // NULL
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.String:
		return v.String(), nil
	case reflect.Int, reflect.Int64:
		return v.Int(), nil
	case reflect.Bool:
		return v.Bool(), nil
	}
	if v.Type().Implements(valuer) {
		return v.Interface().(driver.Valuer).Value()
	}
	b, err := encode(v.Interface())
	return string(b), err
}

// insert inserts rows of one of the models that have an insertion.
func insert[T any](ctx context.Context, t *tx, rows []*T) error {
	if len(rows) == 0 {
		return nil
	}
	in := t.insertions[reflect.TypeFor[T]()]
	if _, err := t.run(ctx, in.bulk, all(t, rows), nil); err != nil {
		return fmt.Errorf("insert %d rows into %s: %w", len(rows), in.fields[0].Table.Name, err)
	}
	return nil
}

// orNil is what v points at, or NULL.
func orNil[T string | int64](v *T) any {
	if v == nil {
		return nil
	}
	return *v
}
