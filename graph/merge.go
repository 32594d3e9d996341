package graph

import (
	"fmt"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/validator"
)

// ruleMerge is the validation rule that fields of one response name are one field, in the place of gqlparser's, which compares
// each pair of them, and again for each way on which spreads lead to it.
const ruleMerge = "FieldsCanBeMerged"

// mergeSteps is how many selections and values the rule looks at. A document's fragments can lead to its fields on more ways than
// can be counted; an operation that may be answered has 20,000 fields.
const mergeSteps = 30_000

// merger merges an operation's selection sets as its execution does, and holds the fields of one response name against the first
// of them: what equals the first equals all. The schema has no interfaces and no unions, so whatever stands in one place of the
// response is of one type, and fields of one name are of one shape.
type merger struct {
	add  validator.AddErrFunc
	told map[*ast.Field]bool
	left int // steps
	over bool
}

func mergeable(events *validator.Events, add validator.AddErrFunc) {
	m := &merger{add: add, told: map[*ast.Field]bool{}, left: mergeSteps}
	events.OnOperation(func(_ *validator.Walker, op *ast.OperationDefinition) {
		m.merge([]ast.SelectionSet{op.SelectionSet})
	})
}

// mustHaveNoInterfaces panics for a schema for which the rule would be too strict.
func mustHaveNoInterfaces(schema *ast.Schema) {
	for name, def := range schema.Types {
		if def.IsAbstractType() {
			panic("graph: the rule " + ruleMerge + " knows no abstract types, such as " + name)
		}
	}
}

// steps counts some, and says whether they may be taken.
func (m *merger) steps(n int) bool {
	if m.left -= n; m.left < 0 && !m.over {
		m.over = true
		m.add(func(e *gqlerror.Error) {
			refusal := tooComplex("the document's fragments lead to more than %d fields", mergeSteps)
			e.Err, e.Message = refusal.Err, refusal.Message
		})
	}
	return m.left >= 0
}

// merge checks the selection sets that are one in the response.
func (m *merger) merge(sets []ast.SelectionSet) {
	for _, fields := range m.collect(sets) {
		var below []ast.SelectionSet
		for _, f := range fields {
			switch {
			case f == fields[0]:
			case f.Name != fields[0].Name:
				m.tell(f, fmt.Sprintf("%q and %q are different fields", fields[0].Name, f.Name))
			case !m.sameArguments(fields[0].Arguments, f.Arguments):
				m.tell(f, "they have differing arguments")
			}
			if len(f.SelectionSet) > 0 {
				below = append(below, f.SelectionSet)
			}
		}
		if below != nil {
			m.merge(below)
		}
	}
}

// collect finds the fields of the sets and of the fragments in them, by response name, in their order. Each fragment is taken
// once. Fields that the schema does not have are told of by another rule.
func (m *merger) collect(sets []ast.SelectionSet) (groups [][]*ast.Field) {
	at := map[string]int{}
	taken := map[string]bool{}
	var take func(set ast.SelectionSet)
	take = func(set ast.SelectionSet) {
		for _, selection := range set {
			if !m.steps(1) {
				return
			}
			switch s := selection.(type) {
			case *ast.Field:
				if s.Definition == nil {
					continue
				}
				i, ok := at[s.Alias]
				if !ok {
					i = len(groups)
					at[s.Alias] = i
					groups = append(groups, nil)
				}
				groups[i] = append(groups[i], s)
			case *ast.InlineFragment:
				take(s.SelectionSet)
			case *ast.FragmentSpread:
				if s.Definition != nil && !taken[s.Name] {
					taken[s.Name] = true
					take(s.Definition.SelectionSet)
				}
			}
		}
	}
	for _, set := range sets {
		take(set)
	}
	return groups
}

func (m *merger) sameArguments(a, b ast.ArgumentList) bool {
	if len(a) != len(b) {
		return false
	}
	for _, arg := range a {
		if !m.steps(len(b)) {
			return false
		}
		if other := b.ForName(arg.Name); other == nil || !m.sameValue(arg.Value, other.Value) {
			return false
		}
	}
	return true
}

func (m *merger) sameValue(a, b *ast.Value) bool {
	if !m.steps(1) || a.Kind != b.Kind || a.Raw != b.Raw || len(a.Children) != len(b.Children) {
		return false
	}
	for i, child := range a.Children {
		if child.Name != b.Children[i].Name || !m.sameValue(child.Value, b.Children[i].Value) {
			return false
		}
	}
	return true
}

// tell says once for each field why it conflicts with another of its response name.
func (m *merger) tell(f *ast.Field, why string) {
	if m.told[f] || m.over {
		return
	}
	m.told[f] = true
	m.add(validator.Message("Fields %q conflict because %s. Use different aliases on the fields to fetch both if this was intentional.",
		f.Alias, why), func(e *gqlerror.Error) {
		e.Locations = []gqlerror.Location{{Line: f.Position.Line, Column: f.Position.Column}}
	})
}
