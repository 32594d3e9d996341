package graph

import (
	"context"
	"net/http"
	"slices"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"parley/store"
)

// maxErrors is how many faults of a document are told, which are an error each.
const maxErrors = 100

// checked is a transport whose operations are checked whole before they run: one error tells all faults of their input.
type checked struct {
	graphql.Transport
	schema *ast.Schema
	tokens int // of a document, at most
}

// Do serves a request through the checking executor.
func (t checked) Do(w http.ResponseWriter, r *http.Request, exec graphql.GraphExecutor) {
	t.Transport.Do(w, r, &executor{exec, t.schema, t.tokens})
}

// executor is gqlgen's, but for what it says of faulty input.
type executor struct {
	graphql.GraphExecutor
	schema *ast.Schema
	tokens int
}

// CreateOperationContext checks an operation and its variables.
func (x *executor) CreateOperationContext(ctx context.Context, params *graphql.RawParams) (*graphql.OperationContext, gqlerror.List) {
	op, errs := x.GraphExecutor.CreateOperationContext(ctx, params)
	switch {
	case op.Operation != nil:
		if faults := x.variables(op.Doc, op.Operation, params.Variables); len(faults) > 0 {
			return op, gqlerror.List{faulty(faults, nil)}
		}
	case op.Doc != nil:
		return op, gqlerror.List{faulty(noOperation(params.OperationName).Under("operationName"), nil)}
	default:
		errs = x.document(params, errs)
	}
	return op, errs
}

// PresentRecoveredError words a panic.
func (x *executor) PresentRecoveredError(ctx context.Context, value any) error {
	presenter, ok := x.GraphExecutor.(interface {
		PresentRecoveredError(ctx context.Context, value any) error
	})
	if !ok {
		return nil
	}
	return presenter.PresentRecoveredError(ctx, value)
}

func noOperation(name string) store.Faults {
	if name == "" {
		return store.Faults{store.Missing} // there are several
	}
	return store.Faults{store.ValueError("the document has no operation of this name")}
}

// faulty is the error that tells of an input's faults.
func faulty(faults store.Faults, at []gqlerror.Location) *gqlerror.Error {
	return &gqlerror.Error{Err: faults.Err(), Message: faults.String(), Locations: at}
}

// variables finds every fault of the variables' values.
func (x *executor) variables(doc *ast.QueryDocument, op *ast.OperationDefinition, given map[string]any) store.Faults {
	c := &checker{schema: x.schema}
	var places map[string][]any
	for _, def := range op.VariableDefinitions {
		value, ok := given[def.Variable]
		before := len(c.faults)
		switch {
		case ok:
			c.check(value, def.Type, nil)
		case def.Type.NonNull && def.DefaultValue == nil:
			c.fault(store.Missing, nil)
		}
		if len(c.faults) > before {
			if places == nil {
				places = placesOf(doc, op)
			}
			copy(c.faults[before:], c.faults[before:].Under(places[def.Variable]...))
		}
	}
	return c.faults
}

// placesOf says for each variable of an operation where its faults are: at the argument that takes its value, in the
// schema's words, as those of a literal are; or, if several different ones do, under the variable's own name.
func placesOf(doc *ast.QueryDocument, op *ast.OperationDefinition) map[string][]any {
	places := map[string][]any{}
	var value func(v *ast.Value, loc []any)
	value = func(v *ast.Value, loc []any) {
		if v.Kind == ast.Variable {
			if known, ok := places[v.Raw]; ok && !slices.Equal(known, loc) {
				loc = []any{short(v.Raw)}
			}
			places[v.Raw] = slices.Clone(loc)
		}
		for i, child := range v.Children {
			if v.Kind == ast.ListValue {
				value(child.Value, append(loc, i))
			} else {
				value(child.Value, append(loc, child.Name))
			}
		}
	}
	directives := func(list ast.DirectiveList) {
		for _, d := range list {
			for _, arg := range d.Arguments {
				value(arg.Value, []any{arg.Name})
			}
		}
	}
	seen := map[string]bool{}
	var selections func(set ast.SelectionSet)
	selections = func(set ast.SelectionSet) {
		for _, selection := range set {
			switch s := selection.(type) {
			case *ast.Field:
				for _, arg := range s.Arguments {
					value(arg.Value, []any{arg.Name})
				}
				directives(s.Directives)
				selections(s.SelectionSet)
			case *ast.InlineFragment:
				directives(s.Directives)
				selections(s.SelectionSet)
			case *ast.FragmentSpread:
				directives(s.Directives)
				if fragment := doc.Fragments.ForName(s.Name); fragment != nil && !seen[s.Name] {
					seen[s.Name] = true
					selections(fragment.SelectionSet)
				}
			}
		}
	}
	directives(op.Directives)
	selections(op.SelectionSet)
	return places
}

