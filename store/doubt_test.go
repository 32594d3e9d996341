package store_test

import (
	"bytes"
	"net/url"
	"sync/atomic"
	"testing"

	"parley/e2e/servers"
	"parley/store"
)

// through is the database's URL by way of a relay.
func through(t *testing.T, database string, r *servers.Relay) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	r.To = u.Host
	u.Host = r.Start(t).Addr
	return u.String()
}

// TestACommitInDoubt: a batch whose COMMIT was cut off was committed or is committed again, whichever, also where the answers to
// the question what became of it are lost: what a caller was told of is there, once.
func TestACommitInDoubt(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]servers.Fate{"the COMMIT arrives": servers.Unanswered, "it does not": servers.Lost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var doubts, silences atomic.Int64
			url := through(t, servers.Database(t), &servers.Relay{Judge: func(said []byte) servers.Fate {
				switch {
				case bytes.Contains(said, []byte("commit\x00")) && doubts.Add(-1) >= 0:
					return fate
				case bytes.Contains(said, []byte("SET created_at = batches.created_at")) && silences.Add(-1) >= 0:
					return servers.Unanswered
				}
				return servers.Passed
			}})
			s := open(t, func(c *store.Config) { c.URL = url })
			v := newBusiness(t, s)
			turn := begin(t, s, v, "")
			silences.Store(2)
			doubts.Store(1)
			finish(t, s, turn)
			if doubts.Load() >= 1 || silences.Load() > 0 {
				t.Fatalf("%d commits and %d questions were let through", doubts.Load(), silences.Load())
			}
			if all := events(t, s, v); len(all) != 3 {
				t.Errorf("%d events of a turn that has ended", len(all))
			}
		})
	}
}
