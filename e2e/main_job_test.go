package e2e_test

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"parley/e2e/servers"
)

// TestNewcomer starts the server as a newcomer does, in an empty folder without any setting, and runs the curl line that it
// prints as it stands.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	servers.Need(t, "curl")
	s := &server{t: t, dir: t.TempDir(), env: []string{"PARLEY_ADDR=" + servers.FreePort(t)}}
	s.up()
	s.curl()
	for _, kind := range []string{"sk_", "at_"} {
		secret := regexp.MustCompile(kind + `\w{20,}`).FindString(s.stdout())
		if secret == "" {
			t.Errorf("no %s… was printed", kind)
		} else if strings.Contains(s.log(), secret) {
			t.Errorf("a secret %s… stands in the log", kind)
		}
	}
	if code := s.stop(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	s.up()
	if out := s.stdout(); strings.Contains(out, "sk_") || strings.Contains(out, "at_") {
		t.Errorf("the second start prints secrets:\n%s", out)
	}
}

// curl runs the curl line that the server has printed, as it stands.
func (s *server) curl() {
	s.t.Helper()
	var line string
	for l := range strings.Lines(s.stdout()) {
		if strings.HasPrefix(strings.TrimSpace(l), "curl") {
			line = l
		}
	}
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(`"reply":`)) || !bytes.Contains(out, []byte(`"model":"embedded/extractive-1"`)) {
		s.t.Fatalf("%s\n%s, %v", line, out, err)
	}
}

// TestPrintedAddress listens on all addresses: what is printed is one that a client can call, and the curl line works.
func TestPrintedAddress(t *testing.T) {
	t.Parallel()
	servers.Need(t, "curl")
	for _, host := range []string{"0.0.0.0", "[::]", ""} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			_, port, _ := strings.Cut(servers.FreePort(t), ":")
			s := &server{t: t, dir: t.TempDir(), env: []string{"PARLEY_ADDR=" + host + ":" + port, "PARLEY_BOOTSTRAP_API_KEY=sk_" + strings.Repeat("a", 13), "PARLEY_BOOTSTRAP_TOKEN=at_" + strings.Repeat("~", 197)}}
			s.up()
			if want := "http://127.0.0.1:" + port; s.url() != want {
				t.Errorf("it prints %s, want %s", s.url(), want)
			}
			s.curl()
		})
	}
}

const eventsLive = `subscription($after: String, $filter: EventFilter) {
	events(after: $after, filter: $filter) { cursor node { id type sequence direction channel sessionId runId agentId businessId data } }
}`

