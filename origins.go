package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// origins are the web origins beside this server's own whose pages may call it.
type origins struct {
	allowed []string
	log     *slog.Logger

	mu      sync.Mutex // guards what follows
	refused []string   // those that the log has told of
	// Since when: it begins anew each hour, for anyone can send so many names that are none.
	toldSince time.Time
}

// What pages of other origins may send and read.
const (
	corsMethods = "GET, POST, OPTIONS"
	corsHeaders = "Authorization, Content-Type, Accept, X-API-Key, Idempotency-Key, Last-Event-ID, X-Request-Id"
	corsExposed = "X-Request-Id, Retry-After, Idempotency-Replayed, WWW-Authenticate"
	corsMaxAge  = "7200" // seconds that a preflight's answer holds; browsers cap it there
)

// originRefusal is what pages of other origins are told.
const originRefusal = "pages of this origin may not call the server: its operator can name the origin in PARLEY_ALLOWED_ORIGINS"

// Of origins that are not allowed the log tells of so many, each once and cut to a name's length:
// anyone can make them up.
const (
	maxRefusedOrigins = 100
	maxOrigin         = 300
)

// newOrigins reads a comma separated list of origins: scheme, host, and port unless it is the
// scheme's own.
func newOrigins(list string, log *slog.Logger) (*origins, error) {
	out := &origins{log: log}
	protection := http.NewCrossOriginProtection()
	for o := range strings.SplitSeq(list, ",") {
		if o = strings.ToLower(strings.TrimSpace(o)); o == "" {
			continue
		}
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" {
			return nil, fmt.Errorf("%q is not an origin", o)
		}
		if err := protection.AddTrustedOrigin(o); err != nil {
			return nil, err
		}
		out.allowed = append(out.allowed, o)
	}
	return out, nil
}

// guard answers preflights, lets the pages of allowed origins read the answers, and refuses what pages of others send.
func (o *origins) guard(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	for _, origin := range o.allowed {
		_ = protection.AddTrustedOrigin(origin) // newOrigins has tried it
	}
	protection.SetDenyHandler(http.HandlerFunc(o.refuse))
	protected := protection.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Add("Vary", "Origin")
		origin := r.Header.Get("Origin")
		preflight := r.Method == http.MethodOptions && origin != "" && r.Header.Get("Access-Control-Request-Method") != ""
		allowed := o.allows(origin)
		if allowed {
			header.Set("Access-Control-Allow-Origin", origin)
			header.Set("Access-Control-Expose-Headers", corsExposed)
		}
		switch {
		case preflight && allowed:
			header.Set("Access-Control-Allow-Methods", corsMethods)
			header.Set("Access-Control-Allow-Headers", corsHeaders)
			header.Set("Access-Control-Max-Age", corsMaxAge)
			w.WriteHeader(http.StatusNoContent)
		case preflight: // a page needs none for its own server
			o.refuse(w, r)
		default:
			protected.ServeHTTP(w, r)
		}
	})
}

// refuse answers a page of another origin.
func (o *origins) refuse(w http.ResponseWriter, r *http.Request) {
	o.tell(r)
	var body any = map[string]any{"detail": originRefusal, "code": "origin_not_allowed"}
	if r.URL.Path == "/graphql" {
		body = map[string]any{"errors": []any{map[string]any{
			"message": originRefusal, "extensions": map[string]any{"code": "FORBIDDEN", "reason": "origin_not_allowed"},
		}}}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(w).Encode(body) // nobody is left to tell
}

// tell has the log say once that a page of an origin was refused: its developer sees in a browser
// only that something was.
func (o *origins) tell(r *http.Request) {
	origin := r.Header.Get("Origin")
	origin = strings.ToValidUTF8(origin[:min(len(origin), maxOrigin)], "")
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); now.Sub(o.toldSince) > time.Hour {
		o.refused, o.toldSince = nil, now
	}
	if origin == "" || len(o.refused) == maxRefusedOrigins || slices.Contains(o.refused, origin) {
		return
	}
	o.refused = append(o.refused, origin)
	o.log.WarnContext(r.Context(), "a page of another origin was refused: if it is yours, name its origin in PARLEY_ALLOWED_ORIGINS", "origin", origin)
}

func (o *origins) allows(origin string) bool {
	return origin != "" && slices.Contains(o.allowed, strings.ToLower(origin))
}

// mayConnect says whether a page of the request's origin may open a WebSocket: one of this server's own host, or of the list. What
// is no browser sends no origin.
func (o *origins) mayConnect(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || o.allows(origin) {
		return true
	}
	u, err := url.Parse(origin)
	own := err == nil && strings.EqualFold(u.Host, r.Host)
	if !own {
		o.tell(r)
	}
	return own
}
