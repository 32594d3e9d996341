package graph

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"parley/store"
)

// Limits bound what one operation may ask for. They are checked before it runs; past one of them it is refused with
// TOO_COMPLEX and the figure. A zero field means its default.
type Limits struct {
	Tokens     int // of a document; default 10,000: gqlgen's field collection is quadratic in aliases
	Depth      int // of nested fields; default 15: the introspection query of the usual tools has 13
	Aliases    int // in a document; default 100
	RootFields int // of an operation; default 20
	Cost       int // of an operation, in fields of its answer; default 20,000
}

func (l Limits) orDefault() Limits {
	set := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	set(&l.Tokens, 10_000)
	set(&l.Depth, 15)
	set(&l.Aliases, 100)
	set(&l.RootFields, 20)
	set(&l.Cost, 20_000)
	return l
}

const (
	assumedSize = 10      // of a list that says nothing of its size with @listSize
	objectCost  = 10      // of a field that holds a whole JSON object
	listCost    = 1_000   // of a list that the operation itself asks for, beside its rows: the database may look at many more than it gives
	endlessCost = 1 << 40 // sums stop here

	// What introspection answers with is bounded by the schema for each field and list that it asks for. The query of the usual
	// tools has some 200 fields, and two lists in each other.
	maxSchemaLists  = 2
	maxSchemaFields = 1000
)

// limiter is the gqlgen extension that holds operations to the limits.
type limiter struct {
	limits Limits
	schema *ast.Schema
}

var _ interface {
	graphql.HandlerExtension
	graphql.OperationContextMutator
} = (*limiter)(nil)

func (*limiter) ExtensionName() string { return "Limits" }

func (l *limiter) Validate(es graphql.ExecutableSchema) error {
	l.schema = es.Schema()
	return nil
}

func (l *limiter) MutateOperationContext(_ context.Context, op *graphql.OperationContext) *gqlerror.Error {
	m := measure{schema: l.schema, variables: op.Variables, fragments: map[fragmentAt]extent{}}
	root := m.selections(op.Operation.SelectionSet, 1)
	for _, check := range []struct {
		what      string
		is, limit int
	}{
		{"root fields", root.fields, l.limits.RootFields},
		{"levels of fields", root.depth, l.limits.Depth},
		{"aliases", aliases(op.Doc), l.limits.Aliases},
		{"fields in its answer", root.cost, l.limits.Cost},
		{"lists in lists of the schema", root.lists, maxSchemaLists},
		{"fields of the schema", root.schema, maxSchemaFields},
	} {
		if check.is > check.limit {
			return gqlerror.Wrap(store.Refuse(codeTooComplex, "",
				fmt.Sprintf("the operation asks for %s %s, and may ask for %d: ask for less at once", figure(check.is), check.what, check.limit)))
		}
	}
	return nil
}

func figure(n int) string {
	if n >= endlessCost {
		return "more than a trillion"
	}
	return fmt.Sprint(n)
}

// extent is how large a selection is.
type extent struct {
	fields int // directly in it
	depth  int // of it and what is below
	cost   int // fields in the answer, with lists at the size that was asked for
	lists  int // of introspection, in each other
	schema int // fields of introspection
}

// measure walks an operation. What a fragment costs depends on the list that it stands in, and on nothing else: each is
// walked once for each such size, however often it is spread.
type measure struct {
	schema    *ast.Schema
	variables map[string]any
	fragments map[fragmentAt]extent
}

type fragmentAt struct {
	name string
	page int
}

