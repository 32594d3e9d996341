package stream_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/store"
	"parley/stream"
)

// endpoint registers a webhook that gets what happens.
func (w *world) endpoint() *store.Endpoint {
	w.t.Helper()
	url := "https://example.com/hook"
	p, _, err := w.store.CreateEndpoint(w.t.Context(), w.viewer, store.EndpointInput{URL: &url, Events: store.EventTypes})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// write changes the database behind the store's back, as another replica does.
func (w *world) write(query string, args ...any) {
	w.t.Helper()
	db, err := sql.Open("sqlite", strings.TrimPrefix(w.database, "file:")+"?_pragma=busy_timeout(30000)")
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(w.t.Context(), query, args...); err != nil {
		w.t.Fatal(err)
	}
}

// aged has all deliveries have been made long ago.
func (w *world) aged() {
	w.t.Helper()
	w.write("UPDATE deliveries SET id = 'dlv_00' || substr(id, 7)")
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
			change := fmt.Sprint(d.ID, d.UpdatedAt)
			if v.shown[change] || d.Status != status {
				v.t.Fatalf("shown, before: %t: %+v", v.shown[change], d)
			}
			v.shown[change] = true
			came++
		}
	}
}

// TestDeliveriesAreFoundUnheard loses all that the bell tells, while the stream seems to be well, or has been lost, or is away.
func TestDeliveriesAreFoundUnheard(t *testing.T) {
	t.Parallel()
	yes := func() bool { return true }
	var losses atomic.Int64
	for name, cfg := range map[string]stream.HubConfig{
		"well":               {Ringing: yes},
		"well, and lost one": {Ringing: yes, Losses: func() int64 { return losses.Add(1) }},
		"away":               {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cfg)
			w.endpoint()
			v := w.watch()
			w.happen(3)
			v.expect(3, store.Pending)
			w.happen(2)
			v.expect(2, store.Pending)
		})
	}
}

// TestOldDeliveriesAreFoundUnheard sends deliveries of long ago again, of which no bell tells.
func TestOldDeliveriesAreFoundUnheard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, stream.HubConfig{})
	w.endpoint()
	w.happen(3)
	w.write("UPDATE deliveries SET status = 'failed', attempts = 3, next_attempt_at = NULL")
	w.aged()
	v := w.watch()
	list, err := w.store.Deliveries(t.Context(), w.viewer.BusinessID, store.DeliveryFilter{}, store.PageInput{First: 10})
	if err != nil || len(list.Nodes()) != 3 {
		t.Fatal(list, err)
	}
	for _, d := range list.Nodes() {
		if _, err := w.store.Redeliver(t.Context(), w.viewer, d.ID); err != nil {
			t.Fatal(err)
		}
	}
	v.expect(3, store.Retrying)
}

// TestMoreRingsThanAReaderKeeps disables the endpoint of a backlog of long ago: the bell brings more ids than a reader keeps, and it
// finds them by itself.
func TestMoreRingsThanAReaderKeeps(t *testing.T) {
	t.Parallel()
	const n, atOnce = 3000, 500
	w := newWorld(t, stream.HubConfig{NoPoll: true})
	p := w.endpoint()
	w.happen(1)
	w.multiply(n - 1)
	w.aged()
	v := w.watch()
	off := store.Disabled
	if _, err := w.store.UpdateEndpoint(t.Context(), w.viewer, p.ID, store.EndpointInput{Status: &off}); err != nil {
		t.Fatal(err)
	}
	if err := w.store.EndWaiting(t.Context()); err != nil {
		t.Fatal(err)
	}
	var ids []string
	page := store.PageInput{First: 100}
	for more := true; more; {
		c, err := w.store.Deliveries(t.Context(), w.viewer.BusinessID, store.DeliveryFilter{}, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range c.Nodes() {
			ids = append(ids, d.ID)
		}
		page.After, more = c.PageInfo.EndCursor, c.PageInfo.HasNextPage
	}
	for len(ids) > 0 {
		k := min(atOnce, len(ids))
		w.hub.Offer([]stream.Entry{{BusinessID: w.viewer.BusinessID, Deliveries: ids[:k]}})
		ids = ids[k:]
	}
	v.expect(n, store.Skipped)
}

// multiply makes n more deliveries like the one that there is.
func (w *world) multiply(n int) {
	w.t.Helper()
	w.write(`INSERT INTO deliveries (id, business_id, endpoint_id, event_id, seq, lane, status, attempts, leased, next_attempt_at, trigger_name, created_at, updated_at)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		SELECT id || i, business_id, endpoint_id, event_id || i, seq, lane, status, attempts, leased, next_attempt_at, trigger_name, created_at, updated_at FROM deliveries CROSS JOIN n`, n)
}

// TestChangesOfOneInstant changes more deliveries in one transaction than a reader reads at once.
func TestChangesOfOneInstant(t *testing.T) {
	t.Parallel()
	const n = 5500 // and one reading takes 5,000
	w := newWorld(t, stream.HubConfig{NoPoll: true})
	w.endpoint()
	w.happen(1)
	w.multiply(n - 1)
	v := w.watch()
	w.write("UPDATE deliveries SET status = 'failed', next_attempt_at = NULL, updated_at = ?", int64(store.Now()))
	w.hub.Offer([]stream.Entry{{BusinessID: w.viewer.BusinessID}})
	v.expect(n, store.Failed)
}

// TestLateCommitsAreFound commits changes whose transactions began before others that a reader has seen, of other deliveries and
// of the same ones.
func TestLateCommitsAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, stream.HubConfig{NoPoll: true})
	w.endpoint()
	v := w.watch()
	w.happen(2)
	look := []stream.Entry{{BusinessID: w.viewer.BusinessID}}
	w.hub.Offer(look)
	v.expect(2, store.Pending)
	for i := range 2 {
		w.write("UPDATE deliveries SET status = 'delivered', attempts = 1, next_attempt_at = NULL, updated_at = ? WHERE seq = ?",
			int64(store.Now().Add(-20*time.Second)), i+1)
		w.hub.Offer(look)
		v.expect(1, store.Delivered)
		if i == 0 { // the one that is shown already is not shown again
			w.write("UPDATE deliveries SET status = 'delivered' WHERE seq = 1")
		}
	}
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
