package graph

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/lexer"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"parley/store"
)

// What no document needs, and what validation would pay for: it looks names up one by one.
const (
	maxDefinitions = 500 // operations and fragments of a document
	maxVariables   = 500 // of a document
	maxDepth       = 100 // lists and objects of a value in each other: whoever walks one, gqlgen too, pays for its depth more than once
)

// strangerBytes is how long the document of a caller without a credential may be. It gets an answer as GraphQL over HTTP wants,
// such as the one to { __typename } by which probes find a server; there is nothing in the schema for which it would need more.
const strangerBytes = 1024

// bounder is the gqlgen extension that refuses a document before it is validated, if that would take more time than its tokens
// are worth: gqlparser walks a fragment again for each operation and each fragment that reaches it. So whoever sends a document
// pays for it with bytes; and without a credential it must be short. It comes after the extension that finds persisted documents.
type bounder struct {
	tokens int
	known  graphql.Cache[*ast.QueryDocument] // of documents that have passed
}

var _ interface {
	graphql.HandlerExtension
	graphql.OperationParameterMutator
} = bounder{}

func (bounder) ExtensionName() string { return "Bounds" }

func (bounder) Validate(graphql.ExecutableSchema) error { return nil }

func (b bounder) MutateOperationParameters(ctx context.Context, params *graphql.RawParams) *gqlerror.Error {
	if _, err := store.ViewerOf(ctx); err != nil && len(params.Query) > strangerBytes {
		return gqlerror.Wrap(err)
	}
	for _, name := range slices.Sorted(maps.Keys(params.Variables)) {
		if deep(params.Variables[name], maxDepth) {
			return gqlerror.Wrap(store.Faults{tooDeep}.Under("variables", short(name)).Err())
		}
	}
	if _, ok := b.known.Get(ctx, params.Query); ok {
		return nil
	}
	if name := longName(params.Query, b.tokens); name != nil {
		err := gqlerror.ErrorPosf(name, "A name may have %d characters.", maxName)
		err.Rule = "NamesAreShort"
		return err
	}
	if doc, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: params.Query}, b.tokens); err == nil {
		return bound(doc, 2*b.tokens)
	}
	return nil // gqlgen says what is wrong
}

var tooDeep = store.ValueError(fmt.Sprintf("a value may be nested %d deep", maxDepth))

// deep says whether more than so many lists and objects of a variable's value stand in each other.
func deep(v any, than int) bool {
	var members iter.Seq[any]
	switch v := v.(type) {
	case map[string]any:
		members = maps.Values(v)
	case []any:
		members = slices.Values(v)
	default:
		return false
	}
	if than == 0 {
		return true
	}
	for member := range members {
		if deep(member, than-1) {
			return true
		}
	}
	return false
}

// tooComplex refuses a document for its size.
func tooComplex(format string, figures ...any) *gqlerror.Error {
	return gqlerror.Wrap(store.Refuse(codeTooComplex, "", fmt.Sprintf(format, figures...)+": ask for less at once"))
}

// longName is where a name among the first tokens stands that is longer than what an error repeats. A long word may be within a string:
// where there is one, the tokens tell.
func longName(text string, tokens int) *ast.Position {
	word := 0
	for i := 0; i < len(text) && word <= maxName; i++ {
		if c := text[i]; c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' {
			word++
		} else {
			word = 0
		}
	}
	if word <= maxName {
		return nil
	}
	lex := lexer.New(&ast.Source{Input: text})
	for range tokens {
		token, err := lex.ReadToken()
		if err != nil || token.Kind == lexer.EOF {
			return nil
		}
		if token.Kind == lexer.Name && len(token.Value) > maxName {
			return &token.Pos
		}
	}
	return nil
}

// part is an operation or a fragment: what it has of its own, and the fragments that it spreads.
type part struct {
	size    int // selections, arguments, directives and values
	spreads []*ast.FragmentSpread
	deep    *ast.Position // of a value that is nested too deep
}

