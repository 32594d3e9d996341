package webhook

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

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
	tokens        = 64                     // attempts that are young
	youth         = 200 * time.Millisecond // an older attempt hands its token back
	maxBacklog    = 10_000                 // deliveries in memory
	maxInFlight   = 4096                   // attempts at once, slow ones too
	claimEvery    = 500 * time.Millisecond
	claimedAtOnce = 100 // deliveries an endpoint and claim
	fewLeft       = 16  // a parked lane with fewer asks SQL for more
	tick          = 50 * time.Millisecond
)

// Worker delivers. Feed it with Offer, and Run it.
type Worker struct {
	cfg      Config
	inbox    chan []stream.Entry
	lost     atomic.Int64 // entries that did not fit into the inbox
	arrivals chan arrival
	ended    chan ended
	outcomes chan *store.Outcome
	intake   intake // of the goroutine that takes in

	// What follows is the scheduler's alone.
	lanes   map[string]*lane
	ready   []*lane
	backlog int         // jobs in the queues of all lanes
	young   []time.Time // when the attempts that hold a token began, oldest first
	flying  int
	letGo   []*store.Job     // to be given back to SQL
	asked   bool             // the claimer is at work
	nextAsk time.Time        // when it is next asked for whatever is due
	failing bool             // the claimer did not get through
	parked  map[string]*lane // the lanes that are fed from SQL alone
}

// arrival are fresh deliveries, and the endpoints that have older ones waiting in SQL: their lanes are fed from there, so that
// nothing is overtaken.
type arrival struct {
	jobs      []*store.Job
	overtaken []string
}

// ended is an attempt that is over.
type ended struct {
	job     *store.Job
	began   time.Time
	outcome *store.Outcome // nil: nothing is to be recorded
	cut     bool           // by the end of the drain: it is to be given back
}

// New makes a worker.
func New(cfg Config) *Worker {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	w := &Worker{
		cfg: cfg, inbox: make(chan []stream.Entry, 256), arrivals: make(chan arrival, 16), ended: make(chan ended, maxInFlight),
		outcomes: make(chan *store.Outcome, maxInFlight), lanes: map[string]*lane{}, parked: map[string]*lane{},
	}
	w.intake = intake{w: w, last: map[string]int64{}}
	return w
}

// Prepare makes due what an earlier server left in flight, and notes where the feeds stand. It comes before Run, and before
// anything new is committed: what is committed after it comes by the stream.
func (w *Worker) Prepare(ctx context.Context) error {
	if err := w.cfg.Store.ReleaseAll(ctx); err != nil {
		return err
	}
	return w.intake.look(ctx, true)
}

// Run delivers until ctx ends; then it begins nothing new, lets the attempts in flight end, for as long as Config.Drain,
// writes down their outcomes, and gives the rest back to SQL.
func (w *Worker) Run(ctx context.Context) error {
	var helpers sync.WaitGroup
	helpers.Go(func() { w.takeIn(ctx) })
	asks, claims := make(chan ask), make(chan claimed, 1)
	claimer, stopClaimer := context.WithCancel(context.WithoutCancel(ctx))
	defer stopClaimer()
	helpers.Go(func() { w.claim(claimer, asks, claims) })
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		w.record()
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
			send, next = asks, w.ask(time.Now())
		}
		select {
		case <-ctx.Done():
		case send <- next:
			w.asked, w.letGo = true, nil
		case c := <-claims:
			w.claimedJobs(c, time.Now())
		case a := <-w.arrivals:
			w.arrived(a)
		case e := <-w.ended:
			w.attemptEnded(e)
		case <-ticker.C:
			w.parkChoked(time.Now())
		}
	}
	close(asks)
	helpers.Wait()
	close(claims)
	close(w.arrivals)
	w.drain(cut, claims)
	close(w.outcomes)
	<-recorded
	return nil
}

var errCut = errors.New("the drain is over")

// drain waits for the attempts in flight, and gives everything else back to SQL.
func (w *Worker) drain(cut context.CancelCauseFunc, claims <-chan claimed) {
	for c := range claims {
		w.claimedJobs(c, time.Now())
	}
	for a := range w.arrivals {
		w.letGo = append(w.letGo, a.jobs...)
	}
	limit := time.AfterFunc(w.cfg.Drain, func() { cut(errCut) })
	defer limit.Stop()
	for w.flying > 0 {
		w.attemptEnded(<-w.ended)
	}
	for _, l := range w.lanes {
		w.letGo = append(w.letGo, l.queue...)
	}
	if len(w.letGo) > 0 {
		if err := w.cfg.Store.Release(context.Background(), ids(w.letGo)); err != nil {
			w.cfg.Log.Warn("give deliveries back: they are due again when their leases end", "deliveries", len(w.letGo), "error", err)
		}
	}
}

func ids(jobs []*store.Job) []string {
	out := make([]string, len(jobs))
	for i, j := range jobs {
		out[i] = j.DeliveryID
	}
	return out
}

func (w *Worker) laneOf(endpoint string) *lane {
	l := w.lanes[endpoint]
	if l == nil {
		l = newLane(endpoint)
		w.lanes[endpoint] = l
	}
	return l
}

// arrived queues fresh deliveries, or gives them back to SQL where their lane is fed from there or memory is full.
func (w *Worker) arrived(a arrival) {
	if !w.cfg.NoPoll {
		for _, endpoint := range a.overtaken {
			w.park(w.laneOf(endpoint))
		}
	}
	for _, job := range a.jobs {
		l := w.laneOf(job.EndpointID)
		if !l.parked && (w.backlog >= maxBacklog || len(l.queue) >= laneQueue) {
			w.park(l)
		}
		if l.parked {
			w.giveBack(l, job)
			continue
		}
		w.enqueue(l, job)
	}
}

