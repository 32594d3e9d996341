package rest

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"parley/agent"
	"parley/store"
	"parley/store/hook"
)

// API serves the REST paths.
type API struct {
	Store  *store.Store
	Hooks  *hook.Hooks
	Runner *agent.Runner
	Log    *slog.Logger

	SDL           string                   // the GraphQL schema's text
	Introspection func(*store.Viewer) bool // says whether a viewer may see it
}

// Handler routes the paths.
func (a *API) Handler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/agents/{agent_id}/chat", a.methods(map[string]handler{http.MethodPost: a.chat}))
	mux.Handle("/agents/{agent_id}/test", a.methods(map[string]handler{http.MethodPost: a.test}))
	mux.Handle("/v1/webhooks", a.methods(map[string]handler{http.MethodPost: a.createWebhook, http.MethodGet: a.listWebhooks}))
	mux.Handle("/openapi.json", a.methods(map[string]handler{http.MethodGet: a.openAPI}))
	mux.Handle("/schema.graphqls", a.methods(map[string]handler{http.MethodGet: a.schema}))
	mux.Handle("/", a.methods(nil))
	return mux
}

// handler answers a request, or returns why it did not.
type handler func(w http.ResponseWriter, r *http.Request) error

// methods routes one path by method, and writes the errors of its handlers.
func (a *API) methods(of map[string]handler) http.Handler {
	var allow []string
	for method := range of {
		allow = append(allow, method)
	}
	slices.Sort(allow)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := of[r.Method]
		switch {
		case h != nil:
			if r.Method == http.MethodGet {
				ctx, cancel := store.WithDeadline(r.Context(), store.ReadTime)
				defer cancel()
				r = r.WithContext(ctx)
			}
			if err := h(w, r); err != nil {
				a.fail(w, r, store.Cause(r.Context(), err))
			}
		case of == nil:
			write(w, http.StatusNotFound, problem{"there is nothing at this path", "not_found"})
		default:
			w.Header().Set("Allow", strings.Join(allow, ", "))
			write(w, http.StatusMethodNotAllowed, problem{"this path does not take this method", "method_not_allowed"})
		}
	})
}

// problem is the body of an error.
type problem struct {
	Detail any    `json:"detail"`
	Code   string `json:"code,omitempty"`
}

// statuses are the HTTP statuses of the codes.
var statuses = map[store.Code]int{
	store.CodeInvalid:         http.StatusUnprocessableEntity,
	store.CodeUnauthenticated: http.StatusUnauthorized,
	store.CodeForbidden:       http.StatusForbidden,
	store.CodeNotFound:        http.StatusNotFound,
	store.CodeConflict:        http.StatusConflict,
	store.CodeRateLimited:     http.StatusTooManyRequests,
	store.CodeModelFailed:     http.StatusBadGateway,
	store.CodeModelTimeout:    http.StatusGatewayTimeout,
	store.CodeSessionExpired:  http.StatusGone,
	store.CodeCursorExpired:   http.StatusGone,
	store.CodeUnavailable:     http.StatusServiceUnavailable,
}

// refusal is an error of HTTP alone, such as a body that is too large.
type refusal struct {
	status int
	problem
}

func (r *refusal) Error() string { return r.Code }

func refuse(status int, code, sentence string) error {
	return &refusal{status, problem{sentence, code}}
}

// fail writes an error. What is not meant for the caller is logged, and not shown.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	var own *refusal
	if errors.As(err, &own) {
		write(w, own.status, own.problem)
		return
	}
	e, ok := store.AsError(err)
	if ok && errors.Unwrap(e) != nil {
		a.Log.Log(r.Context(), a.Store.Level(err), "a REST request was refused", "path", r.URL.Path, "error", errors.Unwrap(e))
	}
	switch {
	case ok && e.Faults != nil:
		write(w, http.StatusUnprocessableEntity, problem{Detail: e.Faults})
	case ok:
		status := statuses[e.Code]
		switch status {
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", `Bearer realm="parley", ApiKey realm="parley"`)
		case http.StatusServiceUnavailable, http.StatusTooManyRequests:
			w.Header().Set("Retry-After", strconv.Itoa(max(1, e.RetryAfter)))
		}
		write(w, status, problem{e.Message, e.Reason})
	case r.Context().Err() != nil: // the caller is gone
	default:
		a.Log.ErrorContext(r.Context(), "a REST request failed", "path", r.URL.Path, "error", err)
		write(w, http.StatusInternalServerError, problem{"something went wrong on our side", "internal"})
	}
}

// write sends v as JSON. No cache may keep it: it may hold a secret, and what a viewer may see is
// nobody else's.
func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // nobody is left to tell
}
