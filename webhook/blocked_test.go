package webhook_test

import (
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"parley/egress"
	"parley/store"
	"parley/store/hook"
	"parley/webhook"
)

// TestBlockedWhenDialled: an address that slipped past the check, as a name can, is refused when it is dialled: at the first
// send, at a retry, at a resend and at a test. Nothing is sent to it.
func TestBlockedWhenDialled(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	inside := newReceiver(t, func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
	w := newWorld(t, t.TempDir(), func(c *webhook.Config) { // its store checks no URL
		guard, err := egress.NewGuard(egress.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		c.Client, c.Policy = egress.NewClient(guard, 8), webhook.Policy{Retries: 1, Backoff: 10 * time.Millisecond}
	})
	endpoints := map[string]*hook.Endpoint{}
	for _, host := range []string{
		"127.0.0.1", "localhost", "0.0.0.0", "10.0.0.1", "169.254.169.254", "100.64.0.1", "192.168.0.1", "168.63.129.16", "[::1]", "[::]",
		"[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fd00:ec2::254]", "[fe80::1%25lo]",
	} {
		endpoints[host], _ = w.endpoint("http://"+host+":"+port+"/", store.RunFinished)
	}
	w.turn("")
	for host, p := range endpoints {
		d := w.settled(p.ID, 1)[0]
		if _, err := w.hooks.Redeliver(t.Context(), w.viewer, d.ID()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.hooks.SendTest(t.Context(), w.viewer, p.ID, store.RunFinished); err != nil {
			t.Fatal(err)
		}
		all := w.settled(p.ID, 2)
		of, err := w.hooks.AttemptsOf(t.Context(), []string{all[0].Key(), all[1].Key()})
		if err != nil {
			t.Fatal(err)
		}
		made := slices.Concat(of[all[0].Key()], of[all[1].Key()])
		if len(made) != 4 {
			t.Errorf("%s: %d attempts", host, len(made))
		}
		for _, a := range made {
			if a.Error == nil || *a.Error != "blocked_address" || a.RemoteAddress != nil {
				t.Errorf("%s: %s attempt %d: %v", host, a.Trigger, a.Number, a.Error)
			}
		}
	}
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests went to a private address", n)
	}
}
