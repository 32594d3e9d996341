// Package graphiql serves the GraphiQL page from this binary alone: npm's build of it is embedded, and its content security
// policy lets the page load nothing from, and send nothing to, another host. The page is a client like any other: whoever uses it
// puts an access token into its headers. build.js makes the embedded files.
package graphiql

import (
	"bytes"
	"compress/gzip"
	"embed"
	"io"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed page
var page embed.FS

// GraphiQL styles its editors in place, so styles may be inline; scripts may not.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; font-src 'self' data:; " +
	"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

var types = map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}

// Handler serves /graphiql and the files below it.
func Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /graphiql", func(w http.ResponseWriter, r *http.Request) { serve(w, r, "index.html") })
	mux.HandleFunc("GET /graphiql/app.js", func(w http.ResponseWriter, r *http.Request) { serve(w, r, "app.js.gz") })
	mux.HandleFunc("GET /graphiql/app.css", func(w http.ResponseWriter, r *http.Request) { serve(w, r, "app.css.gz") })
	return mux
}

func serve(w http.ResponseWriter, r *http.Request, name string) {
	body, err := page.ReadFile("page/" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-cache")
	plain, compressed := strings.CutSuffix(name, ".gz")
	header.Set("Content-Type", types[path.Ext(plain)])
	if compressed {
		header.Set("Vary", "Accept-Encoding")
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			header.Set("Content-Encoding", "gzip")
		} else if body, err = unpack(body); err != nil {
			http.Error(w, "the file is damaged", http.StatusInternalServerError)
			return
		}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

func unpack(body []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}
