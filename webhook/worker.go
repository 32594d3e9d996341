package webhook

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"parley/store"
	"parley/stream"
)

// Config is what a Worker is made with.
type Config struct {
	Store   *store.Store
	Stream  *stream.Stream
	Client  *http.Client  // guarded; see package egress
	Timeout time.Duration // of one attempt, from the dial to the last byte
	Policy  Policy
	Drain   time.Duration // how long attempts in flight may go on once Run is to end
	NoPoll  bool          // never claim from SQL: a seam for tests
	Log     *slog.Logger
}

const (
	maxBacklog    = 10_000 // deliveries in memory
	maxInFlight   = 4096   // attempts at once, slow ones too, and their outcomes until they are written
	claimEvery    = 500 * time.Millisecond
	claimedAtOnce = 100 // deliveries an endpoint and claim
	fewLeft       = 16  // a parked lane with fewer asks SQL for more
	tick          = 50 * time.Millisecond
	unfoldEvery   = 500 * time.Millisecond
	senderIdle    = 5 * time.Second
)

// Worker delivers. Feed it with Offer, and Run it.
type Worker struct {
	cfg       Config
	replica   string // its name among the replicas that share the shards
	holds     holds
	inbox     chan []stream.Entry
	lost      atomic.Int64 // entries that did not fit into the inbox
	asks      chan ask
	takes     chan int      // shards to be taken
	pokes     chan struct{} // something was made due: one waits at most
	replays   chan struct{} // a replay may go on: likewise
	fed       chan fed
	tasks     chan task // to senders that are idle
	ended     chan ended
	outcomes  chan *store.Outcome
	unwritten atomic.Int64 // outcomes on their way into SQL: with the database slow or away, nothing new begins beyond maxInFlight
	intake    intake       // the feeder's
	targets   targets

	mu      sync.Mutex            // guards changed
	changed map[string]store.Time // when a business's endpoints last changed

	// What follows is the scheduler's alone.
	lanes     map[string]*lane
	ready     []*lane
	backlog   int       // jobs in the queues of all lanes
	documents documents // of those
	tokens    tokens
	flying    int
	letGo     []*store.Job     // to be given back to SQL
	asked     bool             // the feeder has an ask
	nextAsk   time.Time        // when it is next asked for whatever is due
	failing   bool             // the last ask failed
	parked    map[string]*lane // the lanes that are fed from SQL alone
}

// ended is an attempt that is over.
type ended struct {
	job     *store.Job
	token   *token
	outcome *store.Outcome // nil: nothing is to be recorded
	cut     bool           // it was not made, or not to its end: it is to be given back
}

// New makes a worker.
func New(cfg Config) *Worker {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	w := &Worker{
		cfg: cfg, replica: uuid.NewString(), holds: holds{shared: cfg.Store.Shared(), of: map[int]*hold{}},
		inbox: make(chan []stream.Entry, 256), asks: make(chan ask, 1), takes: make(chan int), pokes: make(chan struct{}, 1), replays: make(chan struct{}, 1), fed: make(chan fed, 2),
		tasks: make(chan task), ended: make(chan ended, maxInFlight), outcomes: make(chan *store.Outcome, maxInFlight),
		targets: targets{of: map[string]*target{}}, changed: map[string]store.Time{}, lanes: map[string]*lane{}, parked: map[string]*lane{},
		documents: documents{of: map[string]*shared{}}, tokens: newTokens(),
	}
	w.intake = intake{w: w, last: map[string]int64{}}
	return w
}

// Prepare takes all shards, where there are no other replicas to share them with, and makes due what an earlier server left in
// flight. It comes before Run, and before anything new is committed: what is committed after it comes by the stream.
func (w *Worker) Prepare(ctx context.Context) error {
	if w.holds.shared {
		return nil
	}
	_, err := w.intake.acquire(ctx, store.Shards)
	return err
}

// Changed says that the endpoints of a business, or what waits for them, have changed: what was read of them before is read
// again before it is sent, and what is due now is claimed at once.
func (w *Worker) Changed(business string) {
	now := w.cfg.Store.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	for b, at := range w.changed { // no job waits in memory for longer than its lease
		if now.Sub(at) > Lease(w.cfg.Timeout) {
			delete(w.changed, b)
		}
	}
	w.changed[business] = now
	nudge(w.pokes)
	nudge(w.replays)
}

func (w *Worker) changedAt(business string) store.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed[business]
}

// Run delivers until ctx ends; then it begins nothing new, lets the attempts in flight end, for as long as Config.Drain,
// writes down their outcomes, and hands its shards back, each as soon as nothing of it is in flight.
func (w *Worker) Run(ctx context.Context) error {
	var helpers sync.WaitGroup
	helpers.Go(func() { w.feed(ctx) })
	helpers.Go(func() { w.renew(ctx) })
	helpers.Go(func() { w.replay(ctx) })
	helpers.Go(func() { w.unfold(ctx) })
	recording, endRecording := context.WithCancel(context.WithoutCancel(ctx))
	defer endRecording()
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		w.record(recording)
	}()

	attempts, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for ctx.Err() == nil {
		w.dispatch(attempts)
		var send chan ask
		var next ask
		if w.due(time.Now()) {
			send, next = w.asks, w.ask(time.Now())
		}
		pokes := w.pokes
		if w.asked { // what was made due meanwhile is asked for after this
			pokes = nil
		}
		select {
		case <-ctx.Done():
		case send <- next:
			w.asked, w.letGo = true, nil
		case f := <-w.fed:
			w.take(f)
		case <-pokes:
			w.nextAsk = time.Time{}
		case e := <-w.ended:
			w.attemptEnded(e)
		case <-w.tokens.again.C:
		case <-ticker.C:
			w.tidy(time.Now())
		}
	}
	w.drain(cut)
	close(w.tasks)
	helpers.Wait()
	close(w.outcomes)
	defer time.AfterFunc(lastChance, endRecording).Stop() // with the database away it would go on for ever
	<-recorded
	giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastChance)
	defer cancel()
	w.give(giving, w.holds.rest())
	return nil
}

