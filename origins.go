package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// origins are the web origins beside this server's own whose pages may call it.
type origins []string

// What pages of other origins may send and read.
const (
	corsMethods = "GET, POST, OPTIONS"
	corsHeaders = "Authorization, Content-Type, Accept, X-API-Key, Idempotency-Key, Last-Event-ID, X-Request-Id"
	corsExposed = "X-Request-Id, Retry-After, Idempotency-Replayed, WWW-Authenticate"
	corsMaxAge  = "7200" // seconds that a preflight's answer holds; browsers cap it there
)

// parseOrigins reads a comma separated list of origins: scheme, host, and port unless it is the scheme's own.
func parseOrigins(list string) (origins, error) {
	var out origins
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
		out = append(out, o)
	}
	return out, nil
}

// guard answers preflights, lets the pages of allowed origins read the answers, and refuses what pages of others send.
func (o origins) guard(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	for _, origin := range o {
		_ = protection.AddTrustedOrigin(origin) // parseOrigins has tried it
	}
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const message = "pages of this origin may not call the server"
		var body any = map[string]any{"detail": message, "code": "origin_not_allowed"}
		if r.URL.Path == "/graphql" {
			body = map[string]any{"errors": []any{map[string]any{
				"message": message, "extensions": map[string]any{"code": "FORBIDDEN", "reason": "origin_not_allowed"},
			}}}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(body) // nobody is left to tell
	}))
	protected := protection.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Add("Vary", "Origin")
		if origin := r.Header.Get("Origin"); o.allows(origin) {
			header.Set("Access-Control-Allow-Origin", origin)
			header.Set("Access-Control-Expose-Headers", corsExposed)
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				header.Set("Access-Control-Allow-Methods", corsMethods)
				header.Set("Access-Control-Allow-Headers", corsHeaders)
				header.Set("Access-Control-Max-Age", corsMaxAge)
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		protected.ServeHTTP(w, r)
	})
}

func (o origins) allows(origin string) bool {
	return origin != "" && slices.Contains(o, strings.ToLower(origin))
}

// mayConnect says whether a page of the request's origin may open a WebSocket: one of this server's own host, or of the list. What
// is no browser sends no origin.
func (o origins) mayConnect(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || o.allows(origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}