func (w *Worker) enqueue(l *lane, job *store.Job) {
	l.add(job)
	w.backlog++
	w.makeReady(l)
}

func (w *Worker) makeReady(l *lane) {
	if !l.ready {
		l.ready = true
		w.ready = append(w.ready, l)
	}
}

// park gives a lane's queue back to SQL, and has it fed from there.
func (w *Worker) park(l *lane) {
	w.setParked(l, true)
	w.backlog -= len(l.queue)
	for _, job := range l.queue {
		w.giveBack(l, job)
	}
	l.queue = nil
}

func (w *Worker) giveBack(l *lane, job *store.Job) {
	l.letGo++
	w.letGo = append(w.letGo, job)
}

func (w *Worker) parkChoked(now time.Time) {
	for endpoint, l := range w.lanes {
		switch {
		case len(l.queue) > 0 && l.choked(now):
			w.park(l)
		case l.idle():
			delete(w.lanes, endpoint)
		}
	}
}

// dispatch starts attempts, a lane after the other, while there are tokens.
func (w *Worker) dispatch(ctx context.Context) {
	now := time.Now()
	for len(w.young) > 0 && now.Sub(w.young[0]) > youth {
		w.young = w.young[1:]
	}
	for len(w.ready) > 0 && len(w.young) < tokens && w.flying < maxInFlight {
		l := w.ready[0]
		w.ready = w.ready[1:]
		l.ready = false
		job := l.next()
		if job == nil {
			continue
		}
		w.backlog--
		w.makeReady(l) // it may have more, and stands at the end of the line
		if job.LeaseUntil.Time().Sub(now) < w.cfg.Timeout+leaseMargin {
			continue // it waited too long here: it is due in SQL when its lease ends
		}
		l.begin(job, now)
		w.flying++
		w.young = append(w.young, now)
		go func() { w.ended <- w.deliver(ctx, job, now) }()
	}
}

// deliver makes one attempt and decides what follows from it.
func (w *Worker) deliver(ctx context.Context, job *store.Job, began time.Time) ended {
	if store.Now().Sub(job.ReadAt) > 0 { // it has waited here, however shortly
		waits, err := w.cfg.Store.Reread(ctx, job)
		if err != nil {
			w.cfg.Log.Warn("send a delivery: it is due again when its lease ends", "error", err)
		}
		if !waits {
			return ended{job: job, began: began}
		}
	}
	if job.EndpointStatus == store.Disabled {
		return ended{job: job, began: began, outcome: &store.Outcome{Job: job, Status: store.Skipped}}
	}
	made, a := w.attempt(ctx, job)
	if a.status == 0 && errors.Is(context.Cause(ctx), errCut) {
		return ended{job: job, began: began, cut: true}
	}
	v := w.cfg.Policy.decide(made.Number, a, rand.Float64())
	outcome := &store.Outcome{Job: job, Attempt: made, Status: v.status, Disable: v.disable}
	if v.failure != "" {
		made.Error = &v.failure
	}
	if v.status == store.Retrying {
		next := store.Now().Add(v.delay)
		outcome.Next = &next
	}
	return ended{job: job, began: began, outcome: outcome}
}

func (w *Worker) attemptEnded(e ended) {
	w.flying--
	for i, began := range w.young { // the token is among the oldest, if it was not handed back
		if began.Equal(e.began) {
			w.young = append(w.young[:i], w.young[i+1:]...)
			break
		}
	}
	l := w.lanes[e.job.EndpointID]
	l.end(e.job, time.Now())
	w.makeReady(l)
	switch {
	case e.cut:
		w.giveBack(l, e.job)
	case e.outcome != nil:
		w.outcomes <- e.outcome
	}
}

// due says whether the claimer is to be asked: each half second, and as soon as a lane that is fed from SQL runs dry.
func (w *Worker) due(now time.Time) bool {
	switch {
	case w.asked || w.cfg.NoPoll:
		return false
	case !now.Before(w.nextAsk):
		return true
	case w.failing:
		return false
	}
	for _, l := range w.parked {
		if l.hungry(now) {
			return true
		}
	}
	return false
}

// ask says what the scheduler wants from SQL, and what it gives back.
func (w *Worker) ask(now time.Time) ask {
	a := ask{release: w.letGo, all: !now.Before(w.nextAsk), room: map[string]int{}, rest: max(0, maxBacklog-w.backlog)}
	lanes := w.parked
	if a.all {
		lanes = w.lanes
	}
	for endpoint, l := range lanes {
		if a.all || l.hungry(now) {
			a.room[endpoint] = l.room(now)
		}
	}
	return a
}

// claimedJobs queues what the claimer brought. An endpoint of which SQL had all that was asked for has more: it is parked.
// One of which SQL had less has no more, unless some is on its way there.
func (w *Worker) claimedJobs(c claimed, now time.Time) {
	w.asked, w.failing = false, c.err != nil
	if c.ask.all || c.err != nil {
		w.nextAsk = now.Add(claimEvery)
	}
	if !c.released {
		w.letGo = append(c.ask.release, w.letGo...)
	} else {
		for _, job := range c.ask.release {
			w.laneOf(job.EndpointID).letGo--
		}
	}
	for endpoint, wanted := range c.wanted {
		l := w.laneOf(endpoint)
		for _, job := range c.jobs[endpoint] {
			w.enqueue(l, job)
		}
		if parked := wanted > 0 && len(c.jobs[endpoint]) >= wanted; parked || l.letGo == 0 {
			w.setParked(l, parked)
		}
	}
}

func (w *Worker) setParked(l *lane, parked bool) {
	if l.parked = parked; parked {
		w.parked[l.endpoint] = l
	} else {
		delete(w.parked, l.endpoint)
	}
}
