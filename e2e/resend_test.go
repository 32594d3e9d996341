package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	redeliver = `mutation($id: ID!) { redeliver(deliveryId: $id) { id status nextAttemptAt } }`
	replay    = `mutation($id: ID!, $since: Time!, $failed: Boolean) {
		replayEvents(endpointId: $id, since: $since, failedOnly: $failed) { id status total sent } }`
	replayJob = `query($id: ID!) { replayJob(id: $id) { id status total sent since until failedOnly endpointId createdAt finishedAt } }`
	sendTest  = `mutation($id: ID!, $type: EventType!) { sendTestEvent(endpointId: $id, type: $type) { id status event { id type data } } }`
	enable    = `mutation($id: ID!, $to: EndpointStatus!) { updateWebhookEndpoint(id: $id, input: {status: $to}) { status disabledReason failingSince } }`
	attempts  = `query($id: ID!) { delivery(id: $id) { status nextAttemptAt attempts {
		number trigger statusCode error remoteAddress firstByteMs dnsMs connectMs tlsMs nextAttemptAt } } }`
)

// downUntilTold is a receiver that answers 500 until it is up.
func downUntilTold(t *testing.T) (*receiver, *atomic.Bool) {
	up := new(atomic.Bool)
	return receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}), up
}

// list reads an endpoint's deliveries in a state, newest first.
func (s *server) list(endpoint, status string) []any {
	s.t.Helper()
	d := s.query(token, `query($id: ID!, $status: DeliveryStatus) { deliveries(endpointId: $id, status: $status, first: 100) { nodes { id status event { id } } } }`,
		object{"id": endpoint, "status": status})
	return at(d, "deliveries", "nodes").([]any)
}

func (s *server) attempts(delivery any) (status any, triggers []string, whole any) {
	s.t.Helper()
	d := at(s.query(token, attempts, object{"id": delivery}), "delivery")
	for _, a := range at(d, "attempts").([]any) {
		triggers = append(triggers, at(a, "trigger").(string))
	}
	return at(d, "status"), triggers, d
}

// TestResend sends a failed delivery again by hand, and a skipped one, and one that was delivered.
func TestResend(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_DELIVERY_RETRIES=1", "PARLEY_DELIVERY_BACKOFF=10m")
	r, up := downUntilTold(t)
	id, secret := s.register(r.URL, "run.finished")
	oracle, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	s.chat("Hello", "")
	first := r.wait()
	eventually(t, "retrying", func() bool { return len(s.list(id, "RETRYING")) == 1 })
	delivery := at(s.list(id, "RETRYING"), 0, "id")
	live := s.subscribe(token, `subscription($id: ID) { deliveries(endpointId: $id) { id status } }`, object{"id": id})

	// It takes over the retry, which was ten minutes away; it fails, and that is all.
	if d := at(s.query(token, redeliver, object{"id": delivery}), "redeliver"); at(d, "id") != delivery || at(d, "status") != "RETRYING" {
		t.Errorf("a resend: %v", d)
	}
	again := r.wait()
	if again.header.Get("Webhook-Id") != first.header.Get("Webhook-Id") || string(again.body) != string(first.body) || oracle.Verify(again.body, again.header) != nil {
		t.Errorf("sent again: %v", again.header)
	}
	eventually(t, "failed", func() bool { return len(s.list(id, "FAILED")) == 1 })
	// States that follow each other quickly are told as one, but the last one always is.
	told := func(want string) {
		for at(live.wait(), "deliveries", "status") != want {
		}
	}
	told("FAILED")
	up.Store(true)
	for _, want := range []string{"DELIVERED", "DELIVERED"} { // and what was delivered stays so
		s.query(token, redeliver, object{"id": delivery})
		r.wait()
		eventually(t, want, func() bool {
			status, _, whole := s.attempts(delivery)
			return status == want && at(whole, "nextAttemptAt") == nil && len(s.list(id, want)) == 1
		})
		if want == "DELIVERED" {
			up.Store(false)
		}
	}
	eventually(t, "recorded", func() bool {
		_, triggers, _ := s.attempts(delivery)
		return len(triggers) == 4
	})
	status, triggers, whole := s.attempts(delivery)
	if status != "DELIVERED" || !slices.Equal(triggers, []string{"AUTOMATIC", "MANUAL", "MANUAL", "MANUAL"}) {
		t.Errorf("in the end: %v", whole)
	}
	if a := at(whole, "attempts", 0); at(a, "remoteAddress") != r.Listener.Addr().String() || at(a, "firstByteMs") == nil || at(a, "connectMs") == nil || at(a, "nextAttemptAt") == nil {
		t.Errorf("the first attempt: %v", a)
	}
	told("DELIVERED")

	// What happens while it is disabled is skipped, and can be sent when it is enabled again.
	up.Store(true)
	s.query(token, enable, object{"id": id, "to": "DISABLED"})
	s.chat("While you were away", "")
	skipped := at(s.list(id, "SKIPPED"), 0, "id")
	if code, reason := s.refused(withToken(token), redeliver, object{"id": skipped}); code != "CONFLICT" || reason != "endpoint_disabled" {
		t.Errorf("to a disabled endpoint: %v %v", code, reason)
	}
	s.query(token, enable, object{"id": id, "to": "ENABLED"})
	s.query(token, redeliver, object{"id": skipped})
	r.wait()
	eventually(t, "delivered", func() bool { return len(s.list(id, "DELIVERED")) == 2 })
	if code, _ := s.refused(withToken(token), redeliver, object{"id": "dlv_unknown"}); code != "NOT_FOUND" {
		t.Errorf("an unknown delivery: %v", code)
	}
	if code, _ := s.refused(withKey(apiKey), redeliver, object{"id": skipped}); code != "FORBIDDEN" {
		t.Errorf("by an API key: %v", code)
	}
}

