package e2e_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestCrashUnderLoad kills the server again and again while clients chat. Of every reply that a client was given, both events
// reach the receiver; each session's first attempts come in order; and a subscriber that resumes from its last cursor after
// each crash gets every event once, in order, without a gap.
func TestCrashUnderLoad(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_DELIVERY_RETRIES=5")
	s.env = append(s.env, "PARLEY_ADDR="+s.url()[len("http://"):]) // the same address after each start
	var mu sync.Mutex
	arrived := map[string]bool{} // message ids at the receiver
	requests := 0
	r := receive(t, nil)
	go func() {
		for h := range r.came {
			mu.Lock()
			requests++
			if id, ok := at(h.doc, "event", "data", "message_id").(string); ok {
				arrived[id] = true
			}
			mu.Unlock()
		}
	}()
	t.Cleanup(func() { r.Close(); close(r.came) })
	s.register(r.URL, "message.created")

	cursor := at(s.query(token, `{feedCursor}`, nil), "feedCursor") // before anything has happened
	ctx, stop := context.WithCancel(t.Context())
	var acknowledged []string
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			session := ""
			for ctx.Err() == nil {
				body := object{"message": "When are you open?", "channel": "sms"}
				if session != "" {
					body["session_id"] = session
				}
				status, _, raw, err := s.try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey), encode(body))
				var answer struct {
					SessionID string `json:"session_id"`
					MessageID string `json:"message_id"`
				}
				if err != nil || status != http.StatusOK || json.Unmarshal(raw, &answer) != nil {
					session = "" // the server is gone: begin anew
					select {
					case <-ctx.Done():
					case <-time.After(5 * time.Millisecond):
					}
					continue
				}
				session = answer.SessionID
				mu.Lock()
				acknowledged = append(acknowledged, answer.MessageID)
				mu.Unlock()
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged)
	}
	random := rand.New(rand.NewPCG(5, 6))
	const crashes = 4
	sequences, seen := map[string]float64{}, map[string]bool{}
	for crash := range crashes {
		live := s.subscribe(token, eventsLive, object{"after": cursor})
		target := count() + 20 + random.IntN(60)
		follow := func(v any) {
			node := at(v, "events", "node")
			id, session := at(node, "id").(string), at(node, "sessionId").(string)
			if seen[id] {
				t.Errorf("%s came twice on the feed", id)
			}
			if at(node, "sequence") != sequences[session]+1 {
				t.Errorf("after %v of %s came %v", sequences[session], session, at(node, "sequence"))
			}
			seen[id], sequences[session], cursor = true, at(node, "sequence").(float64), at(v, "events", "cursor")
		}
		deadline := time.After(patience)
		for count() < target {
			select {
			case v := <-live.next:
				follow(v)
			case <-deadline:
				t.Fatalf("%d chats were answered before crash %d\n%s", count(), crash, s.log())
			}
		}
		s.kill()
		for done := false; !done; { // what the socket still held
			select {
			case v := <-live.next:
				follow(v)
			case <-live.end:
				done = true
			}
		}
		for len(live.next) > 0 {
			follow(<-live.next)
		}
		s.up()
	}
	stop()
	clients.Wait()
	eventually(t, "delivered", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, id := range acknowledged {
			if !arrived[id] {
				return false
			}
		}
		return true
	})
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d replies, %d crashes, %d events on the feed, %d requests at the receiver for %d messages",
		len(acknowledged), crashes, len(seen), requests, len(arrived))
	// At a crash at most 8 attempts are in flight, and one batch of outcomes is not yet written.
	if doubles := requests - len(arrived); doubles > crashes*(8+500) {
		t.Errorf("%d doubles at the receiver", doubles)
	}
}

// TestOrderAfterCrash kills the server in the middle of a turn, and starts it again with the session's next turn right behind:
// what the crash left waiting is sent before what is fresh, however often.
func TestOrderAfterCrash(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_EMBEDDED_MODEL_LATENCY=100ms")
	var mu sync.Mutex
	sequences := map[float64]bool{}
	disorder := 0
	r := receive(t, nil)
	arrived := make(chan float64, 100)
	go func() {
		for h := range r.came {
			n, _ := at(h.doc, "event", "data", "sequence").(float64)
			mu.Lock()
			if !sequences[n] && n > 1 && !sequences[n-1] {
				disorder++
			}
			sequences[n] = true
			mu.Unlock()
			arrived <- n
		}
	}()
	t.Cleanup(func() { r.Close(); close(r.came) })
	s.register(r.URL, "message.created", "run.finished", "run.failed")
	session := s.chat("Hello", "")["session_id"].(string)
	body := encode(object{"message": "When are you open?", "channel": "whatsapp", "session_id": session})
	const rounds = 5
	for range rounds {
		live := s.subscribe(token, eventsLive, nil)
		lost := make(chan struct{})
		go func() {
			defer close(lost)
			_, _, _, _ = s.try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey), body)
		}()
		live.wait() // the message is stored, and its delivery under way
		s.kill()
		<-lost
		s.up()
		s.chat("And on Sunday?", session)
	}
	const last = 3 + rounds*(2+3) // of a turn that crashed: its message and its failure
	for n := 0.0; n != last; {
		select {
		case n = <-arrived:
		case <-time.After(patience):
			t.Fatalf("event %d does not arrive", last)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if disorder > 0 || len(sequences) != last {
		t.Errorf("%d of %d events arrived, %d before the one that precedes them", len(sequences), last, disorder)
	}
}