// TestMainJob is the story of the product: a chat by REST and one by GraphQL are answered, their events come live to a
// subscriber, and to a registered webhook, signed, and all of it can be read back.
func TestMainJob(t *testing.T) {
	t.Parallel()
	s := start(t)
	r := receive(t, nil)
	id, secret := s.register(r.URL+"/hook", everything...)
	cursor := at(s.query(token, `{feedCursor}`, nil), "feedCursor")
	live := s.subscribe(token, eventsLive, object{"after": cursor})

	first := s.chat("When are you open on Saturday?", "")
	if first["status"] != "finished" || first["model"] != "embedded/extractive-1" || at(first, "usage", "source") != "none" ||
		first["channel"] != "whatsapp" || first["reply"] == "" {
		t.Errorf("the answer: %v", first)
	}
	session := first["session_id"].(string)
	second := at(s.query(token, `mutation($in: ChatInput!) {
		chat(input: $in) { reply sessionId messageId runId channel status model usage { inputTokens outputTokens totalTokens source } }
	}`, object{"in": object{
		"agentId": "demo", "message": "And how do I return something?", "channel": "WHATSAPP", "sessionId": session,
		"metadata": object{"page": "/returns"},
	}}), "chat")
	if at(second, "sessionId") != session || at(second, "status") != "FINISHED" || at(second, "channel") != "WHATSAPP" {
		t.Errorf("the second answer: %v", second)
	}

	want := []struct{ gql, rest, direction string }{
		{"MESSAGE_CREATED", "message.created", "inbound"},
		{"MESSAGE_CREATED", "message.created", "outbound"},
		{"RUN_FINISHED", "run.finished", "outbound"},
	}
	oracle, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		w := want[i%3]
		edge := at(live.wait(), "events")
		node := at(edge, "node")
		h := r.wait()
		if err := oracle.Verify(h.body, h.header); err != nil {
			t.Errorf("delivery %d: %v", i, err)
		}
		if at(node, "type") != w.gql || at(node, "sequence") != float64(i+1) || at(node, "sessionId") != session ||
			strings.ToLower(at(node, "direction").(string)) != w.direction {
			t.Errorf("event %d on the feed: %v", i, node)
		}
		if at(h.doc, "event", "id") != at(node, "id") || at(h.doc, "event", "data", "type") != w.rest ||
			at(h.doc, "event", "data", "direction") != w.direction || h.header.Get("Webhook-Id") != at(node, "id") {
			t.Errorf("event %d at the receiver: %v", i, h.doc)
		}
		if h.header.Get("User-Agent") != "Backend-System-Webhook/1.0" || h.header.Get("Content-Type") != "application/json" {
			t.Errorf("event %d: headers %v", i, h.header)
		}
		if at(edge, "cursor") == "" {
			t.Errorf("event %d has no cursor", i)
		}
	}

	eventually(t, "delivered", func() bool {
		d := s.query(token, `query($id: ID!) { webhookEndpoint(id: $id) { deliveries(status: DELIVERED) { nodes { id } } } }`, object{"id": id})
		return len(at(d, "webhookEndpoint", "deliveries", "nodes").([]any)) == 6
	})
	d := s.query(token, `{ deliveries(first: 1) { nodes { id status nextAttemptAt endpoint { id url } event { type data }
		attempts { number trigger statusCode error durationMs } } pageInfo { hasNextPage } } }`, nil)
	newest := at(d, "deliveries", "nodes", 0)
	if at(newest, "status") != "DELIVERED" || at(newest, "endpoint", "id") != id || at(newest, "event", "type") != "RUN_FINISHED" ||
		at(newest, "attempts", 0, "statusCode") != 200.0 || at(newest, "attempts", 0, "trigger") != "AUTOMATIC" ||
		at(newest, "attempts", 0, "error") != nil || at(d, "deliveries", "pageInfo", "hasNextPage") != true {
		t.Errorf("the newest delivery: %v", newest)
	}
	one := s.query(token, `query($id: ID!) { delivery(id: $id) { id status } none: delivery(id: "dlv_unknown") { id } }`, object{"id": at(newest, "id")})
	if at(one, "delivery", "status") != "DELIVERED" || at(one, "none") != nil {
		t.Errorf("one delivery: %v", one)
	}
}

// TestSubscriberResumes breaks off after two events and resumes from the cursor of the second, after a restart.
func TestSubscriberResumes(t *testing.T) {
	t.Parallel()
	s := start(t)
	live := s.subscribe(token, eventsLive, object{"after": at(s.query(token, `{feedCursor}`, nil), "feedCursor")})
	s.chat("Hello", "")
	live.wait()
	cursor := at(live.wait(), "events", "cursor")
	_ = live.conn.Close()
	s.chat("Hello", "")
	if code := s.stop(); code != 0 {
		t.Fatalf("it ended with %d: %s", code, s.log())
	}
	s.up()
	again := s.subscribe(token, eventsLive, object{"after": cursor})
	s.chat("Hello", "")
	var types []string
	for range 7 {
		types = append(types, at(again.wait(), "events", "node", "type").(string))
	}
	if got := strings.Join(types, " "); got != "RUN_FINISHED"+strings.Repeat(" MESSAGE_CREATED MESSAGE_CREATED RUN_FINISHED", 2) {
		t.Errorf("resumed with %s", got)
	}
	filtered := s.subscribe(token, eventsLive, object{"after": cursor, "filter": object{"types": []string{"RUN_FINISHED"}}})
	for range 3 {
		if kind := at(filtered.wait(), "events", "node", "type"); kind != "RUN_FINISHED" {
			t.Errorf("the filter let %v through", kind)
		}
	}
}

