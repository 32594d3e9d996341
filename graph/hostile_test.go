package graph_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"parley/graph"
)

// TestHostileDocuments: the dearest documents that the limit of tokens lets through cost no more than harmless ones of their size.
// Allocations are the measure, since they are the same on each machine; some of these would take hours with gqlparser's own rules.
func TestHostileDocuments(t *testing.T) {
	const complex, invalid = `"TOO_COMPLEX"`, `"BAD_USER_INPUT"`
	few := func(text string) string { return strings.Repeat(text+" ", 20) }
	for name, c := range map[string]struct {
		document, code string
	}{
		"100,000 aliases":              {"{viewer{business{" + numbered(100_000, "a#:id ") + "}}}", complex},
		"of one name":                  {"{" + strings.Repeat("a ", 9_990) + "}", invalid},
		"of one field":                 {"{" + strings.Repeat("feedCursor ", 9_990) + "}", complex},
		"of one alias":                 {"{" + strings.Repeat("a:feedCursor ", 3_300) + "}", complex},
		"of one alias for two":         {"{" + strings.Repeat("a:feedCursor a:viewer{scope} ", 1_100) + "}", invalid},
		"of one field with arguments":  {"{" + strings.Repeat(`agent(id:"x"){id} `, 1_100) + "}", complex},
		"of one field's argument":      {"{" + strings.Repeat("agent("+numbered(40, "a#:0 ")+"){id} ", 70) + "}", invalid},
		"of one field in two":          {"{" + few("viewer{") + few("scope") + few("}") + few("viewer{") + few("scope") + few("}") + "}", invalid},
		"inline in inline":             {"{" + strings.Repeat("...{", 3_000) + few("feedCursor") + strings.Repeat("}", 3_000) + "}", ""},
		"field in field":               {"{" + strings.Repeat("a{", 3_000) + "a" + strings.Repeat("}", 3_000) + "}", invalid},
		"doubled in the schema":        {`{__type(name:"X"){...f0}}` + chain(60, "__Type", "NEXT NEXT", "name"), complex},
		"doubled below a field":        {`{__type(name:"X"){...f0}}` + chain(60, "__Type", "ofType{NEXT} ofType{NEXT}", "name"), complex},
		"beside its own unfolding":     {`{__type(name:"X"){` + strings.Repeat("ofType{", 60) + "name" + strings.Repeat("}", 60) + " ...f0}}" + chain(60, "__Type", "ofType{NEXT} ofType{NEXT}", "name"), complex},
		"on two ways":                  {`{__type(name:"X"){...f0}}` + chain(60, "__Type", "a:ofType{NEXT} b:ofType{NEXT}", "name"), complex},
		"doubled in inline fragments":  {"{viewer{...f0}}" + chain(60, "Viewer", "...{NEXT} ...on Viewer{...{NEXT}}", "scope"), complex},
		"doubled across types":         {"{...q ...q}fragment q on Query{viewer{...f0} viewer{...f0}}" + chain(60, "Viewer", "NEXT business{...b ...b} NEXT", "scope") + "fragment b on Business{id id}", complex},
		"a chain of fragments":         {"{viewer{...f0}}" + chain(450, "Viewer", "NEXT", "scope"), complex},
		"a longer chain":               {"{viewer{...f0}}" + chain(1_200, "Viewer", "NEXT", "scope"), complex},
		"a chain with inline ones":     {"{viewer{...f0}}" + chain(450, "Viewer", "NEXT ...{scope ...{scope}}", "scope"), complex},
		"fragments by operations":      {numbered(400, "query q#{viewer{...f}}") + "fragment f on Viewer{" + strings.Repeat("scope ", 5_000) + "}", complex},
		"fields beside fragments":      {"{viewer{" + numbered(2_000, "x# ") + numbered(400, "...f#") + "}}" + numbered(400, "fragment f# on Viewer{scope}"), invalid},
		"fragments in a cycle":         {"{viewer{...f0}}" + chain(400, "Viewer", "NEXT ...f0", strings.Repeat("...f0 ", 1_000)), invalid},
		"a fragment in itself":         {"{viewer{...f0}}fragment f0 on Viewer{scope ...f0}", invalid},
		"variables":                    {"query(" + numbered(1_000, "$v#:Int ") + "){a(b:[" + numbered(2_500, "$v# ") + "])}", complex},
		"an undefined variable":        {"query " + strings.Repeat("q", 500_000) + "{a(b:[" + strings.Repeat("$v ", 4_500) + "])}", invalid},
		"unknown types":                {"{" + numbered(450, "...f#") + "}" + numbered(450, "fragment f# on A#"+strings.Repeat("z", 200)+"{a}"), invalid},
		"lists of the schema in lists": {"{__schema{types{fields{type{...f0}}}}}" + chain(1, "__Type", "fields{type{NEXT}}", "fields{name}"), complex},
		"each endpoint's deliveries":   {"{webhookEndpoints{deliveries(first:100){nodes{id status createdAt}}}}", complex},
		"a thousand of the schema":     {"{__schema{types{" + strings.Repeat("name ", 1_000) + "}}}", complex},
	} {
		t.Run(name, func(t *testing.T) {
			ask := server(t, graph.HandlerConfig{})
			run := 0
			var answer string
			allocations := testing.AllocsPerRun(1, func() {
				run++ // a document that is known is not looked at again
				body, err := json.Marshal(map[string]string{"query": c.document + "#" + strconv.Itoa(run)})
				if err != nil {
					t.Fatal(err)
				}
				_, answer = ask(string(body))
			})
			if allocations > 250_000 {
				t.Errorf("%.0f allocations for %d bytes", allocations, len(c.document))
			}
			if !strings.Contains(answer, c.code) {
				t.Errorf("wanted %s, got %.300s", c.code, answer)
			}
		})
	}
}