// TestTestEvent sends a test of each type, to a disabled endpoint too: each is one signed attempt, and no part of the feed.
func TestTestEvent(t *testing.T) {
	t.Parallel()
	s := start(t)
	r := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) })
	id, secret := s.register(r.URL, "run.finished")
	oracle, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	s.query(token, enable, object{"id": id, "to": "DISABLED"})
	for _, kind := range []string{
		"MESSAGE_CREATED", "CONVERSATION_HOLDER_CHANGED", "INBOX_ITEM_CREATED", "RUN_FINISHED", "RUN_FAILED", "CALL_ENDED", "CHANNEL_STATUS_CHANGED", "APPROVAL_REQUESTED",
	} {
		d := at(s.query(token, sendTest, object{"id": id, "type": kind}), "sendTestEvent")
		if at(d, "event", "type") != kind || at(d, "event", "data", "test") != true {
			t.Errorf("%s: %v", kind, d)
		}
		h := r.wait()
		if h.header.Get("Webhook-Id") != at(d, "event", "id") || at(h.doc, "event", "data", "test") != true || oracle.Verify(h.body, h.header) != nil {
			t.Errorf("%s came as %v", kind, h.doc)
		}
		eventually(t, "failed", func() bool {
			status, triggers, _ := s.attempts(at(d, "id"))
			return status == "FAILED" && slices.Equal(triggers, []string{"TEST"})
		})
	}
	p := s.query(token, `query($id: ID!) { webhookEndpoint(id: $id) { disabledReason failingSince } events(first: 10) { nodes { id } } }`, object{"id": id})
	if at(p, "webhookEndpoint", "disabledReason") != "disabled by the business" || at(p, "webhookEndpoint", "failingSince") != nil || len(at(p, "events", "nodes").([]any)) != 0 {
		t.Errorf("after the tests: %v", p)
	}
	if code, _ := s.refused(withToken(token), sendTest, object{"id": "whe_unknown", "type": "CALL_ENDED"}); code != "NOT_FOUND" {
		t.Errorf("to no endpoint: %v", code)
	}
}

// TestReplayThroughRestarts replays what a receiver missed, and the server is killed in the middle: every event arrives, in its
// session's order, and the job says so. On a fleet it is each replica in its turn that dies.
func TestReplayThroughRestarts(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := start(t, "PARLEY_DELIVERY_RETRIES=0")
		replayThrough(t, s, func() {
			s.kill()
			s.up()
		})
	})
	t.Run("production", func(t *testing.T) {
		t.Parallel()
		f := production(t, 2, "PARLEY_DELIVERY_RETRIES=0")
		for i, dying := range f.replicas {
			replayThrough(t, f.replicas[1-i], dying.kill)
			dying.up()
		}
	})
}

// replayThrough has a server begin a replay, and strikes while it runs.
func replayThrough(t *testing.T, s *server, strike func()) {
	up := new(atomic.Bool)
	r := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !up.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		<-time.After(20 * time.Millisecond) // so that the replay lasts
	})
	id, _ := s.register(r.URL, "message.created")
	since := time.Now().Add(-time.Second)
	const turns = 40
	var sessions []string
	for i := range turns {
		session := ""
		if i >= 4 {
			session = sessions[i%4]
		}
		sessions = append(sessions, s.chat(fmt.Sprint("Hello ", i), session)["session_id"].(string))
	}
	for range 2 * turns {
		r.wait()
	}
	eventually(t, "failed", func() bool { return len(s.list(id, "FAILED")) == 2*turns })
	up.Store(true)
	job := at(s.query(token, replay, object{"id": id, "since": since.Format(time.RFC3339Nano)}), "replayEvents")
	if at(job, "status") != "RUNNING" || at(job, "total") != float64(2*turns) || at(job, "sent") != 0.0 {
		t.Fatalf("the replay: %v", job)
	}
	if code, reason := s.refused(withToken(token), replay, object{"id": id, "since": since.Format(time.RFC3339Nano)}); code != "CONFLICT" || reason != "replay_running" {
		t.Errorf("a second replay: %v %v", code, reason)
	}
	last := map[string]float64{}
	got := map[string]bool{}
	take := func() {
		h := r.wait()
		if event := h.header.Get("Webhook-Id"); !got[event] {
			got[event] = true
			session, sequence := at(h.doc, "event", "data", "session_id").(string), at(h.doc, "event", "data", "sequence").(float64)
			if sequence < last[session] {
				t.Errorf("%s: %v after %v", session, sequence, last[session])
			}
			last[session] = sequence
		}
	}
	for range turns / 2 {
		take()
	}
	strike()
	for len(got) < 2*turns {
		take()
	}
	var done any
	eventually(t, "finished", func() bool {
		done = at(s.query(token, replayJob, object{"id": at(job, "id")}), "replayJob")
		return at(done, "status") == "FINISHED"
	})
	if at(done, "total") != float64(2*turns) || at(done, "sent") != float64(2*turns) || at(done, "finishedAt") == nil || at(done, "failedOnly") != true {
		t.Errorf("in the end: %v", done)
	}
	if n := len(s.list(id, "DELIVERED")); n != 2*turns {
		t.Errorf("%d are delivered", n)
	}
}

