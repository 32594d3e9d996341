package rest

import (
	"io"
	"net/http"

	"parley/store"
)

// schema is GET /schema.graphqls: the GraphQL schema's text, for those who may introspect.
func (a *API) schema(w http.ResponseWriter, r *http.Request) error {
	v, err := store.ViewerOf(r.Context())
	if err != nil {
		return err
	}
	if !a.Introspection(v) {
		return store.ErrSchemaHidden
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = io.WriteString(w, a.SDL) // nobody is left to tell
	return nil
}