// chain is n fragments on a type of the same selections, in which NEXT spreads the next one, and one more of the last selections.
func chain(n int, on, each, last string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "fragment f%d on %s{%s}\n", i, on, strings.ReplaceAll(each, "NEXT", "...f"+strconv.Itoa(i+1)))
	}
	fmt.Fprintf(&b, "fragment f%d on %s{%s}\n", n, on, last)
	return b.String()
}

// numbered is a text n times, with its number for #.
func numbered(n int, text string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.ReplaceAll(text, "#", strconv.Itoa(i)))
	}
	return b.String()
}

// TestUsualDocuments: the query of the usual tools, and fragments in fragments that say the same often, are not hostile.
func TestUsualDocuments(t *testing.T) {
	t.Parallel()
	ask := server(t, graph.HandlerConfig{})
	deep := strings.Repeat("ofType{kind name ", 9) + strings.Repeat("}", 9)
	for name, document := range map[string]string{
		"introspection": `{__schema{queryType{name kind} mutationType{name kind} subscriptionType{name kind} types{...FullType}
			directives{name description isRepeatable locations args(includeDeprecated:true){...InputValue}}}}
			fragment FullType on __Type{kind name description specifiedByURL isOneOf fields(includeDeprecated:true){name description
			args(includeDeprecated:true){...InputValue} type{...TypeRef} isDeprecated deprecationReason}
			inputFields(includeDeprecated:true){...InputValue} interfaces{...TypeRef}
			enumValues(includeDeprecated:true){name description isDeprecated deprecationReason} possibleTypes{...TypeRef}}
			fragment InputValue on __InputValue{name description type{...TypeRef} defaultValue isDeprecated deprecationReason}
			fragment TypeRef on __Type{kind name ` + deep + `}`,
		"a page of a dashboard": `{viewer{business{id name} scope} webhookEndpoints{id url events status disabledReason
			deliveries(first:10,status:FAILED){nodes{id createdAt event{id type}}}} deliveries(first:100){edges{cursor node{id status createdAt
			nextAttemptAt endpoint{id url} event{id type channel direction timestamp data} attempts{number trigger startedAt durationMs statusCode
			error responseBody}}} pageInfo{hasNextPage endCursor}}}`,
		"fragments": "{viewer{...f0 ...f3 ...f5 scope business{name id}}}" + chain(40, "Viewer", "NEXT scope business{id ...b}", "scope") + "fragment b on Business{id name}",
	} {
		body, err := json.Marshal(map[string]string{"query": document})
		if err != nil {
			t.Fatal(err)
		}
		if _, answer := ask(string(body)); strings.Contains(answer, "TOO_COMPLEX") || strings.Contains(answer, "BAD_USER_INPUT") {
			t.Errorf("%s: %.400s", name, answer)
		}
	}
}

