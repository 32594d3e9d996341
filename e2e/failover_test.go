package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"parley/e2e/servers"
)

// TestAFailoverThatLosesCommits has PostgreSQL come back as it was some commits ago, as a standby that takes over may be: a viewer who
// was given what is lost is told so, and whoever begins anew sees what happens from then on.
func TestAFailoverThatLosesCommits(t *testing.T) {
	t.Parallel()
	s, standby, failover := forgetful(t)
	s.chat("Hello", "")
	standby()
	live := s.subscribe(token, eventsLive, nil)
	s.chat("This will be lost", "")
	for range 3 {
		live.wait()
	}
	failover()
	select {
	case v := <-live.next:
		t.Errorf("it is given %v", v)
	case why := <-live.end:
		if !strings.Contains(why, `"CURSOR_EXPIRED"`) {
			t.Errorf("it ends with %s", why)
		}
	case <-time.After(patience):
		t.Error("it is left in silence")
	}
	s.waitReady()
	live = s.subscribe(token, eventsLive, nil)
	s.chat("Hello again", "")
	for range 3 {
		live.wait()
	}
}

// TestDeliveriesAfterAFailover: with no viewer to notice, what happens after such a failover is
// delivered, under numbers that lost events had, which were delivered as well.
func TestDeliveriesAfterAFailover(t *testing.T) {
	t.Parallel()
	s, standby, failover := forgetful(t)
	r := receive(t, nil)
	s.register(r.URL, "message.created", "run.finished")
	came := map[string]bool{}
	chat := func(text string) {
		t.Helper()
		before := len(came)
		s.chat(text, "")
		for len(came) < before+3 { // one whose outcome is lost comes again
			came[r.wait().header.Get("Webhook-Id")] = true
		}
	}
	chat("Hello")
	standby()
	chat("This will be lost")
	chat("This, too")
	failover()
	s.waitReady()
	for _, text := range []string{"Under the first lost numbers", "Under the others", "Under new ones"} {
		chat(text)
	}
}

// forgetful is a replica on a PostgreSQL of its own. standby copies that as it is; failover has the
// copy take over, and what was committed in between is lost.
func forgetful(t *testing.T) (s *server, standby, failover func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "parley-postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	pg := servers.StartPostgres(t, dir)
	t.Cleanup(pg.Kill)
	s = productionOn(t, pg.Database(t), 1).replicas[0]
	data, other := filepath.Join(dir, "data"), filepath.Join(dir, "standby")
	standby = func() {
		t.Helper()
		pg.Stop()
		if out, err := exec.Command("cp", "-a", data, other).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		pg.Up()
		s.waitReady()
	}
	failover = func() {
		t.Helper()
		pg.Kill()
		err := os.RemoveAll(data)
		if err == nil {
			err = os.Rename(other, data)
		}
		if err != nil {
			t.Fatal(err)
		}
		pg.Up()
	}
	return s, standby, failover
}
