package e2e_test

import (
	"net/http"
	"testing"

	"parley/e2e/servers"
)

// TestRealRedis runs the main job on a real Redis, takes that away, and brings an empty one back: the feed and the deliveries
// go on through all of it, each event once on the feed, and /readyz says how things stand.
func TestRealRedis(t *testing.T) {
	t.Parallel()
	bell := servers.Redis(t)
	s := start(t, "PARLEY_REDIS_URL=redis://"+bell.Addr+"/0")
	r := receive(t, nil)
	s.register(r.URL, everything...)
	live := s.subscribe(token, eventsLive, object{"after": at(s.query(token, `{feedCursor}`, nil), "feedCursor")})
	redis := func(want string) {
		t.Helper()
		eventually(t, "redis "+want, func() bool {
			status, _, body := s.call("GET", "/readyz", nil, "")
			return status == http.StatusOK && at(body, "redis") == want
		})
	}
	turn := func() {
		t.Helper()
		session := s.chat("Hello", "")["session_id"]
		arrived := map[string]bool{}
		for i := range 3 {
			node := at(live.wait(), "events", "node")
			if at(node, "sessionId") != session || at(node, "sequence") != float64(i+1) {
				t.Fatalf("on the feed: %v", node)
			}
			arrived[r.wait().header.Get("Webhook-Id")] = true
		}
		if len(arrived) != 3 {
			t.Fatalf("%d of 3 events arrived", len(arrived))
		}
	}
	redis("ok")
	turn()
	bell.Kill()
	turn() // at once: nobody has noticed yet
	redis("degraded")
	turn()
	bell.Up()
	redis("ok")
	turn()
	turn()
}
