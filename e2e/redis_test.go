package e2e_test

import (
	"net/http"
	"strings"
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

// TestLiveDeliveriesWithoutRedis watches deliveries while Redis is taken away and brought back, one of long ago among them, which is
// sent again: each comes, and how it ends. What other replicas change would be lost meanwhile, so who watches is told to query again when
// Redis goes, and when it is back.
func TestLiveDeliveriesWithoutRedis(t *testing.T) {
	t.Parallel()
	f := production(t, 1, "PARLEY_DELIVERY_RETRIES=0")
	s := f.replicas[0]
	r, up := downUntilTold(t)
	endpoint, _ := s.register(r.URL, "run.finished")
	s.chat("Hello", "")
	eventually(t, "failed", func() bool { return len(s.list(endpoint, "FAILED")) == 1 })
	db := f.db()
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), "UPDATE deliveries SET old_id = 'dlv_00' || substr(event_id, 5)"); err != nil { // of a database of before
		t.Fatal(err)
	}
	old := at(s.list(endpoint, "FAILED"), 0, "id")
	up.Store(true)
	watch := func() *subscriber {
		return s.subscribe(token, `subscription($id: ID) { deliveries(endpointId: $id) { id status attempts { number } } }`, object{"id": endpoint})
	}
	live := watch()
	again := func() {
		t.Helper()
		if why := <-live.end; !strings.Contains(why, `"reason":"changes_lost"`) {
			t.Fatalf("it ended with %s", why)
		}
		live = watch()
		s.query(token, "{ viewer { scope } }", nil) // by now it has begun
	}
	ends := func(id any, attempts int) {
		t.Helper()
		for {
			d := at(live.wait(), "deliveries")
			if (id == nil || at(d, "id") == id) && at(d, "status") == "DELIVERED" && len(at(d, "attempts").([]any)) == attempts {
				return
			}
		}
	}
	redis := func(want string) {
		t.Helper()
		eventually(t, "redis "+want, func() bool {
			_, _, body := s.call("GET", "/readyz", nil, "")
			return at(body, "redis") == want
		})
	}
	s.chat("Hello", "")
	ends(nil, 1) // it watches
	f.bell.Kill()
	redis("degraded")
	again()
	s.query(token, redeliver, object{"id": old})
	ends(old, 2)
	s.chat("Hello", "")
	ends(nil, 1)
	f.bell.Up()
	redis("ok")
	again()
	s.query(token, redeliver, object{"id": old})
	ends(old, 3)
}
