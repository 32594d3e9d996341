package graphiql_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

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
