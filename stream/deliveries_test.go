package stream_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/store"
	"parley/store/hook"
	"parley/stream"
)

// endpoint registers a webhook that gets what happens.
func (w *world) endpoint() *hook.Endpoint {
	w.t.Helper()
	url := "https://example.com/hook"
	p, _, err := w.hooks.CreateEndpoint(w.t.Context(), w.viewer, hook.EndpointInput{URL: &url, Events: store.EventTypes})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// watch subscribes to the deliveries of the business.
func (w *world) watch() *watcher {
	w.t.Helper()
	s, err := w.hub.SubscribeDeliveries(w.t.Context(), w.viewer.BusinessID, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return &watcher{w.t, s, map[string]bool{}}
}

// watcher is a reader of deliveries, who is shown no change twice.
type watcher struct {
	t     *testing.T
	sub   *stream.DeliverySubscription
	shown map[string]bool
}

// expect waits for so many changed deliveries, all in a status.
func (v *watcher) expect(n int, status store.DeliveryStatus) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), 90*time.Second)
	defer cancel()
	for came := 0; came < n; {
		rows, err := v.sub.Next(ctx)
		if err != nil {
			v.t.Fatalf("%d of %d came: %v", came, n, err)
		}
		for _, d := range rows {
			change := fmt.Sprint(d.ID(), d.UpdatedAt)
			if v.shown[change] || d.Status != status {
				v.t.Fatalf("shown, before: %t: %+v", v.shown[change], d)
			}
			v.shown[change] = true
			came++
		}
	}
}

// lost waits for a subscription's end with the error that says: query again.
func (v *watcher) lost() {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), 90*time.Second)
	defer cancel()
	for {
		_, err := v.sub.Next(ctx)
		if refusal, ok := store.AsError(err); ok && refusal.Code == store.CodeCursorExpired && refusal.Reason == "changes_lost" {
			return
		} else if err != nil {
			v.t.Fatalf("it ended with %v", err)
		}
	}
}

// TestRowsAreReadOnceForAll: many subscriptions of a business get the same rows, which were read once, whether this server has changed
// them or another one; and those to one endpoint get its rows alone.
func TestRowsAreReadOnceForAll(t *testing.T) {
	t.Parallel()
	yes := func() bool { return true }
	for name, cfg := range map[string]stream.HubConfig{"well": {Ringing: yes}, "away": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cfg)
			first, second := w.endpoint(), w.endpoint()
			all := make([]*stream.DeliverySubscription, 50)
			for i := range all {
				all[i] = w.watch().sub
			}
			one, err := w.hub.SubscribeDeliveries(t.Context(), w.viewer.BusinessID, &second.ID)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(one.Close)
			tell := w.hub.Offer
			if name == "away" {
				tell = w.hub.Changed // by this server itself
			}
			tell(w.happen(1))
			var rows []*hook.Delivery
			for _, s := range all {
				got, err := s.Next(t.Context())
				if err != nil || len(got) != 2 {
					t.Fatalf("%d rows, %v", len(got), err)
				}
				if rows == nil {
					rows = got
				}
				if got[0] != rows[0] || got[1] != rows[1] {
					t.Fatal("rows were read again for another subscription")
				}
			}
			if got, err := one.Next(t.Context()); err != nil || len(got) != 1 || got[0].EndpointID != second.ID || second.ID == first.ID {
				t.Errorf("to the second endpoint: %v, %v", got, err)
			}
		})
	}
}

// TestWhoWatchesIsToldOfALoss: a loss, however it comes, ends the subscriptions that there are, and none that begin after it.
func TestWhoWatchesIsToldOfALoss(t *testing.T) {
	t.Parallel()
	var ringing atomic.Bool
	var losses atomic.Int64
	ringing.Store(true)
	w := newWorld(t, stream.HubConfig{Ringing: ringing.Load, Losses: losses.Load})
	w.endpoint()
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprint("dlv_", i)
	}
	for _, lose := range []func(){
		func() { losses.Add(1) },
		func() { ringing.Store(false) },
		func() { ringing.Store(true) },
		func() { w.hub.Offer([]stream.Entry{{BusinessID: w.viewer.BusinessID, Deliveries: many}}) }, // of one commit
	} {
		a, b := w.watch(), w.watch()
		w.hub.Changed(w.happen(1))
		a.expect(1, store.Pending)
		lose()
		a.lost()
		b.lost()
	}
	slow, quick := w.watch(), w.watch()
	for range 11 {
		entries := w.happen(100)
		w.hub.Changed(entries)
		quick.expect(len(entries), store.Pending)
	}
	slow.lost()
}

// TestWatchersAreBounded: so many different subscriptions a business, and another business has its own.
func TestWatchersAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, stream.HubConfig{})
	var last *watcher
	for range 200 {
		last = w.watch()
	}
	_, err := w.hub.SubscribeDeliveries(t.Context(), w.viewer.BusinessID, nil)
	if refusal, ok := store.AsError(err); !ok || refusal.Reason != "limit_reached" {
		t.Errorf("one more: %v", err)
	}
	other, err := w.hub.SubscribeDeliveries(t.Context(), "biz_other", nil)
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	last.sub.Close()
	w.watch()
}

// TestWatcherWaitsForTheDatabase rings for deliveries while PostgreSQL is away: their reader waits, and shows them when it is back.
func TestWatcherWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	pg := servers.NewPostgres(t)
	w := newWorldOn(t, pg.Database(t), stream.HubConfig{NoPoll: true})
	w.endpoint()
	v := w.watch()
	w.hub.Offer(w.happen(3))
	pg.Kill()
	read := make(chan error, 1)
	go func() {
		rows, err := v.sub.Next(t.Context())
		if err == nil && len(rows) != 3 {
			err = fmt.Errorf("%d of 3 came", len(rows))
		}
		read <- err
	}()
	pg.Up()
	if err := <-read; err != nil {
		t.Error(err)
	}
}