// selections measures a selection set whose connection, if it is one, holds page edges. Fragments have no cycles by now:
// the document is valid.
func (m *measure) selections(set ast.SelectionSet, page int) (total extent) {
	for _, selection := range set {
		var e extent
		switch s := selection.(type) {
		case *ast.Field:
			e = m.field(s, page)
		case *ast.InlineFragment:
			e = m.selections(s.SelectionSet, page)
		case *ast.FragmentSpread:
			at, ok := fragmentAt{s.Name, page}, false
			if e, ok = m.fragments[at]; !ok {
				e = m.selections(s.Definition.SelectionSet, page)
				m.fragments[at] = e
			}
		}
		total.fields += e.fields
		total.depth = max(total.depth, e.depth)
		total.cost = min(total.cost+e.cost, endlessCost)
		total.lists = max(total.lists, e.lists)
		total.schema = min(total.schema+e.schema, endlessCost)
	}
	return total
}

func (m *measure) field(f *ast.Field, page int) extent {
	if f.Name == "__typename" {
		return extent{fields: 1, depth: 1, cost: 1}
	}
	if strings.HasPrefix(f.Name, "__") || strings.HasPrefix(f.ObjectDefinition.Name, "__") {
		below := m.selections(f.SelectionSet, 1)
		e := extent{fields: 1, depth: 1, cost: 1, lists: below.lists, schema: min(below.schema+1, endlessCost)}
		switch f.Name {
		case "fields", "interfaces", "possibleTypes", "inputFields":
			e.lists++
		}
		return e
	}
	size := 1
	switch {
	case f.Definition.Type.Elem == nil:
	case f.Name == "edges" || f.Name == "nodes":
		size = page
	default:
		size = m.listSize(f.Definition)
	}
	weight := 1
	if f.Definition.Type.Name() == "JSONObject" {
		weight = objectCost
	}
	below := m.selections(f.SelectionSet, m.page(f))
	own := 1
	if f.ObjectDefinition.Name == "Query" && f.Definition.Arguments.ForName("first") != nil {
		own = listCost
	}
	return extent{fields: 1, depth: below.depth + 1, cost: min(own+size*(weight-1+below.cost), endlessCost), lists: below.lists, schema: below.schema}
}

// page is how many edges the field's connection may hold: its `first` or `last`. What is no number there is refused when
// the operation runs.
func (m *measure) page(f *ast.Field) int {
	size := 0
	for _, name := range []string{"first", "last"} {
		if n, given := m.number(f, name); given {
			size = max(size, min(n, store.MaxPage))
		}
	}
	if size == 0 && f.Definition.Arguments.ForName("first") != nil {
		return store.DefaultPage
	}
	return max(size, 1)
}

// number is a field's argument as it was given, or its default.
func (m *measure) number(f *ast.Field, name string) (n int, given bool) {
	definition := f.Definition.Arguments.ForName(name)
	if definition == nil {
		return 0, false
	}
	value := definition.DefaultValue
	if argument := f.Arguments.ForName(name); argument != nil {
		value = argument.Value
	}
	if value == nil {
		return 0, false
	}
	text := value.Raw
	if value.Kind == ast.Variable {
		text = fmt.Sprint(m.variables[value.Raw])
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}

// listSize is how long a list is taken to be, by the directive @listSize of its definition (IBM's GraphQL Cost Directives
// specification).
func (m *measure) listSize(f *ast.FieldDefinition) int {
	d := f.Directives.ForName("listSize")
	if d == nil {
		return assumedSize
	}
	n, err := strconv.Atoi(d.Arguments.ForName("assumedSize").Value.Raw)
	if err != nil {
		return assumedSize
	}
	return n
}

// aliases counts those of a document.
func aliases(doc *ast.QueryDocument) int {
	n := 0
	var count func(set ast.SelectionSet)
	count = func(set ast.SelectionSet) {
		for _, selection := range set {
			switch s := selection.(type) {
			case *ast.Field:
				if s.Alias != s.Name {
					n++
				}
				count(s.SelectionSet)
			case *ast.InlineFragment:
				count(s.SelectionSet)
			}
		}
	}
	for _, op := range doc.Operations {
		count(op.SelectionSet)
	}
	for _, fragment := range doc.Fragments {
		count(fragment.SelectionSet)
	}
	return n
}
