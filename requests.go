package main

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

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