// TestCursorsAreToldApart: garbled, of another feed, and expired, by the query and by the subscription.
func TestCursorsAreToldApart(t *testing.T) {
	t.Parallel()
	s := start(t)
	raw, err := base64.RawURLEncoding.DecodeString(at(s.query(token, `{feedCursor}`, nil), "feedCursor").(string))
	if err != nil || len(raw) < 3 || raw[1] > 100 { // a version, a number, the business
		t.Fatalf("a cursor is %q, %v", raw, err)
	}
	later := append([]byte{raw[0], 120}, raw[2:]...) // of an event that this database never had
	for _, c := range []struct{ cursor, code, message string }{
		{"nonsense", "BAD_USER_INPUT", "this is not a cursor of the feed"},
		{base64.RawURLEncoding.EncodeToString(append(raw[:2:2], "biz_other"...)), "BAD_USER_INPUT", "this cursor belongs to another feed"},
		{base64.RawURLEncoding.EncodeToString(later), "CURSOR_EXPIRED", "kept"},
	} {
		variables := object{"after": c.cursor}
		answer := s.graphql(withToken(token), `query($after: String) { events(after: $after) { nodes { id } } }`, variables)
		live := <-s.subscribe(token, `subscription($after: String) { events(after: $after) { cursor } }`, variables).end
		for _, got := range []string{encode(answer), live} {
			if !strings.Contains(got, c.code) || !strings.Contains(got, c.message) {
				t.Errorf("%s: %s, want %s and %q", c.cursor, got, c.code, c.message)
			}
		}
	}
}

// TestLiveDeliveries watches a delivery fail, be retried, and succeed.
func TestLiveDeliveries(t *testing.T) {
	t.Parallel()
	s := start(t)
	r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	id, _ := s.register(r.URL, "run.finished")
	live := s.subscribe(token, `subscription($id: ID) { deliveries(endpointId: $id) { id status attempts { number error } } }`, object{"id": id})
	s.chat("Hello", "")
	var seen []string
	for len(seen) == 0 || seen[len(seen)-1] != "DELIVERED" {
		d := at(live.wait(), "deliveries")
		if status := at(d, "status").(string); len(seen) == 0 || seen[len(seen)-1] != status {
			seen = append(seen, status)
		}
		if at(d, "status") == "DELIVERED" && (at(d, "attempts", 0, "error") != "http_500" || at(d, "attempts", 1, "error") != nil) {
			t.Errorf("its attempts: %v", d)
		}
	}
	if got := strings.Join(seen, " "); got != "PENDING RETRYING DELIVERED" && got != "RETRYING DELIVERED" {
		t.Errorf("seen live: %s", got)
	}
}

// TestAgentWebhook sets an agent's own webhook URL: it gets the agent's messages, stands in no list, and is signed with the
// secret that rotation gives.
func TestAgentWebhook(t *testing.T) {
	t.Parallel()
	s := start(t)
	r := receive(t, nil)
	set := s.query(token, `mutation($url: String) { updateAgent(id: "demo", input: {webhookUrl: $url}) { webhookUrl webhookEndpoint { id events } } }`, object{"url": r.URL})
	endpoint := at(set, "updateAgent", "webhookEndpoint", "id")
	rotated := s.query(token, `mutation($id: ID!) { rotateWebhookSecret(id: $id) { secret previousExpiresAt endpoint { id } } }`, object{"id": endpoint})
	oracle, err := standardwebhooks.NewWebhook(at(rotated, "rotateWebhookSecret", "secret").(string))
	if err != nil {
		t.Fatal(err)
	}
	s.chat("Hello", "")
	for _, direction := range []string{"inbound", "outbound"} {
		h := r.wait()
		if err := oracle.Verify(h.body, h.header); err != nil {
			t.Error(err)
		}
		if at(h.doc, "event", "data", "type") != "message.created" || at(h.doc, "event", "data", "direction") != direction {
			t.Errorf("got %v", h.doc)
		}
	}
	if _, _, list := s.call("GET", "/v1/webhooks", withToken(token), ""); len(list.([]any)) != 0 {
		t.Errorf("it stands in the list: %v", list)
	}
	gone := s.query(token, `mutation { updateAgent(id: "demo", input: {webhookUrl: null}) { webhookUrl webhookEndpoint { id } } }`, nil)
	if at(gone, "updateAgent", "webhookUrl") != nil || at(gone, "updateAgent", "webhookEndpoint") != nil {
		t.Errorf("after taking it away: %v", gone)
	}
}
