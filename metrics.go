package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"parley/agent"
	"parley/graph"
	"parley/store"
	"parley/store/hook"
	"parley/stream"
	"parley/webhook"
)

// metrics are what /metrics tells, in Prometheus's text format. No label holds an id: each has few
// values, whatever is done to the server. No scrape asks the database: what only SQL knows the
// parts look up now and then.
type metrics struct {
	registry *prometheus.Registry

	requests       *prometheus.CounterVec
	requestSeconds *prometheus.HistogramVec

	turns       *prometheus.CounterVec
	turnSeconds *prometheus.HistogramVec
	modelCalls  *prometheus.CounterVec
	modelTime   *prometheus.HistogramVec
	tokens      *prometheus.CounterVec

	deliveries     *prometheus.CounterVec
	attempts       *prometheus.CounterVec
	attemptSeconds prometheus.Histogram
	lag            prometheus.Histogram
	recorded       prometheus.Histogram

	busiest shares
}

// brief are the seconds of what takes milliseconds when all is well, and long those of what thinks,
// or waits for others.
var (
	brief = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30}
	long  = []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120}
	sizes = []float64{1, 2, 5, 10, 25, 50, 100, 250, 500}
)

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(h)
		return h
	}
	one := func(h *prometheus.HistogramVec) prometheus.Histogram {
		return h.WithLabelValues().(prometheus.Histogram)
	}

	m.requests = counter("parley_http_requests_total", "Requests by the path that serves them and the class of their status; 1xx are WebSockets.", "route", "status")
	m.requestSeconds = histogram("parley_http_request_seconds", "How long requests took, but for WebSockets and event streams.", brief, "route")

	m.turns = counter("parley_turns_total", "Turns that have begun, by how they ended: finished, or why not.", "outcome")
	m.turnSeconds = histogram("parley_turn_seconds", "How long turns took: all of it, the model, tools, and our own part.", long, "part")
	m.modelCalls = counter("parley_model_calls_total", "Calls of models: ok, failed, refused (the same request would be again) or timeout.", "provider", "outcome")
	m.modelTime = histogram("parley_model_call_seconds", "How long they took.", long, "provider")
	m.tokens = counter("parley_tokens_total", "Tokens that models took and gave.", "provider", "direction")

	m.deliveries = counter("parley_deliveries_total", "Outcomes that were written, by the state that the delivery passed into.", "status")
	m.attempts = counter("parley_delivery_attempts_total", "Attempts to deliver, by the class of the answer's status, or why there was none.", "class")
	m.attemptSeconds = one(histogram("parley_delivery_attempt_seconds", "How long attempts took.", long))
	m.lag = one(histogram("parley_delivery_lag_seconds", "From an event to the first attempt to deliver it.", append([]float64{.001, .0025}, long...)))
	m.recorded = one(histogram("parley_delivery_batch_outcomes", "Outcomes that one transaction wrote.", sizes))
	return m
}

// handler is /metrics.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// metricsListener is where /metrics has an address of its own; of nothing, where it has none.
type metricsListener struct{ net.Listener }

func (l metricsListener) Close() error {
	if l.Listener == nil {
		return nil
	}
	return l.Listener.Close()
}

func (s *Settings) listenForMetrics(ctx context.Context) (l metricsListener, err error) {
	if s.MetricsAddr == "" {
		return l, nil
	}
	if l.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", s.MetricsAddr); err != nil {
		return metricsListener{}, fmt.Errorf("listen on %s for /metrics: %w", s.MetricsAddr, err)
	}
	return l, nil
}

