package main

import (
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"

	"parley/store"
	"parley/stream"
)

// health answers the probes of whatever watches over the process.
type health struct {
	store    *store.Store
	stream   *stream.Stream
	draining atomic.Bool
}

// drain has ready answer that no new work is taken.
func (h *health) drain() { h.draining.Store(true) }

// alive is /healthz: the process lives.
func (h *health) alive(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]string{"status": "ok"})
}

const readyWithin = 2 * time.Second

// ready is /readyz: 200 while the database answers. Without Redis the server is degraded, and serves all the same.
func (h *health) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyWithin)
	defer cancel()
	status, body := http.StatusOK, map[string]string{"status": "ok", "database": "ok", "redis": "ok"}
	if !h.stream.Ringing() {
		body["redis"] = "degraded"
	}
	if h.store.Ping(ctx) != nil {
		status, body["status"], body["database"] = http.StatusServiceUnavailable, "unavailable", "unavailable"
	}
	if h.draining.Load() {
		status, body["status"] = http.StatusServiceUnavailable, "draining"
	}
	answer(w, status, body)
}

func answer(w http.ResponseWriter, status int, body map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // nobody is left to tell
}
