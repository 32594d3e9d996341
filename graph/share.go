package graph

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/formatter"

	"parley/graph/transport"
	"parley/store"
)

// shared says which subscriptions share their execution: equal ones of one business and scope. Where each begins, its
// argument `after`, does not count: see transport.Groups.
func shared(ctx context.Context, op *graphql.OperationContext) (transport.Shared, bool) {
	v, err := store.Reader(ctx)
	if err != nil || len(op.Operation.SelectionSet) != 1 {
		return transport.Shared{}, false
	}
	field, ok := op.Operation.SelectionSet[0].(*ast.Field)
	if !ok || field.Name != "events" && field.Name != "deliveries" {
		return transport.Shared{}, false
	}
	variables := op.Variables
	if after := field.Arguments.ForName("after"); after != nil && after.Value.Kind == ast.Variable && uses(op, after.Value.Raw) == 1 {
		variables = maps.Clone(variables)
		delete(variables, after.Value.Raw)
	}
	key, err := json.Marshal([]any{v.BusinessID, v.Credential.Scope, canonical(op), variables})
	if err != nil {
		return transport.Shared{}, false
	}
	sum := sha256.Sum256(key)
	anyone := &store.Viewer{BusinessID: v.BusinessID, Credential: &store.Credential{Scope: v.Credential.Scope}}
	all := transport.Shared{
		Key: string(sum[:]),
		// It outlives each member, and has an id of its own in the log.
		Context: store.WithRequestID(store.WithViewer(context.Background(), anyone, nil), store.NewRequestID()),
	}
	if field.Name == "events" {
		all.Place = placeIn(v.BusinessID)
	}
	return all, true
}

// canonical is the text of what an operation asks for, without its name, its comments and its blanks.
func canonical(op *graphql.OperationContext) string {
	nameless := *op.Operation
	nameless.Name = ""
	var text strings.Builder
	formatter.NewFormatter(&text, formatter.WithCompacted()).
		FormatQueryDocument(&ast.QueryDocument{Operations: ast.OperationList{&nameless}, Fragments: op.Doc.Fragments})
	return text.String()
}

// uses counts where an operation uses a variable.
func uses(op *graphql.OperationContext, name string) int {
	n := 0
	var value func(v *ast.Value)
	value = func(v *ast.Value) {
		if v.Kind == ast.Variable && v.Raw == name {
			n++
		}
		for _, child := range v.Children {
			value(child.Value)
		}
	}
	var selections func(set ast.SelectionSet)
	arguments := func(args ast.ArgumentList, directives ast.DirectiveList) {
		for _, a := range args {
			value(a.Value)
		}
		for _, d := range directives {
			for _, a := range d.Arguments {
				value(a.Value)
			}
		}
	}
	selections = func(set ast.SelectionSet) {
		for _, selection := range set {
			switch s := selection.(type) {
			case *ast.Field:
				arguments(s.Arguments, s.Directives)
				selections(s.SelectionSet)
			case *ast.InlineFragment:
				arguments(nil, s.Directives)
				selections(s.SelectionSet)
			case *ast.FragmentSpread:
				arguments(nil, s.Directives)
			}
		}
	}
	arguments(nil, op.Operation.Directives)
	selections(op.Operation.SelectionSet)
	for _, f := range op.Doc.Fragments {
		arguments(nil, f.Directives)
		selections(f.SelectionSet)
	}
	return n
}