// TestReplayOfEarlierEvents sends an endpoint what happened before it was made, and fresh events go first meanwhile.
func TestReplayOfEarlierEvents(t *testing.T) {
	t.Parallel()
	s := start(t)
	since := time.Now().Add(-time.Second).Format(time.RFC3339Nano)
	for range 20 {
		s.chat("Before", "")
	}
	release := make(chan struct{})
	r := receive(t, func(n int, _ http.ResponseWriter, _ *http.Request) {
		if n <= 2 { // the replay's two slots
			<-release
		}
	})
	id, _ := s.register(r.URL, "run.finished")
	if job := at(s.query(token, replay, object{"id": id, "since": since}), "replayEvents"); at(job, "total") != 0.0 || at(job, "status") != "FINISHED" {
		t.Errorf("nothing has failed: %v", job)
	}
	job := at(s.query(token, replay, object{"id": id, "since": since, "failed": false}), "replayEvents")
	if at(job, "total") != 20.0 {
		t.Errorf("a replay of all: %v", job)
	}
	r.wait()
	r.wait() // all of them wait by now, so that a second one would have nothing to send
	for _, failed := range []bool{true, false} {
		if code, reason := s.refused(withToken(token), replay, object{"id": id, "since": since, "failed": failed}); code != "CONFLICT" || reason != "replay_running" {
			t.Errorf("a second replay: %v %v", code, reason)
		}
	}
	fresh := s.chat("Now", "")["run_id"]
	if h := r.wait(); at(h.doc, "event", "data", "run_id") != fresh {
		t.Errorf("a replay goes before what is fresh: %v", h.doc)
	}
	close(release)
	eventually(t, "finished", func() bool {
		return at(s.query(token, replayJob, object{"id": at(job, "id")}), "replayJob", "status") == "FINISHED"
	})
	jobs := s.query(token, `query($id: ID!) { webhookEndpoint(id: $id) { replayJobs { id sent } } none: replayJob(id: "rpl_unknown") { id } }`, object{"id": id})
	if list := at(jobs, "webhookEndpoint", "replayJobs").([]any); len(list) != 2 || at(list[0], "id") != at(job, "id") || at(list[0], "sent") != 20.0 || at(jobs, "none") != nil {
		t.Errorf("its replays: %v", jobs)
	}
	if n := len(s.list(id, "DELIVERED")); n != 21 {
		t.Errorf("%d are delivered", n)
	}
}

// TestFailingEndpointIsDisabled: an endpoint that fails for the grace without one success is disabled, says why, and is
// switched on again with a clean count.
func TestFailingEndpointIsDisabled(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_ENDPOINT_GRACE=300ms", "PARLEY_DELIVERY_RETRIES=0")
	r, up := downUntilTold(t)
	id, _ := s.register(r.URL, "run.finished")
	read := func() any {
		return at(s.query(token, `query($id: ID!) { webhookEndpoint(id: $id) { status disabledReason failingSince } }`, object{"id": id}), "webhookEndpoint")
	}
	s.chat("Hello", "")
	eventually(t, "failing", func() bool { return at(read(), "failingSince") != nil })
	if p := read(); at(p, "status") != "ENABLED" {
		t.Errorf("at the first failure: %v", p)
	}
	eventually(t, "disabled", func() bool {
		s.chat("Hello", "")
		return at(read(), "status") == "DISABLED"
	})
	if p := read(); at(p, "disabledReason") == nil {
		t.Errorf("no reason: %v", p)
	}
	s.chat("Skipped", "")
	if len(s.list(id, "SKIPPED")) == 0 {
		t.Error("what happens now is not skipped")
	}
	if p := at(s.query(token, enable, object{"id": id, "to": "ENABLED"}), "updateWebhookEndpoint"); at(p, "status") != "ENABLED" || at(p, "failingSince") != nil || at(p, "disabledReason") != nil {
		t.Errorf("enabled again: %v", p)
	}
	up.Store(true)
	s.chat("Back", "")
	eventually(t, "delivered", func() bool { return len(s.list(id, "DELIVERED")) == 1 })
	if p := read(); at(p, "status") != "ENABLED" || at(p, "failingSince") != nil {
		t.Errorf("after a success: %v", p)
	}
}
