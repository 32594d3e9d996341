package e2e_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"parley/e2e/servers"
)

// metrics are what a server tells at /metrics: the values by name, with labels as they are written
// there.
func (s *server) metrics() map[string]float64 {
	s.t.Helper()
	res, err := http.Get(s.url() + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("/metrics: %d %v", res.StatusCode, err)
	}
	of := map[string]float64{}
	for line := range strings.Lines(string(raw)) {
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			of[line[:i]], _ = strconv.ParseFloat(strings.TrimSpace(line[i+1:]), 64)
		}
	}
	return of
}

// TestMetrics tells a story, and finds all of it in the metrics; and each that the dashboard, the
// alerts and the documentation name.
func TestMetrics(t *testing.T) {
	t.Parallel()
	bell := servers.Redis(t)
	s := start(t, "PARLEY_REDIS_URL=redis://"+bell.Addr, "PARLEY_DELIVERY_RETRIES=0")
	r, up := downUntilTold(t)
	endpoint, _ := s.register(r.URL, "run.finished")
	live := s.subscribe(token, eventsLive, nil)
	session := s.chat("Hello", "")["session_id"].(string)
	live.wait()
	eventually(t, "failed", func() bool { return len(s.list(endpoint, "FAILED")) == 1 })
	eventually(t, "failing", func() bool { return s.metrics()["parley_endpoints_failing"] == 1 })
	up.Store(true)
	s.chat("When are you open?", session)
	eventually(t, "delivered", func() bool { return len(s.list(endpoint, "DELIVERED")) == 1 })
	eventually(t, "recovered", func() bool { return s.metrics()["parley_endpoints_failing"] == 0 })
	s.call("GET", "/nowhere/"+session, withToken(token), "")

	told := s.metrics()
	for name, want := range map[string]float64{
		"parley_database_up": 1, "parley_database_full": 0, "parley_stream_ringing": 1,
		`parley_http_requests_total{route="/agents/{agent_id}/chat",status="2xx"}`: 2,
		`parley_http_requests_total{route="/graphql",status="1xx"}`:                1,
		`parley_http_requests_total{route="other",status="4xx"}`:                   1,
		`parley_http_request_seconds_count{route="/agents/{agent_id}/chat"}`:       2,
		`parley_turns_total{outcome="finished"}`:                                   2,
		`parley_turn_seconds_count{part="model"}`:                                  2,
		`parley_model_calls_total{outcome="ok",provider="embedded"}`:               2,
		`parley_delivery_attempts_total{class="5xx"}`:                              1,
		`parley_delivery_attempts_total{class="2xx"}`:                              1,
		`parley_deliveries_total{status="failed"}`:                                 1,
		`parley_deliveries_total{status="delivered"}`:                              1,
		"parley_delivery_lag_seconds_count":                                        2,
		"parley_live_sockets":                                                      1,
		"parley_live_subscriptions":                                                1,
		"parley_live_resumes_total":                                                1,
		"parley_deliveries_oldest_seconds":                                         0,
	} {
		if got, there := told[name]; !there || got != want {
			t.Errorf("%s is %v (%t), and not %v", name, got, there, want)
		}
	}
	for name := range told {
		if strings.Contains(name, session) || strings.Contains(name, endpoint) || regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}`).MatchString(name) {
			t.Errorf("a label holds an id: %s", name)
		}
	}
	if _, there := told["parley_busiest_business_share"]; !there {
		t.Error("nothing is told of the busiest business")
	}
	bell.Kill()
	eventually(t, "away", func() bool { return s.metrics()["parley_stream_ringing"] == 0 })

	names := map[string]bool{}
	for name := range told {
		name, _, _ = strings.Cut(name, "{")
		names[name] = true
	}
	for _, file := range []string{"../docs/grafana.json", "../docs/alerts.yml", "../docs/operations.md"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`parley_[a-z_]+[a-z]`).FindAllString(string(raw), -1)
		if len(named) == 0 {
			t.Errorf("%s names no metrics", file)
		}
		for _, name := range named {
			if !names[name] && !names[name+"_count"] {
				t.Errorf("%s names %s, which the server does not tell", file, name)
			}
		}
	}
}

// TestMetricsElsewhere: with an address of their own the metrics are there, and not where everybody
// comes.
func TestMetricsElsewhere(t *testing.T) {
	t.Parallel()
	elsewhere := servers.FreePort(t)
	s := start(t, "PARLEY_METRICS_ADDR="+elsewhere)
	if status, _, _ := s.call("GET", "/metrics", nil, ""); status != http.StatusNotFound {
		t.Errorf("/metrics on the main address: %d", status)
	}
	main := s.address.Load()
	own := "http://" + elsewhere
	s.address.Store(&own)
	if told := s.metrics(); told["parley_database_up"] != 1 {
		t.Errorf("it tells %v", told)
	}
	if status, _, _, err := s.try(t.Context(), "GET", "/healthz", nil, ""); status != http.StatusNotFound {
		t.Errorf("/healthz on the address of the metrics: %d %v", status, err)
	}
	s.address.Store(main)
	if code := s.stop(); code != 0 {
		t.Errorf("ended with %d", code)
	}
}

// TestAlerts: the alert rules do what their tests say, and the dashboard is JSON.
func TestAlerts(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../docs/grafana.json")
	if err != nil || !json.Valid(raw) {
		t.Errorf("the dashboard: %v", err)
	}
	promtool := servers.Need(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "../docs"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
