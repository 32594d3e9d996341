package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestSimultaneousTurns has messages come to one session at the same moment, at one server and at two: none of them stands in
// another's way. All are answered, one after the other.
func TestSimultaneousTurns(t *testing.T) {
	t.Parallel()
	const latency = "PARLEY_EMBEDDED_MODEL_LATENCY=20ms"
	for name, start := range map[string]func(t *testing.T) []*server{
		"embedded":     func(t *testing.T) []*server { return []*server{start(t, latency)} },
		"one replica":  func(t *testing.T) []*server { return production(t, 1, latency).replicas },
		"two replicas": func(t *testing.T) []*server { return production(t, 2, latency).replicas },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rounds, atOnce = 3, 10
			servers := start(t)
			session := servers[0].chat("Hello", "")["session_id"].(string)
			said := []string{"Hello"}
			for round := range rounds {
				var turns sync.WaitGroup
				for i := range atOnce {
					text := fmt.Sprintf("message %d of round %d", i, round)
					said = append(said, text)
					turns.Go(func() {
						body := encode(object{"message": text, "channel": "whatsapp", "session_id": session})
						status, _, raw, err := servers[i%len(servers)].try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey), body)
						if err != nil || status != http.StatusOK {
							t.Errorf("%s: %d %s %v", text, status, raw, err)
						}
					})
				}
				turns.Wait()
				if t.Failed() {
					return
				}
			}
			var order, heard []string
			for _, e := range at(servers[0].query(token, `{ events(first: 100) { nodes { type direction sequence data } } }`, nil), "events", "nodes").([]any) {
				order = append(order, fmt.Sprintf("%v %v", at(e, "type"), at(e, "direction")))
				if n := len(order); at(e, "sequence") != float64(n) {
					t.Errorf("event %d has the sequence %v", n, at(e, "sequence"))
				}
				if at(e, "direction") == "INBOUND" {
					heard = append(heard, at(e, "data", "text").(string))
				}
			}
			turn := []string{"MESSAGE_CREATED INBOUND", "MESSAGE_CREATED OUTBOUND", "RUN_FINISHED OUTBOUND"}
			if want := slices.Repeat(turn, len(said)); !slices.Equal(order, want) {
				t.Errorf("%d turns did not run one after the other: %v", len(said), order)
			}
			slices.Sort(said)
			slices.Sort(heard)
			if !slices.Equal(heard, said) {
				t.Errorf("said %v, heard %v", said, heard)
			}
		})
	}
}

// TestTurnsKeepTheirPlace has messages come to one session by twos and threes at the same moment, now to one replica and then
// to another, while a turn runs: those that came before are served before, whichever of those at the same moment goes first.
func TestTurnsKeepTheirPlace(t *testing.T) {
	t.Parallel()
	f := production(t, 2, "PARLEY_EMBEDDED_MODEL_LATENCY=2s")
	session := f.replicas[0].chat("Hello", "")["session_id"].(string)
	var turns sync.WaitGroup
	say := func(s *server, text string) {
		turns.Go(func() {
			body := encode(object{"message": text, "channel": "whatsapp", "session_id": session})
			status, _, raw, err := s.try(context.Background(), "POST", "/agents/demo/chat", withKey(apiKey), body)
			if err != nil || status != http.StatusOK {
				t.Errorf("%s: %d %s %v", text, status, raw, err)
			}
		})
	}
	say(f.replicas[0], "zero")
	f.running()
	standing := 0
	for i, group := range []int{3, 1, 2, 1} {
		for range group {
			say(f.replicas[i%2], fmt.Sprint("group ", i))
		}
		standing += group
		f.inLine(standing)
	}
	turns.Wait()
	var said []string
	for _, e := range at(f.replicas[0].query(token, `{ events(first: 100, filter: {types: [MESSAGE_CREATED]}) { nodes { direction data } } }`, nil), "events", "nodes").([]any) {
		if at(e, "direction") == "INBOUND" {
			said = append(said, at(e, "data", "text").(string))
		}
	}
	if got := strings.Join(said, ", "); got != "Hello, zero, group 0, group 0, group 0, group 1, group 2, group 2, group 3" {
		t.Errorf("served in the order %s", got)
	}
	f.inLine(0)
}
