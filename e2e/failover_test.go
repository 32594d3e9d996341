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
	dir, err := os.MkdirTemp("", "parley-postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	pg := servers.StartPostgres(t, dir)
	t.Cleanup(pg.Kill)
	s := productionOn(t, pg.Database(t), 1).replicas[0]
	s.chat("Hello", "")
	data, standby := filepath.Join(dir, "data"), filepath.Join(dir, "standby")
	pg.Stop()
	if out, err := exec.Command("cp", "-a", data, standby).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pg.Up()
	s.waitReady()

	live := s.subscribe(token, eventsLive, nil)
	s.chat("This will be lost", "")
	for range 3 {
		live.wait()
	}
	pg.Kill()
	if err = os.RemoveAll(data); err == nil {
		err = os.Rename(standby, data)
	}
	if err != nil {
		t.Fatal(err)
	}
	pg.Up()
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
