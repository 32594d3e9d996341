package graph

import (
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/vektah/gqlparser/v2/ast"

	"parley/store"
)

const (
	maxFaults = 1000 // of one operation: those of a list of 1 MiB would be 100 MiB
	maxName   = 256  // bytes of what a client named, where an error repeats it
	maxID     = 64   // characters of an id: ours have some 40
	maxValues = 100  // of a list of an enum's: far more than any enum has
)

// custom reads the values of the scalars that the schema adds to GraphQL's own. They word their faults themselves. Whatever
// else gqlgen cannot read of a value that was checked is an internal error.
var custom = map[string]func(v any) error{
	"JSONObject": func(v any) error { return new(store.JSONObject).UnmarshalGQL(v) },
	"Time":       func(v any) error { return new(store.Time).UnmarshalGQL(v) },
}

// mustKnowScalars panics for a schema with a scalar that custom lacks.
func mustKnowScalars(schema *ast.Schema) {
	for name, def := range schema.Types {
		if def.Kind == ast.Scalar && !def.BuiltIn && custom[name] == nil {
			panic("graph: nobody checks the values of the scalar " + name)
		}
	}
}

// checker holds values against the schema's input types, and finds every fault of them, in the order of the schema's fields.
// gqlgen and gqlparser stop at the first one of a variable, and word those of a document in another way.
type checker struct {
	schema  *ast.Schema
	literal bool // the values are a document's, in which an enum's is no string
	faults  store.Faults
}

// What a literal can be besides JSON.
type (
	enumValue string
	reference struct{} // to a variable, which is checked where its value comes from
)

func (c *checker) fault(f store.Fault, loc []any) {
	if len(c.faults) < maxFaults {
		f.Loc = slices.Clone(loc)
		c.faults = append(c.faults, f)
	}
}

// check finds what is wrong with a value of a type: JSON decoded with its numbers as they stand, or a literal.
func (c *checker) check(v any, t *ast.Type, loc []any) {
	if _, ok := v.(reference); ok || v == nil && !t.NonNull || len(c.faults) >= maxFaults {
		return
	}
	if t.Elem != nil {
		c.list(v, t, loc)
		return
	}
	def := c.schema.Types[t.NamedType]
	switch {
	case def == nil: // the document's own fault
	case def.Kind == ast.Enum:
		c.enum(v, def, loc)
	case def.Kind == ast.InputObject:
		c.object(v, def, loc)
	case def.Kind == ast.Scalar:
		c.scalar(v, def, loc)
	}
}

// list checks each element. One value stands for the list of it, as GraphQL has it.
func (c *checker) list(v any, t *ast.Type, loc []any) {
	if elements, ok := elements(v); ok {
		if def := c.schema.Types[t.Elem.Name()]; def != nil && def.Kind == ast.Enum && len(elements) > maxValues {
			c.fault(store.TooLong(len(elements), maxValues), loc)
			return
		}
		for i, e := range elements {
			c.check(e, t.Elem, append(loc, i))
		}
		return
	}
	one := checker{schema: c.schema, literal: c.literal}
	if v != nil {
		one.check(v, t.Elem, loc)
	}
	if v == nil || len(one.faults) > 0 {
		c.fault(store.NotList, loc)
	}
}

// elements are those of a list; gqlparser puts lists of another type into the variables that it coerces.
func elements(v any) ([]any, bool) {
	if list, ok := v.([]any); ok {
		return list, true
	}
	list := reflect.ValueOf(v)
	if list.Kind() != reflect.Slice {
		return nil, false
	}
	out := make([]any, list.Len())
	for i := range out {
		out[i] = list.Index(i).Interface()
	}
	return out, true
}

func (c *checker) enum(v any, def *ast.Definition, loc []any) {
	name, ok := v.(string)
	if c.literal {
		var value enumValue
		value, ok = v.(enumValue)
		name = string(value)
	}
	if ok && def.EnumValues.ForName(name) != nil {
		return
	}
	names := make([]string, len(def.EnumValues))
	for i, value := range def.EnumValues {
		names[i] = value.Name
	}
	c.fault(store.NotOneOf(names), loc)
}

