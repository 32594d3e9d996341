package rest

import (
	_ "embed"
	"net/http"
)

//go:embed openapi.json
var openAPI []byte

// openAPI is GET /openapi.json: the REST paths, in OpenAPI 3.1.
func (a *API) openAPI(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI) // nobody is left to tell
	return nil
}
