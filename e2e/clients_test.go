package e2e_test

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// callers are what calls out: whatever makes one of these makes a way around the guard.
var callers = map[string][]string{
	"net/http":                     {"Client", "Transport", "DefaultClient", "DefaultTransport", "Get", "Head", "Post", "PostForm"},
	"net":                          {"Dialer", "Dial", "DialTimeout", "DialTCP"},
	"crypto/tls":                   {"Dialer", "Dial", "DialWithDialer"},
	"github.com/gorilla/websocket": {"Dialer", "DefaultDialer", "NewClient"},
}

// TestOneDoorOut: whatever the server is made of makes no HTTP client but in egress. To name the type of one, as a field's, is no
// harm.
func TestOneDoorOut(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", "-f", `{{if .Module}}{{if .Module.Main}}{{.ImportPath}} {{.Dir}} {{join .GoFiles " "}}{{end}}{{end}}`, "parley").Output()
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] == "parley/egress" {
			continue
		}
		for _, name := range fields[2:] {
			set := gotoken.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(fields[1], name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files++
			for _, bad := range doors(file) {
				if fields[0] == "parley/store" && name == "postgres.go" && bad == "net.Dialer" {
					continue // to the operator's own database
				}
				t.Errorf("%s makes a way out of its own: %s", fields[0]+"/"+name, bad)
			}
		}
	}
	if files < 50 {
		t.Errorf("%d files were looked at", files)
	}
	// The test's own eyes.
	for source, want := range map[string]int{
		`import "net/http"; var c = http.Client{}`:                                  1,
		`import "net/http"; var c = &http.Client{Transport: http.DefaultTransport}`: 2,
		`import web "net/http"; var c = new(web.Transport)`:                         1,
		`import "net/http"; func f() { http.Get("x") }`:                             1,
		`import "net/http"; type t struct { c *http.Client }`:                       0,
		`import "net/http"; func f(c *http.Client) *http.Client { return c }`:       0,
		`import "net"; var d net.Dialer`:                                            1,
	} {
		file, err := parser.ParseFile(gotoken.NewFileSet(), "x.go", "package x; "+source, parser.SkipObjectResolution)
		if err != nil || len(doors(file)) != want {
			t.Errorf("%s: %v, want %d; %v", source, doors(file), want, err)
		}
	}
}

// doors are the ways out that a file makes: each of callers, but pointers to one as a type.
func doors(file *ast.File) []string {
	names := map[string]string{} // of the packages, as the file calls them
	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if callers[path] != nil {
			names[name] = path
		}
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		if star, ok := n.(*ast.StarExpr); ok {
			_, qualified := star.X.(*ast.SelectorExpr)
			return !qualified // a pointer's type
		}
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok && slices.Contains(callers[names[pkg.Name]], sel.Sel.Name) {
				found = append(found, pkg.Name+"."+sel.Sel.Name)
			}
		}
		return true
	})
	return found
}