func (c *checker) object(v any, def *ast.Definition, loc []any) {
	given, ok := v.(map[string]any)
	if !ok {
		c.fault(store.NotObject, loc)
		return
	}
	for _, field := range def.Fields {
		value, ok := given[field.Name]
		_, isText := value.(string)
		switch {
		case isText && def.Name == "ChatInput" && field.Name == "sessionId": // told with what else is wrong with a chat
		case ok:
			c.check(value, field.Type, append(loc, field.Name))
		case field.Type.NonNull && field.DefaultValue == nil:
			c.fault(store.Missing, append(loc, field.Name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if def.Fields.ForName(name) == nil {
			c.fault(store.Extra, append(loc, short(name)))
		}
	}
}

func (c *checker) scalar(v any, def *ast.Definition, loc []any) {
	number, isNumber := v.(json.Number)
	text, isText := v.(string)
	_, isBoolean := v.(bool)
	switch def.Name {
	case "String":
		if !isText {
			c.fault(store.NotString, loc)
		}
	case "ID":
		if _, err := strconv.ParseInt(string(number), 10, 64); !isText && (!isNumber || err != nil) {
			c.fault(store.NotString, loc)
		}
		if strings.ContainsRune(text, 0) {
			c.fault(store.ValueError("U+0000 is not allowed"), loc)
		} else if utf8.RuneCountInString(text) > maxID {
			c.fault(store.StringTooLong(maxID), loc)
		}
	case "Int":
		if n, err := strconv.ParseInt(string(number), 10, 64); !isNumber || err != nil || n < math.MinInt32 || n > math.MaxInt32 {
			c.fault(store.NotInt, loc)
		}
	case "Float":
		if _, err := number.Float64(); !isNumber || err != nil {
			c.fault(store.NotFloat, loc)
		}
	case "Boolean":
		if !isBoolean {
			c.fault(store.NotBoolean, loc)
		}
	default:
		if e, ok := store.AsError(custom[def.Name](v)); ok {
			for _, f := range e.Faults.Under(loc...) {
				c.fault(f, f.Loc)
			}
		}
	}
}

// arguments checks the arguments that a document gives to a field or directive.
func (c *checker) arguments(defs ast.ArgumentDefinitionList, given ast.ArgumentList) {
	for _, def := range defs {
		switch arg := given.ForName(def.Name); {
		case arg != nil:
			c.check(literal(arg.Value), def.Type, []any{def.Name})
		case def.Type.NonNull && def.DefaultValue == nil:
			c.fault(store.Missing, []any{def.Name})
		}
	}
	for _, arg := range given {
		if defs.ForName(arg.Name) == nil {
			c.fault(store.Extra, []any{short(arg.Name)})
		}
	}
}

// literal is a document's value as check takes it.
func literal(v *ast.Value) any {
	switch v.Kind {
	case ast.Variable:
		return reference{}
	case ast.IntValue, ast.FloatValue:
		return json.Number(v.Raw)
	case ast.BooleanValue:
		return v.Raw == "true"
	case ast.NullValue:
		return nil
	case ast.EnumValue:
		return enumValue(v.Raw)
	case ast.ListValue:
		list := make([]any, len(v.Children))
		for i, child := range v.Children {
			list[i] = literal(child.Value)
		}
		return list
	case ast.ObjectValue:
		object := make(map[string]any, len(v.Children))
		for _, child := range v.Children {
			object[child.Name] = literal(child.Value)
		}
		return object
	default:
		return v.Raw
	}
}

// short cuts what a client named to what an error may repeat of it, between two characters.
func short(s string) string {
	if len(s) <= maxName {
		return s
	}
	cut := maxName
	for cut > 0 && s[cut]&0xC0 == 0x80 {
		cut--
	}
	return s[:cut] + "…"
}
