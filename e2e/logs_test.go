package e2e_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"parley/e2e/servers"
)

// lines are the lines of a server's log, which is JSON.
func (s *server) lines() (lines []object) {
	s.t.Helper()
	for line := range strings.Lines(s.log()) {
		var o object
		if err := json.Unmarshal([]byte(line), &o); err != nil || o["time"] == nil || o["level"] == nil || o["msg"] == nil {
			s.t.Fatalf("a line of the log is %q: %v", line, err)
		}
		lines = append(lines, o)
	}
	return lines
}

// told counts the lines of a level with this beginning.
func (s *server) told(level, message string) (n int) {
	s.t.Helper()
	for _, line := range s.lines() {
		if line["level"] == level && strings.HasPrefix(line["msg"].(string), message) {
			n++
		}
	}
	return n
}

// TestLogs is a day of a server: chats, a webhook that fails and recovers, a live feed, a model
// that refuses and repeats what it was sent, a Redis that goes and comes back. The log tells each
// of these once, and each request; of secrets and of what was said it holds nothing.
func TestLogs(t *testing.T) {
	t.Parallel()
	const said, redisSecret, modelSecret, query = "Tell nobody about the purple xylophone", "hush-redis", "hush-model", "hush-query"
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write(append(body, r.Header.Get("Authorization")...))
	}))
	t.Cleanup(model.Close)
	bell := servers.Redis(t, "--requirepass", redisSecret)
	s := start(t, "PARLEY_REDIS_URL=redis://:"+redisSecret+"@"+bell.Addr, "PARLEY_LOG_FORMAT=json", "PARLEY_LOG_LEVEL=debug", "PARLEY_DELIVERY_RETRIES=0",
		"PARLEY_PRIVATE_HOSTS=127.0.0.0/8")
	r, up := downUntilTold(t)
	endpoint, secret := s.register(r.URL+"/?key="+query, "run.finished")
	live := s.subscribe(token, eventsLive, nil)

	status, header, answer := s.call("POST", "/agents/demo/chat", withKey(apiKey), encode(object{"message": said, "channel": "sms"}))
	reply, _ := at(answer, "reply").(string)
	if status != http.StatusOK || reply == "" {
		t.Fatalf("a chat: %d %v", status, answer)
	}
	live.wait()
	s.chat(said, "")
	eventually(t, "failed", func() bool { return len(s.list(endpoint, "FAILED")) == 2 })
	up.Store(true)
	s.chat(said, "")
	eventually(t, "delivered", func() bool { return len(s.list(endpoint, "DELIVERED")) == 1 })

	refusing := s.query(token, newAgent, object{"in": object{
		"name": "refusing", "model": object{"provider": "OPENAI", "name": "m", "baseUrl": model.URL + "/v1", "apiKey": modelSecret},
	}})
	path := "/agents/" + at(refusing, "createAgent", "id").(string) + "/chat"
	if status, _, answer := s.call("POST", path, withKey(apiKey), encode(object{"message": said, "channel": "sms"})); status != http.StatusBadGateway {
		t.Errorf("a chat with a model that refuses: %d %v", status, answer)
	}
	told := s.metrics()
	if told[`parley_model_calls_total{outcome="refused",provider="openai"}`] != 1 || told[`parley_turns_total{outcome="model_failed"}`] != 1 {
		t.Errorf("of the model that refuses the metrics tell %v", told)
	}
	s.call("POST", "/graphql", withToken("at_nobody_0123456789"), encode(object{"query": "{ viewer { scope } }"}))

	redis := func(want string) {
		t.Helper()
		eventually(t, "redis "+want, func() bool {
			_, _, body := s.call("GET", "/readyz", nil, "")
			return at(body, "redis") == want
		})
	}
	bell.Kill()
	redis("degraded")
	for range 3 {
		s.chat(said, "")
	}
	bell.Up()
	redis("ok")
	if code := s.stop(); code != 0 {
		t.Errorf("ended with %d", code)
	}

	for line, want := range map[[2]string]int{
		{"INFO", "started"}: 1, {"INFO", "stopping"}: 1, {"INFO", "stopped"}: 1,
		{"WARN", "an endpoint fails"}: 1, {"INFO", "an endpoint has recovered"}: 1,
		{"ERROR", "Redis is away"}: 1, {"INFO", "Redis is back"}: 1, {"ERROR", ""}: 1,
		{"WARN", "a run failed"}: 1, {"WARN", "PARLEY_ALLOW_PRIVATE_WEBHOOKS"}: 1, {"WARN", ""}: 3,
		{"INFO", "a WebSocket is open"}: 1,
	} {
		if n := s.told(line[0], line[1]); n != want {
			t.Errorf("%s %q stands %d times in the log, and not %d", line[0], line[1], n, want)
		}
	}
	var routes []string
	for _, line := range s.lines() {
		switch line["msg"] {
		case "started":
			if line["database"] != "sqlite" || line["stream"] != "redis" || line["address"] != s.url() || line["version"] == "" {
				t.Errorf("it started with %v", line)
			}
		case "a run failed":
			if line["error"] != "the model's server refused the request: status 400 Bad Request" {
				t.Errorf("of the model it says %v", line)
			}
		case "request":
			if line["level"] == "INFO" {
				routes = append(routes, line["route"].(string))
			}
			switch line["request_id"] {
			case nil:
				t.Errorf("a request without an id: %v", line)
			case header.Get("X-Request-Id"):
				took, _ := line["duration_ms"].(float64)
				if line["method"] != "POST" || line["route"] != "/agents/{agent_id}/chat" || line["status"] != 200.0 || took <= 0 ||
					line["business"] == nil || line["credential"] != apiKey[:8] {
					t.Errorf("the chat is told as %v", line)
				}
			}
		}
	}
	for _, route := range []string{"/agents/{agent_id}/chat", "/graphql", "/v1/webhooks"} {
		if !slices.Contains(routes, route) {
			t.Errorf("no request of %s is told, of %q", route, routes)
		}
	}
	if slices.Contains(routes, "/readyz") {
		t.Error("probes are told at level info")
	}
	for _, hidden := range []string{said, "xylophone", reply, redisSecret, modelSecret, query, secret, secret[len("whsec_"):], apiKey, token, "at_nobody_0", "Bearer"} {
		if strings.Contains(s.log(), hidden) {
			t.Errorf("the log holds %q", hidden)
		}
	}
	if t.Failed() {
		t.Log(s.log())
	}
}

