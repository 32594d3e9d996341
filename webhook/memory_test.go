package webhook_test

import (
	"database/sql"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"parley/store"
	"parley/webhook"
)

const (
	lanesOfMemory = 100    // as many endpoints as a business may have
	inMemory      = 10_000 // deliveries that the worker holds at most (docs/architecture.md), beside those in flight
	feedAtLeast   = 16     // of an endpoint, however full the memory is
)

// held waits until the worker holds no more than so many deliveries: their leases, in SQL, say which.
func (w *world) held(dir string, most int) {
	w.t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "parley.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	deadline := time.After(30 * time.Second)
	for {
		var held, waiting int
		row := db.QueryRowContext(w.t.Context(), "SELECT COUNT(*) FILTER (WHERE leased), COUNT(*) FROM deliveries WHERE next_attempt_at IS NOT NULL")
		if err := row.Scan(&held, &waiting); err != nil {
			w.t.Fatal(err)
		}
		if held <= most {
			w.t.Logf("%d of %d deliveries are held", held, waiting)
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			w.t.Fatalf("of %d deliveries that wait the worker holds %d, want %d at most", waiting, held, most)
		}
	}
}

// hang is a receiver that answers nobody before the test ends.
func hang(t *testing.T) *receiver {
	stop := make(chan struct{})
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) { <-stop })
	t.Cleanup(sync.OnceFunc(func() { close(stop) }))
	return r
}

// TestMemoryIsBounded: whatever waits for endpoints that hang, the worker holds little of it. Where every slot of an endpoint is
// busy that is what is in flight; where one conversation keeps it from using its slots, a bounded queue.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newWorld(t, dir, func(c *webhook.Config) { c.Timeout = time.Hour })
	url := hang(t).URL
	const lanes = 20
	for range lanes {
		w.endpoint(url, store.EventTypes...)
	}
	for range 20 {
		w.turn("")
	}
	w.held(dir, 8*lanes)
}

// TestFullMemoryStarvesNobody fills the worker's memory with what waits for the endpoints of a business, which hang, each kept
// from its slots by one conversation. An endpoint of another one that answers still gets everything.
func TestFullMemoryStarvesNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := newWorld(t, dir, func(c *webhook.Config) { c.Timeout = time.Hour })
	url := hang(t).URL
	for range lanesOfMemory {
		w.endpoint(url, store.EventTypes...)
	}
	session := w.turn("")
	for range 39 {
		w.turn(session)
	}
	w.held(dir, inMemory+lanesOfMemory*(feedAtLeast+1))
	w.another()
	fast, _ := w.endpoint(newReceiver(t, nil).URL, store.EventTypes...)
	for range 3 {
		session = w.turn("")
		w.turn(session)
	}
	w.settled(fast.ID, 18)
	w.held(dir, inMemory+lanesOfMemory*(feedAtLeast+1))
}

// another goes on in a business of its own.
func (w *world) another() {
	w.t.Helper()
	made, err := w.store.CreateBusiness(w.t.Context(), store.BusinessInput{Name: "another", Agent: &store.Agent{
		ID: "demo", Name: "Demo", OnConcurrent: store.Enqueue, Knowledge: []store.Knowledge{}, ChannelProfiles: []store.ChannelProfile{},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	if w.viewer, err = w.store.Authenticate(w.t.Context(), store.KindAccessToken, made.Token); err != nil {
		w.t.Fatal(err)
	}
}
