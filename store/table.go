package store

import (
	"database/sql/driver"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"
)

// table inserts rows of a model, all its columns, as bun sees them: on PostgreSQL however many with one statement, which
// takes an array a column; on SQLite one after the other, which in the same process costs less than to parse one statement
// for all of them.
type table struct {
	name    string
	fields  []*schema.Field
	text    string
	columns []string // their types in PostgreSQL
}

// Table makes the models of some tables insertable with Insert. onConflict is the end of the statement; empty: a row that is
// there already is an error.
func (s *Store) Table(model reflect.Type, onConflict string) {
	of := s.db.Table(model)
	t := &table{name: of.Name, fields: of.Fields}
	names, values := make([]string, len(of.Fields)), make([]string, len(of.Fields))
	for i, f := range of.Fields {
		kind := kindOf(f.IndirectType)
		t.columns = append(t.columns, kind)
		names[i] = f.Name
		if s.remote() {
			values[i] = "$" + strconv.Itoa(i+1) + "::" + kind + "[]"
		} else {
			values[i] = "?"
		}
	}
	t.text = "INSERT INTO " + t.name + " (" + strings.Join(names, ", ") + ") "
	if s.remote() {
		t.text += "SELECT * FROM unnest(" + strings.Join(values, ", ") + ")"
	} else { // no SELECT: it may have many rows, and so SQLite would keep each page as it was, to undo half a statement
		t.text += "VALUES (" + strings.Join(values, ", ") + ")"
	}
	t.text += onConflict
	s.tables[model] = t
}

func (s *Store) openTables() {
	s.tables = map[reflect.Type]*table{}
	for _, model := range []reflect.Type{reflect.TypeFor[Session](), reflect.TypeFor[Message](), reflect.TypeFor[Run](), reflect.TypeFor[Event]()} {
		s.Table(model, "")
	}
}

// insert queues the insertion of rows, which are pointers to the table's model.
func (of *table) insert(t *Tx, rows []any) {
	if !t.remote {
		for _, row := range rows {
			model := reflect.ValueOf(row).Elem()
			args := make([]any, len(of.fields))
			for i, f := range of.fields {
				args[i] = plain(f.Value(model))
			}
			t.Exec(of.text, args...)
		}
		return
	}
	args := make([]any, len(of.fields))
	for i, f := range of.fields {
		args[i] = arrayOf(of.columns[i], len(rows), func(n int) any { return plain(f.Value(reflect.ValueOf(rows[n]).Elem())) })
	}
	t.Exec(of.text, args...)
}

// arrayOf makes the array of a column's values, each of which is nil or of the column's type.
func arrayOf(kind string, n int, value func(int) any) any {
	switch kind {
	case "bigint":
		return columnOf[int64](n, value)
	case "boolean":
		return columnOf[bool](n, value)
	}
	return columnOf[string](n, value)
}

// columnOf is a slice of T, or of *T if there is a NULL: pgx takes the first without reflection.
func columnOf[T any](n int, value func(int) any) any {
	values := make([]T, n)
	for i := range values {
		v := value(i)
		if v == nil {
			return columnWithNulls[T](n, value)
		}
		values[i] = v.(T)
	}
	return values
}

func columnWithNulls[T any](n int, value func(int) any) any {
	values := make([]*T, n)
	for i := range values {
		if v := value(i); v != nil {
			x := v.(T)
			values[i] = &x
		}
	}
	return values
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

var valuer = reflect.TypeFor[driver.Valuer]()

// plain is a field as nil, a string, an int64 or a bool. Lists and structs are documents.
func plain(v reflect.Value) any {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.String:
		return v.String()
	case reflect.Int, reflect.Int64:
		return v.Int()
	case reflect.Bool:
		return v.Bool()
	}
	if v.Type().Implements(valuer) {
		if value, err := v.Interface().(driver.Valuer).Value(); err == nil {
			return value
		}
	}
	b, err := encode(v.Interface())
	if err != nil {
		panic(fmt.Sprintf("store: a column of %s cannot be written: %v", v.Type(), err)) // its type is ours, and wrong
	}
	return string(b)
}

var _ bun.IDB = (*Tx)(nil)
