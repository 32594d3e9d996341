package graph_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"

	"parley/e2e/servers"
)

func load(t *testing.T, path string) *ast.Schema {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return gqlparser.MustLoadSchema(&ast.Source{Name: path, Input: string(text)})
}

const releasedSchema = "../docs/schema-released.graphqls"

// TestSchemaKeepsItsPromises holds the schema against that of the last release, docs/schema-released.graphqls. A release
// copies the schema there. Directives promise clients nothing: @listSize is the server's own, and what is deprecated still works.
func TestSchemaKeepsItsPromises(t *testing.T) {
	t.Parallel()
	for _, change := range breaking(load(t, releasedSchema), load(t, "../schema.graphqls")) {
		t.Error("breaks clients of the last release: " + change)
	}
}

// TestReleasedSchemaIsTheLastRelease: where the repository has a tag, the copy is what that tag's schema promises. Without a tag
// there is nothing that it could differ from. Without git the test is skipped, but never in CI.
func TestReleasedSchemaIsTheLastRelease(t *testing.T) {
	t.Parallel()
	if tags, err := exec.CommandContext(t.Context(), "git", "tag", "--merged").Output(); err != nil {
		servers.Missing(t, "git does not tell the tags: %v", err)
	} else if len(tags) == 0 {
		return
	}
	tag, err := exec.CommandContext(t.Context(), "git", "describe", "--tags", "--abbrev=0").Output()
	if err != nil {
		t.Fatalf("the last tag: %v", err)
	}
	last := strings.TrimSpace(string(tag))
	text, err := exec.CommandContext(t.Context(), "git", "show", last+":schema.graphqls").Output()
	if err != nil {
		t.Fatalf("the schema of %s: %v", last, err)
	}
	tagged := gqlparser.MustLoadSchema(&ast.Source{Name: last, Input: string(text)})
	for _, change := range breaking(tagged, load(t, releasedSchema)) {
		t.Errorf("docs/schema-released.graphqls is not the schema of %s: %s", last, change)
	}
	for _, change := range breaking(tagged, load(t, "../schema.graphqls")) {
		t.Errorf("breaks clients of %s: %s", last, change)
	}
}

func TestBreakingChangesAreNamed(t *testing.T) {
	t.Parallel()
	parse := func(text string) *ast.Schema { return gqlparser.MustLoadSchema(&ast.Source{Input: text}) }
	const before = `type Query { a(x: Int, y: Int! = 1, l: [Int]): String!  gone: Int  e: E  i(in: In): [T!]! } enum E { ONE TWO } input In { a: Int  b: Int! = 2  z: Int } type T { x: Int } type Old { x: Int }`
	for change, after := range map[string]string{
		"": `type Query { a(x: Int, y: Int! = 1, l: [Int], more: Int): String!  gone: Int!  e: E  i(in: In): [T!]!  new: Int } enum E { ONE TWO THREE } input In { a: Int  b: Int! = 2  z: Int  c: Int } type T { x: Int! } type Old { x: Int }`,
		"Query.a(l:) is gone|Query.a(x:) is now Int!|Query.a(y:) has another default":                                                       `type Query { a(x: Int!, y: Int! = 2): String!  gone: Int  e: E  i(in: In): [T!]! } enum E { ONE TWO } input In { a: Int  b: Int! = 2  z: Int } type T { x: Int } type Old { x: Int }`,
		"E.TWO is gone|In.c is new and required|In.z is gone|Query.a is now String|Query.gone is gone|Query.i is now [T]!|type Old is gone": `type Query { a(x: Int, y: Int! = 1, l: [Int]): String  e: E  i(in: In): [T]! } enum E { ONE } input In { a: Int  b: Int! = 2  c: Int! } type T { x: Int }`,
	} {
		if got := strings.Join(breaking(parse(before), parse(after)), "|"); got != change {
			t.Errorf("wanted %q\ngot    %q", change, got)
		}
	}
}

