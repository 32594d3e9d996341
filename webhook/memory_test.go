package webhook_test

import (
	"bytes"
	"database/sql"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
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

// heldSQL counts the deliveries that are leased, and those that wait. Of an event's fan-out those count that have no row yet.
const heldSQL = `SELECT leased + folded, waiting + folded FROM
	(SELECT COUNT(*) FILTER (WHERE leased) AS leased, COUNT(*) AS waiting FROM deliveries WHERE next_attempt_at IS NOT NULL) AS rows,
	(SELECT COALESCE(SUM((length(deliveries) - length(replace(deliveries, '["', ''))) / 2), 0) -
		(SELECT COUNT(*) FROM deliveries JOIN fan_outs ON fan_outs.event_id = deliveries.event_id) AS folded FROM fan_outs) AS events`

// held waits until the worker holds no more than so many deliveries: their leases, in SQL, say which.
func (w *world) held(dir string, most int) {
	w.t.Helper()
	onDisk(w.t, dir, func(db *sql.DB) { w.heldIn(db, most) })
}

func (w *world) heldIn(db *sql.DB, most int) {
	w.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		var held, waiting int
		row := db.QueryRowContext(w.t.Context(), heldSQL)
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

// onDisk opens the database in a folder.
func onDisk(t *testing.T, dir string, do func(*sql.DB)) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "parley.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	do(db)
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
	for range 2 { // what comes once much waits in SQL goes there, too
		for range 20 {
			w.turn("")
		}
		w.held(dir, 8*lanes)
	}
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

// heap is how many bytes the process has in use. Tests that look at it do not run in parallel.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

const (
	heavy       = 1 << 20  // bytes that a document is made longer by
	heavies     = 70       // of them, so many wait: one claim is for all
	ofDocuments = 32 << 20 // bytes of documents that the worker holds at most (docs/architecture.md), beside those in flight
	ofAllElse   = 16 << 20 // bytes of what is in flight, and of all else that has come meanwhile
)

// heapBelow waits until the process has no more bytes in use.
func heapBelow(t *testing.T, most int) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		got := heap()
		if got <= most {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%d MB are in use, want %d at most", got>>20, most>>20)
		}
	}
}

// inOrder is a receiver that notes which event of the conversation came, and how long it was, and answers once told to.
type inOrder struct {
	*httptest.Server
	t               *testing.T
	arrived, answer chan struct{}

	mu   sync.Mutex
	came []int
	size int
}

func newInOrder(t *testing.T) *inOrder {
	r := &inOrder{t: t, arrived: make(chan struct{}, 10*heavies), answer: make(chan struct{})}
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		_, after, _ := bytes.Cut(body, []byte(`"sequence":`)) // to read all of it as JSON takes long
		sequence, err := strconv.Atoi(string(after[:bytes.IndexAny(after, ",}")]))
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.came = append(r.came, sequence)
		r.size += len(body)
		r.mu.Unlock()
		r.arrived <- struct{}{}
		<-r.answer
	}))
	t.Cleanup(r.Close)
	return r
}

// gets waits until so many more have come.
func (r *inOrder) gets(n int) {
	r.t.Helper()
	deadline := time.After(time.Minute)
	for i := range n {
		select {
		case <-r.arrived:
		case <-deadline:
			r.t.Fatalf("%d of %d have come", i, n)
		}
	}
}

// all is a failure unless so many have come, whole, and in the order of the conversation.
func (r *inOrder) all(n int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.came) != n || !slices.IsSorted(r.came) || r.size < heavies*heavy {
		r.t.Errorf("%d bytes came as %v", r.size, r.came)
	}
}

// TestDocumentsAreBounded has one conversation wait for an endpoint that hangs, which leaves most of its slots free: so nothing is
// choked, and the queue stays in memory. Of its documents only those do for which there is room, and none once the endpoint has
// not answered for a while; and all come, in order, when it does.
func TestDocumentsAreBounded(t *testing.T) { //nolint:paralleltest // it looks at the heap
	dir := t.TempDir()
	w := newWorld(t, dir, func(c *webhook.Config) { c.Timeout, c.Drain = time.Hour, 0 })
	slow := newInOrder(t)
	answer := sync.OnceFunc(func() { close(slow.answer) })
	t.Cleanup(answer)
	w.endpoint(slow.URL, store.MessageCreated)
	session := ""
	for range heavies / 2 {
		session = w.turn(session)
	}
	slow.gets(1)
	w.stop()
	onDisk(t, dir, func(db *sql.DB) {
		if _, err := db.ExecContext(t.Context(), "UPDATE events SET body = CAST(body || printf('%*s', ?, '') AS BLOB)", heavy); err != nil {
			t.Fatal(err)
		}
	})
	before := heap()
	newWorld(t, dir, func(c *webhook.Config) { c.Timeout = time.Hour })
	slow.gets(1)
	if got := heap() - before; got > ofDocuments+ofAllElse {
		t.Errorf("the worker holds %d MB", got>>20)
	}
	heapBelow(t, before+ofAllElse)
	answer()
	slow.gets(heavies - 1)
	slow.all(heavies + 1) // the first one was cut off
}

// TestWhatIsSlowGetsItsRow: a delivery whose attempt takes long becomes a row meanwhile, still leased, and then ends as any other.
func TestWhatIsSlowGetsItsRow(t *testing.T) {
	t.Parallel()
	dir, answer := t.TempDir(), make(chan struct{})
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) { <-answer })
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	w := newWorld(t, dir, func(cfg *webhook.Config) { cfg.Timeout = time.Minute })
	p, _ := w.endpoint(r.URL, store.RunFinished)
	w.turn("")
	onDisk(t, dir, func(db *sql.DB) {
		deadline := time.After(30 * time.Second)
		for folded, leased := 1, 0; folded > 0 || leased != 1; {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-deadline:
				t.Fatalf("%d fan-outs and %d leased rows", folded, leased)
			}
			err := db.QueryRowContext(t.Context(), "SELECT (SELECT COUNT(*) FROM fan_outs), (SELECT COUNT(*) FROM deliveries WHERE leased)").Scan(&folded, &leased)
			if err != nil {
				t.Fatal(err)
			}
		}
	})
	release()
	d := w.settled(p.ID, 1)[0]
	if d.Status != store.Delivered || d.Attempts != 1 || len(r.requests) != 1 {
		t.Errorf("%+v after %d requests", d, len(r.requests))
	}
	if of, err := w.hooks.AttemptsOf(t.Context(), []string{d.ID()}); err != nil || len(of[d.ID()]) != 1 {
		t.Errorf("attempts %v, %v", of, err)
	}
}
