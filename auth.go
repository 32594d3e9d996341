package main

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strings"

	"parley/store"
	"parley/stream"
)

// gate finds out who is calling, and counts the call against the credential's rate limit.
type gate struct {
	store   *store.Store
	limiter *stream.Limiter // nil: no limit
	log     *slog.Logger
}

// authenticate puts the viewer, or why there is none, into the request's context. It refuses nothing: what a path asks for
// is the path's affair, and so is the form of its errors. A chat prefers the API key, everything else the token.
func (g *gate) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, token := r.Header.Get("X-API-Key"), bearer(r.Header.Get("Authorization"))
		if key == "" && token == "" {
			serveRefused(next, w, r, store.ErrUnauthenticated)
			return
		}
		kind, secret := store.KindAccessToken, token
		if key != "" && (token == "" || strings.HasPrefix(r.URL.Path, "/agents/")) {
			kind, secret = store.KindAPIKey, key
		}
		v, err := g.viewer(r.Context(), kind, secret)
		noteCaller(r.Context(), v)
		r = r.WithContext(store.WithViewer(r.Context(), v, err))
		if err != nil {
			serveRefused(next, w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// viewer is who a secret belongs to, with the call counted.
func (g *gate) viewer(ctx context.Context, kind store.CredentialKind, secret string) (*store.Viewer, error) {
	v, err := g.store.Authenticate(ctx, kind, secret)
	switch {
	case errors.Is(err, store.ErrUnauthenticated):
		return nil, err
	case err != nil:
		g.logFailure(ctx, err)
		return nil, store.ErrUnavailable
	}
	return v, g.admit(ctx, v)
}

// logFailure tells why nobody knows who is calling, at its level: a caller that has left is no
// error, and of a database that is away the store tells once.
func (g *gate) logFailure(ctx context.Context, err error) {
	level := slog.LevelError
	if _, away := store.AsError(err); away || ctx.Err() != nil {
		level = slog.LevelDebug
	}
	g.log.Log(ctx, level, "authenticate", "error", err)
}

// admit counts a call against the viewer's rate limit.
func (g *gate) admit(ctx context.Context, v *store.Viewer) error {
	if g.limiter == nil {
		return nil
	}
	if wait := g.limiter.Allow(ctx, v.Credential.ID); wait > 0 {
		return &store.Error{
			Code: store.CodeRateLimited, Reason: "rate_limited", Message: "this credential has made too many requests",
			RetryAfter: int(math.Ceil(wait.Seconds())),
		}
	}
	return nil
}

// admitViewer counts what came without a request of its own: neither a WebSocket nor aliases are a way around the limit.
func (g *gate) admitViewer(ctx context.Context) error {
	v, err := store.ViewerOf(ctx)
	if err != nil {
		return err
	}
	return g.admit(ctx, v)
}

func bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// connect authenticates a WebSocket by its connection_init payload, or else by the headers of its request.
func (g *gate) connect(ctx context.Context, payload map[string]any) (context.Context, error) {
	v, err := g.viewerOfSocket(ctx, payload)
	if err != nil {
		return nil, err
	}
	g.log.InfoContext(ctx, "a WebSocket is open", "business", v.BusinessID, "credential", v.Credential.Prefix)
	return store.WithViewer(ctx, v, nil), nil
}

func (g *gate) viewerOfSocket(ctx context.Context, payload map[string]any) (*store.Viewer, error) {
	if header, ok := headerIn(payload, "Authorization"); ok {
		return g.viewer(ctx, store.KindAccessToken, bearer(header))
	}
	if key, ok := headerIn(payload, "X-API-Key"); ok {
		return g.viewer(ctx, store.KindAPIKey, key)
	}
	return store.ViewerOf(ctx)
}

// headerIn finds a header in a connection_init payload. Clients write its name as they like, as in
// a request; the name as it stands here comes first.
func headerIn(payload map[string]any, name string) (value string, ok bool) {
	if value, ok = payload[name].(string); ok {
		return value, true
	}
	for other, v := range payload {
		if value, ok = v.(string); ok && strings.EqualFold(other, name) {
			return value, true
		}
	}
	return "", false
}

// revoked says whether the credential of a socket has been revoked. While the database is away nobody knows, and it stays.
func (g *gate) revoked(ctx context.Context) bool {
	v, err := store.ViewerOf(ctx)
	if err != nil {
		return true
	}
	valid, err := g.store.StillValid(ctx, v)
	return err == nil && !valid
}