var errCut = errors.New("the drain is over")

// drain waits for the attempts in flight. The shards are handed back with all that else is held of them.
func (w *Worker) drain(cut context.CancelCauseFunc) {
	limit := time.AfterFunc(w.cfg.Drain, func() { cut(errCut) })
	defer limit.Stop()
	w.holds.leave()
	if w.holds.shared { // the others need not wait to find out: they take what is handed back as it comes
		leaving, cancel := context.WithTimeout(context.Background(), lastChance)
		if err := w.cfg.Store.Leave(leaving, w.replica); err != nil {
			w.cfg.Log.Warn("say goodbye to the other replicas", "error", err)
		}
		cancel()
	}
	for range w.fed { // until the feeder has ended: what it still brings is handed back too
		continue
	}
	ticker, renewal := time.NewTicker(tick), time.NewTicker(renewEvery)
	defer ticker.Stop()
	defer renewal.Stop()
	for w.flying > 0 {
		if w.holds.shared {
			giving, cancel := context.WithTimeout(context.Background(), lastChance)
			w.give(giving, w.holds.idle())
			cancel()
		}
		select {
		case <-renewal.C: // an attempt may take longer than its shard's lease has left
			w.keep()
		case e := <-w.ended:
			w.attemptEnded(e)
		case <-ticker.C:
		}
	}
}

func (w *Worker) laneOf(of store.Due) *lane {
	l := w.lanes[of.EndpointID]
	if l == nil {
		l = newLane(of)
		w.lanes[of.EndpointID] = l
	}
	return l
}

func endpointOf(job *store.Job) store.Due {
	return store.Due{EndpointID: job.EndpointID, BusinessID: job.BusinessID, Shard: job.Shard}
}

func (w *Worker) enqueue(l *lane, job *store.Job) {
	if job.Aside() {
		l.addAside(job)
	} else {
		l.add(job)
	}
	w.backlog++
	w.documents.hold(job)
	w.makeReady(l)
}

// dequeued counts out what has left its lane's queue.
func (w *Worker) dequeued(jobs ...*store.Job) {
	w.backlog -= len(jobs)
	for _, job := range jobs {
		w.documents.letGo(job)
	}
}

func (w *Worker) makeReady(l *lane) {
	if !l.ready {
		l.ready = true
		w.ready = append(w.ready, l)
	}
}

// tidy parks the lanes that are choked, forgets those that are idle, and those of shards that are no longer ours: what was
// held of them is another replica's by now, or is handed back with the shard.
func (w *Worker) tidy(now time.Time) {
	for endpoint, l := range w.lanes {
		if !w.holds.open(l.Shard) {
			w.dequeued(l.queue...)
			w.dequeued(l.aside...)
			l.queue, l.aside = nil, nil
			clear(l.letGo)
			w.setParked(l, false)
		}
		for i := slices.IndexFunc(l.aside, w.late); i >= 0; i = slices.IndexFunc(l.aside, w.late) { // fresh ones may keep them waiting
			job := l.aside[i]
			l.aside = slices.Delete(l.aside, i, i+1)
			w.dequeued(job)
			w.giveAsideBack(l, job)
		}
		if l.stalled(now) {
			w.documents.drop(l.queue)
			w.documents.drop(l.aside)
		}
		switch {
		case len(l.queue) > 0 && l.choked(now):
			w.park(l)
		case l.idle():
			delete(w.lanes, endpoint)
			w.targets.forget(endpoint)
		}
	}
}

// dispatch starts attempts, a lane after the other, while there are tokens.
func (w *Worker) dispatch(ctx context.Context) {
	now := time.Now()
	for len(w.ready) > 0 && w.tokens.left(now) && w.flying+int(w.unwritten.Load()) < maxInFlight {
		l := w.ready[0]
		w.ready = w.ready[1:]
		l.ready = false
		job := l.next()
		if job == nil {
			continue
		}
		w.dequeued(job)
		w.makeReady(l) // it may have more, and stands at the end of the line
		if w.late(job) {
			w.cutShort(l, job)
			continue
		}
		if !w.holds.begin(job.Hold()) {
			continue // its shard is another replica's by now, or about to be
		}
		l.begin(job, now)
		w.flying++
		w.begin(ctx, job, w.tokens.take(now))
	}
}

// cutShort gives back a job that was not sent. Nothing is to overtake it, unless it has no place in the order anyway.
func (w *Worker) cutShort(l *lane, job *store.Job) {
	if job.Aside() {
		w.giveAsideBack(l, job)
		return
	}
	w.giveBack(l, job)
	w.park(l)
}

func (w *Worker) attemptEnded(e ended) {
	w.flying--
	w.tokens.giveBack(e.token)
	e.job.Body = nil
	l := w.lanes[e.job.EndpointID]
	l.end(e.job, time.Now())
	w.makeReady(l)
	switch {
	case e.outcome != nil:
		w.unwritten.Add(1)
		w.outcomes <- e.outcome // it has room for all that may be in flight
		return                  // the recorder counts it out
	case e.cut:
		w.cutShort(l, e.job)
	}
	w.holds.end(e.job.Shard)
}
