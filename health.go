package main

import (
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"parley/graph"
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

// metrics is /metrics, in Prometheus's text format.
func metrics(db *store.Store, s *stream.Stream, live func() graph.Live) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "parley_stream_ringing", Help: "1 while the Redis stream carries events; 0 while they flow from SQL.",
		}, func() float64 {
			if s.Ringing() {
				return 1
			}
			return 0
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "parley_stream_losses_total", Help: "How often entries of the stream were, or may have been, lost, and SQL was asked instead.",
		}, func() float64 { return float64(s.Losses()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "parley_commits_total", Help: "Transactions that committed events.",
		}, func() float64 { n, _ := db.Commits(); return float64(n) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "parley_commit_seconds_total", Help: "How long they took together, from the instant that their events bear.",
		}, func() float64 { _, took := db.Commits(); return took.Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "parley_live_sockets", Help: "WebSockets that are open.",
		}, func() float64 { return float64(live().Sockets) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "parley_live_streams", Help: "Event streams (SSE) that are open.",
		}, func() float64 { return float64(live().Streams) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "parley_live_slow_total", Help: "WebSockets that were closed with 1013 since their client took too little of what it was sent.",
		}, func() float64 { return float64(live().Slow) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "parley_live_results_made_total", Help: "Results of subscriptions that were executed. Equal subscriptions of a business share one.",
		}, func() float64 { return float64(live().Made) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "parley_live_results_given_total", Help: "Results of subscriptions that were queued for a client.",
		}, func() float64 { return float64(live().Given) }),
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