// breaking names what a client of the schema before may stumble over in the one after, sorted.
func breaking(before, after *ast.Schema) (changes []string) {
	say := func(format string, args ...any) { changes = append(changes, fmt.Sprintf(format, args...)) }
	for name, was := range before.Types {
		is := after.Types[name]
		switch {
		case was.BuiltIn:
			continue
		case is == nil:
			say("type %s is gone", name)
			continue
		case is.Kind != was.Kind:
			say("type %s is now %s", name, is.Kind)
			continue
		}
		for _, v := range was.EnumValues {
			if is.EnumValues.ForName(v.Name) == nil {
				say("%s.%s is gone", name, v.Name)
			}
		}
		input := was.Kind == ast.InputObject
		for _, f := range was.Fields {
			now := is.Fields.ForName(f.Name)
			switch {
			case strings.HasPrefix(f.Name, "__"):
			case now == nil:
				say("%s.%s is gone", name, f.Name)
			case input && !takes(now.Type, f.Type), !input && !takes(f.Type, now.Type):
				say("%s.%s is now %s", name, f.Name, now.Type)
			case input && defaultOf(f.DefaultValue) != defaultOf(now.DefaultValue):
				say("%s.%s has another default", name, f.Name)
			default:
				arguments(say, name+"."+f.Name, f.Arguments, now.Arguments)
			}
		}
		for _, f := range is.Fields {
			if input && was.Fields.ForName(f.Name) == nil && f.Type.NonNull && f.DefaultValue == nil {
				say("%s.%s is new and required", name, f.Name)
			}
		}
	}
	slices.Sort(changes)
	return changes
}

func arguments(say func(string, ...any), field string, before, after ast.ArgumentDefinitionList) {
	for _, a := range before {
		now := after.ForName(a.Name)
		switch {
		case now == nil:
			say("%s(%s:) is gone", field, a.Name)
		case !takes(now.Type, a.Type):
			say("%s(%s:) is now %s", field, a.Name, now.Type)
		case defaultOf(a.DefaultValue) != defaultOf(now.DefaultValue):
			say("%s(%s:) has another default", field, a.Name)
		}
	}
	for _, a := range after {
		if before.ForName(a.Name) == nil && a.Type.NonNull && a.DefaultValue == nil {
			say("%s(%s:) is new and required", field, a.Name)
		}
	}
}

func defaultOf(v *ast.Value) string {
	if v == nil {
		return ""
	}
	return v.String()
}

// takes says whether every value of the type given is one of the type wanted.
func takes(wanted, given *ast.Type) bool {
	if wanted.NonNull && !given.NonNull || (wanted.Elem == nil) != (given.Elem == nil) {
		return false
	}
	if wanted.Elem != nil {
		return takes(wanted.Elem, given.Elem)
	}
	return wanted.NamedType == given.NamedType
}

func TestSchemaIsDescribed(t *testing.T) {
	t.Parallel()
	described := func(description, format string, args ...any) {
		if strings.TrimSpace(description) == "" {
			t.Errorf("%s has no description", fmt.Sprintf(format, args...))
		}
	}
	schema := load(t, "../schema.graphqls")
	for name, d := range schema.Types {
		if d.BuiltIn {
			continue
		}
		described(d.Description, "type %s", name)
		for _, f := range d.Fields {
			if strings.HasPrefix(f.Name, "__") {
				continue
			}
			described(f.Description, "%s.%s", name, f.Name)
			for _, a := range f.Arguments {
				described(a.Description, "%s.%s(%s:)", name, f.Name, a.Name)
			}
		}
		for _, v := range d.EnumValues {
			described(v.Description, "%s.%s", name, v.Name)
		}
	}
	if d := schema.Directives["listSize"]; d == nil {
		t.Error("there is no @listSize")
	} else {
		described(d.Description, "@%s", d.Name)
		described(d.Arguments[0].Description, "@%s(%s:)", d.Name, d.Arguments[0].Name)
	}
}