// TestLogOfALostDatabase takes PostgreSQL away from a server under load: the log tells of its loss
// once, and of its return once, and nothing else of that.
func TestLogOfALostDatabase(t *testing.T) {
	t.Parallel()
	postgres := servers.NewPostgres(t)
	s := productionOn(t, postgres.Database(t), 1, "PARLEY_LOG_FORMAT=json", "PARLEY_LOG_LEVEL=debug").replicas[0]
	answered := make(chan struct{})
	r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			<-answered // once the database is away
		}
		_, _ = io.WriteString(w, "thanks")
	})
	s.register(r.URL, everything...)
	live := s.subscribe(token, eventsLive, nil)
	s.chat("Hello", "")
	live.wait()
	r.wait()
	ready := func(want int) {
		t.Helper()
		eventually(t, "ready or not", func() bool {
			status, _, _ := s.call("GET", "/readyz", nil, "")
			return status == want
		})
	}
	postgres.Kill()
	ready(http.StatusServiceUnavailable)
	eventually(t, "told", func() bool {
		return s.told("ERROR", "the database is away") > 0 && s.metrics()["parley_database_up"] == 0
	})
	close(answered)
	for range 5 {
		if status, _, answer := s.call("POST", "/agents/demo/chat", withKey(apiKey), `{"message": "Hello", "channel": "sms"}`); status != http.StatusServiceUnavailable {
			t.Errorf("a chat without a database: %d %v", status, answer)
		}
	}
	eventually(t, "tried", func() bool { return s.told("DEBUG", "record outcomes") > 5 })
	postgres.Up()
	ready(http.StatusOK)
	eventually(t, "told", func() bool {
		return s.told("INFO", "the database is back") > 0 && s.metrics()["parley_database_up"] == 1
	})
	s.chat("Hello", "")
	// An outcome that waited for the database has all of its record.
	const records = `{ deliveries(status: DELIVERED) { nodes { attempts { responseBody } } } }`
	var bodies []any
	eventually(t, "recorded", func() bool {
		bodies = at(s.query(token, records, nil), "deliveries", "nodes").([]any)
		return len(bodies) == 6
	})
	for _, d := range bodies {
		if last := at(d, "attempts").([]any); at(last[len(last)-1], "responseBody") != "thanks" {
			t.Errorf("of an attempt there is left %v", d)
		}
	}
	for line, want := range map[[2]string]int{
		{"ERROR", "the database is away"}: 1, {"ERROR", ""}: 1, {"INFO", "the database is back"}: 1, {"WARN", "PARLEY_ALLOW"}: 1, {"WARN", ""}: 1,
	} {
		if n := s.told(line[0], line[1]); n != want {
			t.Errorf("%s %q stands %d times in the log, and not %d:\n%s", line[0], line[1], n, want, s.log())
		}
	}
}
