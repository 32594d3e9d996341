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

// until waits for something that no bell tells of.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// TestFullMemoryStarvesNobody fills the worker's memory with what waits for the endpoints of a business, which hang, each kept
// from its slots by one conversation or with all of them busy. An endpoint of another one that answers still gets everything,
// and nothing is lost for want of memory.
func TestFullMemoryStarvesNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, t.TempDir(), func(c *webhook.Config) { c.Timeout = time.Hour })
	stop := make(chan struct{})
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) { <-stop })
	answer := sync.OnceFunc(func() { close(stop) })
	t.Cleanup(answer)
	const lanes, turns = 100, 80
	for range lanes {
		w.endpoint(r.URL, store.EventTypes...)
	}
	session := w.turn("")
	for range turns/2 - 1 {
		w.turn(session)
	}
	for range turns / 2 {
		w.turn("")
	}
	until(t, "all slots of the endpoints are busy", func() bool { return w.worker.InFlight() == 8*lanes })
	w.another()
	fast, _ := w.endpoint(newReceiver(t, nil).URL, store.EventTypes...)
	for range 3 {
		session = w.turn("")
		w.turn(session)
	}
	w.settled(fast.ID, 18)
	if held := w.worker.Held(); held > webhook.MostHeld/2+lanes*16 {
		t.Errorf("%d deliveries of a business wait in memory", held)
	}
	answer()
	for came := r.count(); came < 3*lanes*turns; { // with the race detector it takes a minute
		until(t, "one more has come", func() bool { return r.count() > came })
		came = r.count()
	}
}

// TestWindowsTakeTurns: a business has more endpoints that hang than there are windows, and one that answers, which comes last.
// It gets everything, while those hold no more than the memory has.
func TestWindowsTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, t.TempDir(), func(c *webhook.Config) { c.Timeout = time.Hour })
	const businesses, lanes, turns = 7, 100, 28 // 24 wait of each hanging one
	stuck := hang(t)
	for range businesses {
		for range lanes {
			w.endpoint(stuck.URL, store.RunFinished)
		}
		for range turns {
			w.turn("")
		}
		if held := w.worker.Held(); held > webhook.MostHeld {
			t.Errorf("%d deliveries wait in memory", held)
		}
		w.another()
	}
	fast, _ := w.endpoint(newReceiver(t, nil).URL, store.RunFinished)
	for range turns {
		w.turn("")
	}
	w.settled(fast.ID, turns)
	if held := w.worker.Held(); held > webhook.MostHeld {
		t.Errorf("%d deliveries wait in memory", held)
	}
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
