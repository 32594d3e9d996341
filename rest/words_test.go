package rest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"parley/store"
)

// word is a refusal as the sources have it, or a row of the guide's table.
type word struct {
	name, code, status, says string
}

// neverShown are words that no caller gets: the packages tell each other by them, or the command
// line tells the operator.
var neverShown = []string{"idempotency_answered", "business_not_found"}

// TestGuideHasEveryCode holds docs/api.md against the sources: the closed set of codes, and every
// word with its code, its status and its sentence.
func TestGuideHasEveryCode(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	codes, words := refusals(t)
	if len(codes) < 13 || len(words) < 40 {
		t.Fatalf("the sources have %d codes and %d words", len(codes), len(words))
	}

	guide := map[string]string{} // statuses by code
	for _, row := range table(t, doc, "codes") {
		guide[unquote(row[0])] = row[1]
	}
	for _, code := range codes {
		want := "·"
		if status := statuses[store.Code(code)]; status != 0 {
			want = fmt.Sprint(status)
		} else if code == "INTERNAL" {
			want = "500"
		}
		if guide[code] != want {
			t.Errorf("the guide's status of %s is %q, and not %q", code, guide[code], want)
		}
		delete(guide, code)
	}
	if len(guide) > 0 {
		t.Errorf("the guide has codes that there are not: %v", guide)
	}

	told := map[string]word{}
	for _, row := range table(t, doc, "words") {
		told[unquote(row[0])] = word{unquote(row[0]), unquote(row[1]), row[2], row[3]}
	}
	names := map[string]bool{}
	for _, w := range words {
		names[w.name] = true
		row, ok := told[w.name]
		switch {
		case slices.Contains(neverShown, w.name):
			if ok {
				t.Errorf("the guide tells of %s, which nobody gets", w.name)
			}
		case !ok:
			t.Errorf("the guide lacks %s (%s)", w.name, w.says)
		case row.code != w.code && row.code != "·":
			t.Errorf("the guide's code of %s is %s, and not %s", w.name, row.code, w.code)
		case row.status != w.status && (row.status != "·" || w.code == "·"):
			t.Errorf("the guide's status of %s is %s, and not %s", w.name, row.status, w.status)
		}
	}
	for name, row := range told {
		says := func(w word) bool { return w.name == name && (w.says == "" || w.says == row.says || row.says == "…") }
		if !names[name] {
			t.Errorf("the guide has a word that there is not: %s", name)
		} else if !slices.ContainsFunc(words, says) {
			t.Errorf("nobody who refuses with %s says %q", name, row.says)
		}
	}
}

func unquote(cell string) string { return strings.Trim(cell, "`") }

// table are the rows of a table of the guide, without its head.
func table(t *testing.T, doc []byte, name string) (rows [][]string) {
	t.Helper()
	found := regexp.MustCompile("(?s)<!-- the " + name + " begin -->\n.*?\n.*?\n(.*?)<!-- the " + name + " end -->").FindSubmatch(doc)
	if found == nil {
		t.Fatalf("the guide has no table of the %s", name)
	}
	for line := range bytes.Lines(found[1]) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(string(line)), "|"), "|")
		for i, c := range cells {
			cells[i] = strings.TrimSpace(c)
		}
		rows = append(rows, cells)
	}
	return rows
}

// refusals are the codes and the words of the sources.
func refusals(t *testing.T) (codes []string, words []word) {
	t.Helper()
	all := map[string]string{} // of the constants, by name
	files := sources(t)
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if ok && len(spec.Values) == 1 && len(spec.Names) == 1 && strings.HasPrefix(strings.ToLower(spec.Names[0].Name), "code") {
				if value := literal(spec.Values[0]); value == strings.ToUpper(value) && value != "" && value != "PERSISTED_QUERY_NOT_FOUND" {
					all[spec.Names[0].Name] = value
				}
			}
			return true
		})
	}
	codes = slices.Compact(slices.Sorted(maps.Values(all)))
	codeOf := func(x ast.Expr) (code, status string) {
		if sel, ok := x.(*ast.SelectorExpr); ok {
			x = sel.Sel
		}
		if id, ok := x.(*ast.Ident); ok {
			code = all[id.Name]
		}
		if status = "·"; statuses[store.Code(code)] != 0 {
			status = fmt.Sprint(statuses[store.Code(code)])
		}
		return code, status
	}
	add := func(name string, code ast.Expr, says string) {
		w := word{name: name, says: says}
		if w.code, w.status = codeOf(code); w.name != "" && w.code != "" {
			words = append(words, w)
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				name := called(n)
				switch {
				case (name == "refuse" || name == "Refuse") && len(n.Args) == 3:
					// Rest's own.
					if status, ok := n.Args[0].(*ast.SelectorExpr); ok && strings.HasPrefix(status.Sel.Name, "Status") {
						words = append(words, word{literal(n.Args[1]), "·", httpStatus[status.Sel.Name], literal(n.Args[2])})
					} else {
						add(literal(n.Args[1]), n.Args[0], literal(n.Args[2]))
					}
				case name == "unavailable" && len(n.Args) == 2:
					add(literal(n.Args[0]), ast.NewIdent("CodeUnavailable"), literal(n.Args[1]))
				case name == "write" && len(n.Args) == 3:
					status, _ := n.Args[1].(*ast.SelectorExpr)
					if p, ok := n.Args[2].(*ast.CompositeLit); ok && status != nil && len(p.Elts) == 2 {
						words = append(words, word{literal(p.Elts[1]), "·", httpStatus[status.Sel.Name], literal(p.Elts[0])})
					}
				}
			case *ast.CompositeLit:
				fields := map[string]ast.Expr{}
				for _, e := range n.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						if key, ok := kv.Key.(*ast.Ident); ok {
							fields[key.Name] = kv.Value
						}
					}
				}
				if fields["Code"] != nil && fields["Reason"] != nil {
					add(literal(fields["Reason"]), fields["Code"], literal(fields["Message"]))
				}
			}
			return true
		})
	}
	// Two are written without a call: of pages of other origins, and of persisted queries, in whose
	// words only clients of that are spoken to.
	words = append(words, word{"origin_not_allowed", "FORBIDDEN", "403", ""}, word{"persisted_query_not_found", "BAD_USER_INPUT", "422", ""})
	return codes, words
}

// httpStatus are the statuses that the sources name.
var httpStatus = map[string]string{
	"StatusBadRequest": "400", "StatusNotFound": "404", "StatusMethodNotAllowed": "405", "StatusRequestEntityTooLarge": "413",
	"StatusUnsupportedMediaType": "415", "StatusInternalServerError": "500",
}

func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

func literal(x ast.Expr) string {
	lit, ok := x.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	value, _ := strconv.Unquote(lit.Value)
	return value
}

// sources are the module's files, without tests and what is generated.
func sources(t *testing.T) (files []*ast.File) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), "_") || slices.Contains([]string{".git", "node_modules", "bench", "e2e", "docs", "tools"}, d.Name())) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || d.Name() == "generated.go" {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		files = append(files, file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
