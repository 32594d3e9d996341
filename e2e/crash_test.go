package e2e_test

import (
	"context"
	"sync"
	"testing"
	"time"
)

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