// ruleInputs is the validation rule that finds the faults of a document's literals, in the place of gqlparser's own.
const ruleInputs = "Inputs"

// validation are the rules that documents are held to. What a bounded document costs with each of them is bounded too: the
// measure of an operation, which is taken later, holds introspection to its depth. gqlgen changes the result: each call makes its own.
func validation() *rules.Rules {
	r := rules.NewDefaultRules()
	for _, replaced := range []rule{
		rules.ValuesOfCorrectTypeRule, rules.ProvidedRequiredArgumentsRule, rules.KnownArgumentNamesRule,
		rules.OverlappingFieldsCanBeMergedRule, rules.MaxIntrospectionDepth, rules.KnownTypeNamesRule,
	} {
		r.RemoveRule(replaced.Name)
	}
	r.AddRule(ruleInputs, inputs)
	r.AddRule(ruleMerge, mergeable)
	names := rules.KnownTypeNamesRuleWithoutSuggestions // which are costly, and tell of the schema
	r.AddRule(names.Name, names.RuleFunc)
	return r
}

type rule = validator.Rule

// inputs tells each fault as an error that carries it; document joins them.
func inputs(events *validator.Events, add validator.AddErrFunc) {
	tell := func(c *checker, at *ast.Position) {
		for _, f := range c.faults {
			add(validator.Message("%s", f.Msg), func(e *gqlerror.Error) {
				e.Err = store.Faults{f}.Err()
				if at != nil {
					e.Locations = []gqlerror.Location{{Line: at.Line, Column: at.Column}}
				}
			})
		}
	}
	seen := map[*ast.Field]bool{} // a fragment's fields are walked for each of its uses
	events.OnField(func(w *validator.Walker, field *ast.Field) {
		if field.Definition == nil || seen[field] {
			return
		}
		seen[field] = true
		c := &checker{schema: w.Schema, literal: true}
		c.arguments(field.Definition.Arguments, field.Arguments)
		tell(c, field.Position)
	})
	done := map[*ast.Directive]bool{}
	events.OnDirective(func(w *validator.Walker, directive *ast.Directive) {
		if directive.Definition == nil || done[directive] {
			return
		}
		done[directive] = true
		c := &checker{schema: w.Schema, literal: true}
		c.arguments(directive.Definition.Arguments, directive.Arguments)
		tell(c, directive.Position)
	})
	events.OnVariable(func(w *validator.Walker, def *ast.VariableDefinition) {
		if def.DefaultValue != nil {
			c := &checker{schema: w.Schema, literal: true}
			c.check(literal(def.DefaultValue), def.Type, []any{short(def.Variable)})
			tell(c, def.Position)
		}
	})
}

// document joins the faults of literals into one error, with those of the variables beside them. What else is wrong with a
// document stays an error each.
func (x *executor) document(params *graphql.RawParams, errs gqlerror.List) gqlerror.List {
	var faults store.Faults
	var at []gqlerror.Location
	var others gqlerror.List
	for _, err := range errs {
		switch e, ok := store.AsError(err); {
		case !ok || err.Rule != ruleInputs:
			others = append(others, err)
		case len(faults) < maxFaults:
			faults = append(faults, e.Faults...)
			if len(at) < maxErrors && !slices.Contains(at, err.Locations[0]) {
				at = append(at, err.Locations[0])
			}
		}
	}
	if len(faults) == 0 {
		return others[:min(len(others), maxErrors)]
	}
	if len(others) == 0 {
		// gqlgen keeps no faulty document. It has parsed it before, so it does again.
		if doc, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: params.Query}, x.tokens); err == nil {
			if op := doc.Operations.ForName(params.OperationName); op != nil {
				faults = append(faults, x.variables(doc, op, params.Variables)...)
			}
		}
	}
	return append(gqlerror.List{faulty(faults[:min(len(faults), maxFaults)], at)}, others[:min(len(others), maxErrors)]...)
}