// bound refuses a parsed document with too many definitions or with fragments in a cycle, and one that comes to more than limit
// selections, arguments and values when each operation and each fragment counts all fragments that it reaches, each once.
// It takes no more steps than that itself.
func bound(doc *ast.QueryDocument, limit int) *gqlerror.Error {
	if n := len(doc.Operations) + len(doc.Fragments); n > maxDefinitions {
		return tooComplex("the document has %d operations and fragments, and may have %d", n, maxDefinitions)
	}
	variables := 0
	parts := make([]part, 0, len(doc.Operations)+len(doc.Fragments))
	for _, op := range doc.Operations {
		p := part{size: len(op.VariableDefinitions)}
		variables += len(op.VariableDefinitions)
		for _, v := range op.VariableDefinitions {
			p.value(v.DefaultValue, maxDepth)
			p.directives(v.Directives)
		}
		p.directives(op.Directives)
		p.selections(op.SelectionSet)
		parts = append(parts, p)
	}
	if variables > maxVariables {
		return tooComplex("the document has %d variables, and may have %d", variables, maxVariables)
	}
	fragments := make(map[string]*part, len(doc.Fragments))
	for _, f := range doc.Fragments {
		p := part{size: 1}
		p.directives(f.Directives)
		p.selections(f.SelectionSet)
		parts = append(parts, p)
		if _, double := fragments[f.Name]; !double {
			fragments[f.Name] = &p
		}
	}
	if spread := cycle(doc.Fragments, fragments); spread != nil {
		err := gqlerror.ErrorPosf(spread.Position, "Cannot spread fragment %q within itself.", spread.Name)
		err.Rule = rules.NoFragmentCyclesRule.Name
		return err
	}
	total := 0
	for i := range parts {
		if parts[i].deep != nil {
			err := gqlerror.ErrorPosf(parts[i].deep, "A value may be nested %d deep.", maxDepth)
			err.Rule = "ValuesAreShallow"
			return err
		}
		reached := map[string]bool{}
		open := []*part{&parts[i]}
		for len(open) > 0 && total <= limit {
			p := open[len(open)-1]
			open = open[:len(open)-1]
			total += p.size
			for _, spread := range p.spreads {
				if f := fragments[spread.Name]; f != nil && !reached[spread.Name] {
					reached[spread.Name] = true
					open = append(open, f)
				}
			}
		}
	}
	if total > limit {
		return tooComplex("the document comes to more than %d parts, counting a fragment's for each definition that reaches it", limit)
	}
	return nil
}

func (p *part) selections(set ast.SelectionSet) {
	for _, selection := range set {
		p.size++
		switch s := selection.(type) {
		case *ast.Field:
			p.arguments(s.Arguments)
			p.directives(s.Directives)
			p.selections(s.SelectionSet)
		case *ast.InlineFragment:
			p.directives(s.Directives)
			p.selections(s.SelectionSet)
		case *ast.FragmentSpread:
			p.directives(s.Directives)
			p.spreads = append(p.spreads, s)
		}
	}
}

func (p *part) directives(list ast.DirectiveList) {
	for _, d := range list {
		p.size++
		p.arguments(d.Arguments)
	}
}

func (p *part) arguments(list ast.ArgumentList) {
	for _, a := range list {
		p.size++
		p.value(a.Value, maxDepth)
	}
}

func (p *part) value(v *ast.Value, depth int) {
	if v == nil {
		return
	}
	p.size++
	if depth == 0 && len(v.Children) > 0 {
		p.deep = v.Position
		return
	}
	for _, child := range v.Children {
		p.value(child.Value, depth-1)
	}
}

// cycle finds a spread of a fragment within itself.
func cycle(list ast.FragmentDefinitionList, fragments map[string]*part) *ast.FragmentSpread {
	done := make(map[string]bool, len(fragments)) // false while it is walked
	var walk func(name string) *ast.FragmentSpread
	walk = func(name string) *ast.FragmentSpread {
		done[name] = false
		for _, spread := range fragments[name].spreads {
			finished, seen := done[spread.Name]
			if seen && !finished {
				return spread
			}
			if _, known := fragments[spread.Name]; known && !seen {
				if found := walk(spread.Name); found != nil {
					return found
				}
			}
		}
		done[name] = true
		return nil
	}
	for _, f := range list {
		if !done[f.Name] {
			if found := walk(f.Name); found != nil {
				return found
			}
		}
	}
	return nil
}
