package main

import (
	"bufio"
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"parley/store"
)

const (
	headerRequestID = "X-Request-Id"
	maxRequestID    = 64
)

// identify gives each request an id, which its answer and every line of the log about it carry. A caller, or a proxy in front
// of the server, can give its own.
func identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(headerRequestID)
		if !isRequestID(id) {
			id = store.NewRequestID()
		}
		w.Header().Set(headerRequestID, id)
		next.ServeHTTP(w, r.WithContext(store.WithRequestID(r.Context(), id)))
	})
}

// isRequestID says whether s can be told in a log and a header without harm.
func isRequestID(s string) bool {
	return s != "" && len(s) <= maxRequestID && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("-_.:", r)
	})
}

// requestLog adds the request's id to each line of the log.
type requestLog struct{ slog.Handler }

func (l requestLog) Handle(ctx context.Context, r slog.Record) error {
	if id := store.RequestID(ctx); id != "" {
		r.AddAttrs(slog.String("request_id", id))
	}
	return l.Handler.Handle(ctx, r)
}

func (l requestLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return requestLog{l.Handler.WithAttrs(attrs)}
}

func (l requestLog) WithGroup(name string) slog.Handler { return requestLog{l.Handler.WithGroup(name)} }

// observer tells of each request, once, when it has been answered: a line in the log, and what told
// counts. A WebSocket counts as answered when it is open.
type observer struct {
	log   *slog.Logger
	route func(*http.Request) string // the pattern of the path that serves it
	told  func(request)
	// The connection of an answer ends with it: what comes next is for another replica.
	draining func() bool
}

// request is one that was answered.
type request struct {
	route    string
	status   int
	took     time.Duration
	lasting  bool   // it was open for as long as its caller liked: a WebSocket, or an event stream
	business string // empty: nobody knows whose it was
}

// caller is who made a request, as far as anybody has found out.
type caller struct{ viewer *store.Viewer }

type callerKey struct{}

// noteCaller tells the observer who made the request.
func noteCaller(ctx context.Context, v *store.Viewer) {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		c.viewer = v
	}
}

func (o *observer) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, who, resp := time.Now(), new(caller), &response{ResponseWriter: w, draining: o.draining}
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, who))
		ended := false
		defer func() {
			if !ended && resp.status == 0 { // a handler has panicked
				resp.status = http.StatusInternalServerError
			}
			o.tell(r, who.viewer, resp, time.Since(began))
		}()
		next.ServeHTTP(resp, r)
		ended = true
	})
}

func (o *observer) tell(r *http.Request, v *store.Viewer, a *response, took time.Duration) {
	told := request{route: o.route(r), status: cmp.Or(a.status, http.StatusOK), took: took}
	if v != nil {
		told.business = v.BusinessID
	}
	told.lasting = told.status == http.StatusSwitchingProtocols || strings.HasPrefix(a.Header().Get("Content-Type"), "text/event-stream")
	o.told(told)
	level := slog.LevelInfo
	switch told.route {
	case "/healthz", "/readyz", "/metrics":
		level = slog.LevelDebug
	}
	if !o.log.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("method", r.Method[:min(len(r.Method), maxMethod)]), slog.String("route", told.route), slog.Int("status", told.status),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000),
	}
	if v != nil {
		attrs = append(attrs, slog.String("business", told.business), slog.String("credential", v.Credential.Prefix))
	}
	o.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// routeOf tells which of the paths serves a request: by its pattern, for the paths that there are
// not are endless.
func routeOf(outer, inner *http.ServeMux) func(*http.Request) string {
	return func(r *http.Request) string {
		_, pattern := outer.Handler(r)
		if pattern == "/" {
			_, pattern = inner.Handler(r)
		}
		if _, path, ok := strings.Cut(pattern, " "); ok { // after a method
			pattern = path
		}
		if pattern == "/" || pattern == "" {
			return "other"
		}
		return pattern
	}
}

const maxMethod = 16 // characters that are told: a caller may write anything there

// response notes the status of a response.
type response struct {
	http.ResponseWriter
	draining func() bool
	status   int
}

func (a *response) WriteHeader(status int) {
	if status >= http.StatusOK && a.status == 0 {
		a.status = status
		// http.MaxBytesReader closes the connection of who sends too much, but not through a
		// wrapper.
		if status == http.StatusRequestEntityTooLarge || a.draining() {
			a.Header().Set("Connection", "close")
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *response) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *response) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Hijack is how a WebSocket takes the connection.
func (a *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err == nil {
		a.status = http.StatusSwitchingProtocols
	}
	return conn, buffered, err
}
