package webhook

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"parley/lru"
	"parley/store"
	"parley/store/hook"
	"parley/stream"
)

// Config is what a Worker is made with.
type Config struct {
	Store   *store.Store // for its clock
	Hooks   *hook.Hooks
	Stream  *stream.Stream
	Client  *http.Client  // guarded; see package egress
	Timeout time.Duration // of one attempt, from the dial to the last byte
	Policy  Policy
	Drain   time.Duration // how long attempts in flight may go on once Run is to end
	// Recorded is told of outcomes that were written; nil: nobody is. It must neither block nor
	// change them.
	Recorded func([]*hook.Outcome)
	NoPoll   bool // never look in SQL for what the bell did not bring: a seam for tests
	Log      *slog.Logger
}

// Worker delivers. Feed it with Offer, and Run it.
type Worker struct {
	cfg     Config
	replica string // its name among the replicas that share the shards
	holds   holds
	ctx     context.Context // of attempts and readings; ends with errCut when the drain is over
	cut     context.CancelCauseFunc
	running sync.WaitGroup // senders and readers

	tasks    chan *task    // to senders that are idle
	permits  chan struct{} // one is taken for each outcome until it is written
	outcomes chan *task    // attempts that have ended; it has room for all permits
	looks    chan struct{} // what look is to be done is in looking
	replays  chan struct{} // a replay may go on
	measured atomic.Pointer[hook.Measure]
	losses   atomic.Int64 // of the stream, when a look was last ordered for them

	bodies  *lru.Cache[string, []byte] // of events, by id
	fetched *store.Gather[[]byte]      // reads what is not there
	targets *store.Gather[*hook.Target]

	mu         sync.Mutex // guards what follows, all businesses and all lanes
	businesses map[string]*business
	ready      []*business // with lanes in which an attempt may begin
	wanting    []*business // with lanes that want to read
	flying     pool        // attempts, until their outcome is on its way
	numbers    pool        // what waits in the windows of all lanes
	heavy      pool        // bytes of documents in flight that the stream does not carry
	starved    []*lane     // wait for room in heavy
	tokens     tokens
	reads      int // from SQL, under way
	looking    looking
	alarm      *time.Timer // runs while there are too few tokens
	stopping   bool        // nothing new begins
	idle       chan struct{}
}

const (
	maxInFlight = 4096     // attempts at once, slow ones too
	maxNumbers  = 10_000   // deliveries that wait in memory
	maxHeavy    = 64 << 20 // bytes
	maxBodies   = 16 << 20 // bytes of documents that are kept for those who send them next
	maxOwnBody  = 4 << 20  // of one business, while others need room
	senderIdle  = 5 * time.Second
)

var errCut = errors.New("the drain is over")

// New makes a worker.
func New(cfg Config) *Worker {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	w := &Worker{
		cfg: cfg, replica: uuid.NewString(), holds: holds{shared: cfg.Hooks.Shared(), of: map[int]*hold{}},
		tasks: make(chan *task), permits: make(chan struct{}, maxUnwritten), outcomes: make(chan *task, maxUnwritten),
		looks: make(chan struct{}, 1), replays: make(chan struct{}, 1),
		bodies:     lru.New[string, []byte](maxBodies, maxOwnBody),
		fetched:    store.NewGather(1, readLimit, cfg.Hooks.Bodies),
		targets:    store.NewGather(1, readLimit, cfg.Hooks.Targets),
		businesses: map[string]*business{}, looking: looking{of: map[string]bool{}}, idle: make(chan struct{}),
		tokens: tokens{pool: pool{size: maxTokens}}, flying: pool{size: maxInFlight}, numbers: pool{size: maxNumbers}, heavy: pool{size: maxHeavy},
	}
	w.alarm = time.AfterFunc(time.Hour, func() { w.move(func() {}) })
	w.ctx, w.cut = context.WithCancelCause(context.Background())
	return w
}

// Prepare takes all shards, where there are no other replicas to share them with. It comes before Run.
func (w *Worker) Prepare(ctx context.Context) error {
	if w.holds.shared {
		return nil
	}
	return w.takeShards(ctx, hook.Shards)
}

// Run delivers until ctx ends; then it begins nothing new, lets the attempts in flight end, for as long as Config.Drain,
// writes down their outcomes, and hands its shards back, each as soon as nothing of it is in flight.
func (w *Worker) Run(ctx context.Context) error {
	defer w.cut(nil)
	var helpers sync.WaitGroup
	helpers.Go(func() { w.look(ctx) })
	helpers.Go(func() { w.lookWhereTold(ctx) })
	helpers.Go(func() { w.renew(ctx) })
	helpers.Go(func() { w.replay(ctx) })
	helpers.Go(func() { w.measure(ctx) })
	recording, endRecording := context.WithCancel(context.WithoutCancel(ctx))
	defer endRecording()
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		w.record(recording)
	}()
	<-ctx.Done()
	w.drain()
	w.cut(errCut)
	close(w.tasks)
	w.running.Wait()
	helpers.Wait()
	close(w.outcomes)
	defer time.AfterFunc(lastChance, endRecording).Stop() // with the database away it would go on for ever
	<-recorded
	giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastChance)
	defer cancel()
	w.give(giving, w.holds.take(func(*hold) bool { return true }))
	return nil
}

// drain waits for the attempts in flight. Shards of which none is are handed back at once.
func (w *Worker) drain() {
	limit := time.AfterFunc(w.cfg.Drain, func() { w.cut(errCut) })
	defer limit.Stop()
	w.holds.leave()
	if w.holds.shared { // the others need not wait to find out: they take what is handed back as it comes
		leaving, cancel := context.WithTimeout(context.Background(), lastChance)
		if err := w.cfg.Hooks.Leave(leaving, w.replica); err != nil {
			w.cfg.Log.Log(leaving, w.cfg.Store.Level(err), "say goodbye to the other replicas", "error", err)
		}
		cancel()
	}
	w.mu.Lock()
	w.stopping = true
	if w.flying.used == 0 {
		close(w.idle)
	}
	w.mu.Unlock()
	renewal := time.NewTicker(renewEvery)
	defer renewal.Stop()
	for {
		if w.holds.shared {
			giving, cancel := context.WithTimeout(context.Background(), lastChance)
			w.give(giving, w.holds.idle())
			w.keep(giving) // an attempt may take longer than its shard's lease has left
			cancel()
		}
		select {
		case <-w.idle:
			return
		case <-renewal.C:
		}
	}
}

// move changes what mu guards, and begins what may begin then.
func (w *Worker) move(change func()) {
	w.mu.Lock()
	change()
	first := w.dispatch()
	w.startReads()
	w.mu.Unlock()
	w.send(first)
}

// nudge has whoever reads the channel look once more, now or as soon as he can.
func nudge(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default: // he is about to
	}
}