// serve answers at the address of its own, if there is one, until ctx ends.
func (m *metrics) serve(ctx context.Context, l metricsListener) error {
	if l.Listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.handler())
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTime, MaxHeaderBytes: maxHeader,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// observe tells of the parts what they know themselves.
func (m *metrics) observe(db *store.Store, s *stream.Stream, worker *webhook.Worker, live func() graph.Live) {
	gauge := func(name, help string, of func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, of))
	}
	counter := func(name, help string, of func() float64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, of))
	}
	gauge("parley_busiest_business_share", "Which part of the requests of the last ten seconds one business has made, the busiest of them.", func() float64 { return m.busiest.most(time.Now()) })
	gauge("parley_database_up", "1 while the database answers; 0 while everything waits for it.", func() float64 { return truth(db.Reach() != store.Away) })
	gauge("parley_database_full", "1 while the database has no room left.", func() float64 { return truth(db.Reach() == store.Full) })
	gauge("parley_stream_ringing", "1 while the Redis stream carries events; 0 while they flow from SQL.", func() float64 { return truth(s.Ringing()) })
	counter("parley_stream_losses_total", "How often entries of the stream were, or may have been, lost, and SQL was asked instead.", func() float64 { return float64(s.Losses()) })

	counter("parley_commits_total", "Transactions that committed events.", func() float64 { n, _ := db.Commits(); return float64(n) })
	counter("parley_commit_seconds_total", "How long they took together, from the instant that their events bear.", func() float64 { _, took := db.Commits(); return took.Seconds() })
	counter("parley_batches_total", "Transactions of the commit batcher.", func() float64 { n, _ := db.Batches(); return float64(n) })
	counter("parley_batch_writes_total", "Writes that they have committed, or refused.", func() float64 { _, writes := db.Batches(); return float64(writes) })

	gauge("parley_live_sockets", "WebSockets that are open.", func() float64 { return float64(live().Sockets) })
	gauge("parley_live_streams", "Event streams (SSE) that are open.", func() float64 { return float64(live().Streams) })
	gauge("parley_live_subscriptions", "Subscriptions that run.", func() float64 { return float64(live().Subscriptions) })
	counter("parley_live_resumes_total", "Subscriptions of events that began after a cursor.", func() float64 { return float64(live().Resumed) })
	counter("parley_live_slow_total", "WebSockets that were closed with 1013 since their client took too little of what it was sent.", func() float64 { return float64(live().Slow) })
	counter("parley_live_results_made_total", "Results of subscriptions that were executed. Equal subscriptions of a business share one.", func() float64 { return float64(live().Made) })
	counter("parley_live_results_given_total", "Results of subscriptions that were queued for a client.", func() float64 { return float64(live().Given) })

	// To look through the worker's lanes holds it up: however many ask, it is done once a second.
	var mu sync.Mutex
	var last webhook.State
	var looked time.Time
	state := func(of func(webhook.State) float64) func() float64 {
		return func() float64 {
			mu.Lock()
			defer mu.Unlock()
			if now := time.Now(); now.Sub(looked) >= time.Second {
				last, looked = worker.State(), now
			}
			return of(last)
		}
	}
	gauge("parley_delivery_attempts_in_flight", "Attempts under way.", state(func(s webhook.State) float64 { return float64(s.InFlight) }))
	gauge("parley_delivery_lanes", "Endpoints of which the worker knows anything just now.", state(func(s webhook.State) float64 { return float64(s.Lanes) }))
	gauge("parley_delivery_lanes_behind", "Those of them that are read from SQL, since the stream did not bring all or there is too much.", state(func(s webhook.State) float64 { return float64(s.Behind) }))
	gauge("parley_deliveries_oldest_seconds", "How long the delivery has waited that has waited longest for its turn; a retry, since it was due.", state(func(s webhook.State) float64 { return s.Oldest.Seconds() }))
	gauge("parley_endpoints_failing", "Enabled endpoints of this replica's shards whose last delivery failed for good.", state(func(s webhook.State) float64 { return float64(s.Failing) }))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// requested counts a request. How long a caller likes to listen tells nothing.
func (m *metrics) requested(r request) {
	if r.business != "" {
		m.busiest.count(r.business, time.Now())
	}
	m.requests.WithLabelValues(r.route, class(r.status)).Inc()
	if !r.lasting {
		m.requestSeconds.WithLabelValues(r.route).Observe(r.took.Seconds())
	}
}

// class is a status's: 2xx.
func class(status int) string { return strconv.Itoa(min(max(status/100, 1), 9)) + "xx" }

// asked counts a call of a model.
func (m *metrics) asked(a agent.Asked) {
	provider := string(a.Provider)
	m.modelCalls.WithLabelValues(provider, a.Outcome).Inc()
	m.modelTime.WithLabelValues(provider).Observe(a.Took.Seconds())
	m.tokens.WithLabelValues(provider, "input").Add(float64(a.Usage.InputTokens))
	m.tokens.WithLabelValues(provider, "output").Add(float64(a.Usage.OutputTokens))
}

// ended counts a turn.
func (m *metrics) ended(e agent.Ended) {
	m.turns.WithLabelValues(e.Outcome).Inc()
	for part, took := range map[string]time.Duration{"all": e.Took, "model": e.Model, "tools": e.Tools, "own": e.Took - e.Model - e.Tools} {
		m.turnSeconds.WithLabelValues(part).Observe(took.Seconds())
	}
}

// recordedOutcomes counts deliveries whose outcomes were written.
func (m *metrics) recordedOutcomes(outcomes []*hook.Outcome) {
	m.recorded.Observe(float64(len(outcomes)))
	for _, o := range outcomes {
		m.deliveries.WithLabelValues(string(o.Status)).Inc()
		a := o.Attempt
		if a == nil {
			continue
		}
		switch {
		case a.StatusCode != nil:
			m.attempts.WithLabelValues(class(*a.StatusCode)).Inc()
		case a.Error != nil:
			m.attempts.WithLabelValues(*a.Error).Inc() // one of webhook's words
		}
		m.attemptSeconds.Observe(float64(a.DurationMs) / 1000)
		if made, ok := store.MadeAt(o.Job.EventID); ok && a.Number == 1 && o.Job.Trigger == store.TriggerAutomatic {
			m.lag.Observe(max(0, a.StartedAt.Sub(made).Seconds()))
		}
	}
}

// shares count whose requests they are, in windows of some seconds: which part the busiest business
// has, and not which that is.
type shares struct {
	mu    sync.Mutex // guards what follows
	began time.Time
	of    map[string]int
	all   int
	last  float64 // the part of the busiest in the last whole window
}

const sharesWindow = 10 * time.Second

func (s *shares) count(business string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(now)
	s.of[business]++
	s.all++
}

// most is the part of the busiest.
func (s *shares) most(now time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(now)
	return s.last
}

// turn begins another window when the last is over; mu is held.
func (s *shares) turn(now time.Time) {
	if now.Sub(s.began) < sharesWindow {
		return
	}
	s.last = 0
	// Else it is the window before the last, in which nothing happened.
	if s.all > 0 && now.Sub(s.began) < 2*sharesWindow {
		s.last = float64(slices.Max(slices.Collect(maps.Values(s.of)))) / float64(s.all)
	}
	s.began, s.of, s.all = now, map[string]int{}, 0
}
