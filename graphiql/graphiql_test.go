package graphiql_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"parley/e2e/servers"
	"parley/graphiql"
)

func fetch(t *testing.T, path string, header ...string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	graphiql.Handler().ServeHTTP(w, r)
	res := w.Result()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func TestPageLoadsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	res, html := fetch(t, "/graphiql")
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	loads := regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(html, -1)
	if len(loads) < 3 {
		t.Errorf("the page loads %v", loads)
	}
	for _, l := range loads {
		if strings.Contains(l[1], "//") {
			t.Errorf("the page loads %s", l[1])
		} else if strings.HasPrefix(l[1], "graphiql/") {
			if res, body := fetch(t, "/"+l[1]); res.StatusCode != http.StatusOK || len(body) < 10<<10 {
				t.Errorf("%s: %s, %d bytes", l[1], res.Status, len(body))
			}
		}
	}
	_, css := fetch(t, "/graphiql/app.css")
	if found := regexp.MustCompile(`(?i)(@import|url\(\s*["']?(https?:)?//)`).FindString(css); found != "" {
		t.Errorf("the styles load %s", found)
	}
	for _, path := range []string{"/graphiql", "/graphiql/app.js", "/graphiql/app.css"} {
		res, _ := fetch(t, path, "Accept-Encoding", "gzip")
		policy := res.Header.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'; script-src 'self';") || strings.Contains(policy, "http") || strings.Contains(policy, "*") {
			t.Errorf("%s: %s", path, policy)
		}
	}
	if res, _ := fetch(t, "/graphiql/main.jsx"); res.StatusCode != http.StatusNotFound {
		t.Errorf("another file: %s", res.Status)
	}
}

// TestPageIsWhatNpmMakes builds the page anew. The compressed bytes may differ with Node's zlib; what they hold may not.
func TestPageIsWhatNpmMakes(t *testing.T) {
	t.Parallel()
	servers.Need(t, "npm")
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "page"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"build.js", "main.jsx", "page.css", "package.json", "package-lock.json"} {
		raw, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, command := range []string{"npm ci --ignore-scripts --no-audit --no-fund --prefer-offline", "npm run build"} {
		words := strings.Fields(command)
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	plain := func(name string) []byte {
		t.Helper()
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for _, name := range []string{"page/app.js.gz", "page/app.css.gz"} {
		if !bytes.Equal(plain(name), plain(filepath.Join(dir, name))) {
			t.Errorf("%s is not what npm makes of the sources: run `npm ci --ignore-scripts && npm run build` in graphiql/", name)
		}
	}
}