// TestMergedFields: what the rule says of fields that share a response name is what gqlparser's says.
func TestMergedFields(t *testing.T) {
	t.Parallel()
	ask := server(t, graph.HandlerConfig{})
	schema := graph.NewExecutableSchema(graph.Config{}).Schema()
	oracle := rules.NewRules(rules.OverlappingFieldsCanBeMergedRule)
	random := rand.New(rand.NewPCG(1, 2))
	conflicts := 0
	for range 1_500 {
		document := randomDocument(random)
		doc, err := parser.ParseQuery(&ast.Source{Input: document})
		if err != nil {
			t.Fatalf("%s: %v", document, err)
		}
		want := len(validator.ValidateWithRules(schema, doc, oracle)) > 0
		body, err := json.Marshal(map[string]string{"query": document})
		if err != nil {
			t.Fatal(err)
		}
		_, answer := ask(string(body))
		if got := strings.Contains(answer, " conflict because "); got != want {
			t.Fatalf("gqlparser: %v, we: %v: %s\n%s", want, got, document, answer)
		}
		if want {
			conflicts++
		}
	}
	if conflicts < 300 || conflicts > 1_200 {
		t.Errorf("%d of 1,500 documents have conflicts: that tests little", conflicts)
	}
	for document, want := range map[string]bool{
		`{events(filter:{types:[RUN_FAILED]}){nodes{id}} events(filter:{types:[RUN_FINISHED]}){nodes{id}}}`: true,
		`{events(filter:{types:[RUN_FAILED]}){nodes{id}} events(filter:{types:[RUN_FAILED]}){nodes{id}}}`:   false,
	} {
		body, _ := json.Marshal(map[string]string{"query": document})
		if _, answer := ask(string(body)); strings.Contains(answer, " conflict because ") != want {
			t.Errorf("%s: %s", document, answer)
		}
	}
}

// randomDocument is one of few names, so that some of them meet.
func randomDocument(r *rand.Rand) string {
	var spreads []string
	var selections func(on string, depth int) string
	selections = func(on string, depth int) string {
		var b strings.Builder
		for range 1 + r.IntN(3) {
			alias := []string{"", "", "", "", "", "x:", "y:"}[r.IntN(7)]
			switch kind := r.IntN(8); {
			case kind == 0 && depth > 0:
				b.WriteString("...{" + selections(on, depth-1) + "} ")
			case kind == 1 && depth > 0:
				b.WriteString("...on " + on + "{" + selections(on, depth-1) + "} ")
			case kind < 4 && depth > 0:
				name := fmt.Sprintf("%s%d", on, 3*depth+r.IntN(3))
				if !slices.Contains(spreads, name) {
					spreads = append(spreads, name)
				}
				b.WriteString("..." + name + " ")
			case on == "Query" && depth > 0 && r.IntN(2) == 0:
				b.WriteString(alias + "viewer{" + selections("Viewer", depth-1) + "} ")
			case on == "Query" && depth > 0:
				fmt.Fprintf(&b, "%sagent(id:%q){%s} ", alias, []string{"1", "1", "1", "2"}[r.IntN(4)], selections("Agent", depth-1))
			case on == "Query":
				b.WriteString(alias + "feedCursor ")
			case on == "Viewer" && depth > 0:
				b.WriteString(alias + "business{" + selections("Business", depth-1) + "} ")
			case on == "Viewer":
				b.WriteString(alias + []string{"scope ", "scope ", "credential "}[r.IntN(3)])
			default:
				b.WriteString(alias + []string{"id ", "id ", "name "}[r.IntN(3)])
			}
		}
		return b.String()
	}
	document := "{" + selections("Query", 4) + "}"
	for i := 0; i < len(spreads); i++ { // each may add others
		on := strings.TrimRight(spreads[i], "0123456789")
		level, _ := strconv.Atoi(spreads[i][len(on):])
		document += " fragment " + spreads[i] + " on " + on + "{" + selections(on, level/3-1) + "}"
	}
	return document
}
