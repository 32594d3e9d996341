package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"parley/store"
	"parley/stream"
)

// Config is what a Runner is made with.
type Config struct {
	Store       *store.Store
	History     History
	Models      map[store.ModelProvider]Model
	Tools       *http.Client  // guarded: for addresses that a business set
	TurnTimeout time.Duration // deadline of one turn
	QueueWait   time.Duration // how long a turn waits for those before it; 0: 30 s
	Asked       func(Asked)   // is told of each call of a model; nil: nobody is
	// Is told of each turn that has begun, when it has ended; nil: nobody is.
	Ended func(Ended)
	Log   *slog.Logger
}

const (
	queueWait   = 30 * time.Second
	turnLease   = 15 * time.Second       // a turn of which nothing is heard for so long was left behind by a crash
	keepEvery   = 2 * time.Second        // how often the turns that run, and those that wait, are kept alive
	lockPoll    = 100 * time.Millisecond // how often a lock that another replica holds is tried, if nobody rings
	insistEvery = 250 * time.Millisecond
	insistFor   = 30 * time.Second
	sweepEvery  = 5 * time.Second
	sweepAtOnce = 100
)

// Runner runs turns. Its methods are safe for concurrent use.
type Runner struct {
	cfg    Config
	queue  *queue
	line   *line
	mcp    *mcpServers
	keys   keysInFlight
	turns  sync.WaitGroup
	ctx    context.Context // of all turns: ends when they are interrupted
	cancel context.CancelCauseFunc
	open   context.Context // ends when no new turn may begin
	shut   context.CancelFunc

	quietUntil time.Time // the sweeper's: it ends no run before

	mu       sync.Mutex // guards what follows
	draining bool
	running  map[string]struct{} // the runs of the turns that have begun
}

var (
	errInterrupted = errors.New("the server is shutting down")
	errHistory     = errors.New("the session's history could not be read") // our fault, and not the model's
)

// NewRunner makes a runner.
func NewRunner(cfg Config) *Runner {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.QueueWait == 0 {
		cfg.QueueWait = queueWait
	}
	r := &Runner{cfg: cfg, queue: newQueue(), line: newLine(cfg.Store), mcp: &mcpServers{client: cfg.Tools, store: cfg.Store, log: cfg.Log}, running: map[string]struct{}{}}
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.open, r.shut = context.WithCancel(context.Background())
	return r
}

// Chat runs one turn and returns the agent's reply. Its refusals are those of store.BeginTurn, agent_not_found,
// model_failed and model_timeout (the session's history is then as before), shutting_down, those of its idempotency key, and the
// input's faults.
//
// If ctx ends before the turn has begun, nothing has happened. Once it has begun it goes on to its end without the caller.
func (r *Runner) Chat(ctx context.Context, v *store.Viewer, in ChatInput) (*ChatReply, error) {
	if err := v.RequireChat(); err != nil {
		return nil, err
	}
	if err := in.Faults().Err(); err != nil {
		return nil, err
	}
	if in.SessionID != nil && *in.SessionID == "" {
		return nil, store.ErrSessionNotFound // "" is no session; who wants a new one leaves it out
	}
	if in.IdempotencyKey != nil {
		return r.chatOnce(ctx, v, in)
	}
	return r.chat(ctx, v, in, func(error) {})
}

// chat is Chat for an input that has been checked. over is called once, when the turn is over or could not begin: that may be
// after the caller has left.
func (r *Runner) chat(ctx context.Context, v *store.Viewer, in ChatInput, over func(error)) (*ChatReply, error) {
	agent, err := r.cfg.Store.AgentOfTurn(ctx, v.BusinessID, in.AgentID)
	if err != nil {
		over(err)
		return nil, err
	}
	deadline := time.Now().Add(r.cfg.QueueWait)
	leave := func() {}
	var place *place
	if in.SessionID != nil {
		place = r.line.arrive(agent, *in.SessionID)
		if leave, err = r.waitInLine(ctx, agent, *in.SessionID, place, deadline); err != nil {
			place.leave()
			over(err)
			return nil, err
		}
	}
	if !r.start() {
		leave()
		place.leave()
		over(store.ErrShuttingDown)
		return nil, store.ErrShuttingDown
	}
	type result struct {
		reply *ChatReply
		err   error
	}
	done := make(chan result, 1)
	told := newTold(in.Text)
	go func() {
		defer r.turns.Done()
		reply, err := r.turn(ctx, agent, in, told, place, deadline)
		leave() // before its caller is told, who may send the next message at once
		over(err)
		done <- result{reply, err}
	}()
	for {
		select {
		case <-told.changed():
			told.pass()
		case res := <-done:
			told.pass()
			return res.reply, res.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// start counts a turn in, unless the server is draining.
func (r *Runner) start() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		return false
	}
	r.turns.Add(1)
	return true
}

// waitInLine waits until the turns of the session that came before are over, or the deadline.
func (r *Runner) waitInLine(ctx context.Context, agent *store.Agent, session string, place *place, deadline time.Time) (leave func(), err error) {
	// The line is per agent as well: a stranger's session id must not stand in anybody's way.
	key := agent.BusinessID + "/" + agent.ID + "/" + session
	if agent.OnConcurrent == store.Reject {
		leave, idle := r.queue.joinIdle(key)
		if !idle {
			return nil, store.ErrSessionBusy
		}
		return leave, nil
	}
	come, leave := r.queue.join(key)
	select {
	case <-come: // nobody came before, on this replica
		return leave, nil
	default:
	}
	if _, err = place.stand(ctx); err != nil {
		leave()
		return nil, err
	}
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case <-come:
		return leave, nil
	case <-late.C:
		err = store.ErrSessionBusy
	case <-ctx.Done():
		err = ctx.Err()
	case <-r.open.Done():
		err = store.ErrShuttingDown
	}
	leave()
	return nil, err
}

// begin takes the session's lock, waiting for other replicas' turns that hold it, or came before.
func (r *Runner) begin(caller context.Context, agent *store.Agent, in ChatInput, place *place, deadline time.Time) (*store.Turn, error) {
	input := store.TurnInput{
		BusinessID: agent.BusinessID, AgentID: agent.ID, Version: agent.Version, Model: modelName(agent), Channel: in.Channel,
		Text: strings.TrimSpace(in.Message), Metadata: in.Metadata, Lease: turnLease, Key: in.once,
	}
	if in.SessionID != nil {
		input.SessionID = *in.SessionID
	}
	for {
		if err := caller.Err(); err != nil {
			return nil, err
		}
		rang := place.rings()
		input.Ticket, input.Place = place.ticket(), place.foremost()
		turn, err := r.cfg.Store.BeginTurn(caller, input)
		if err == nil {
			place.served()
		}
		if !errors.Is(err, store.ErrSessionBusy) || agent.OnConcurrent == store.Reject || time.Now().After(deadline) {
			return turn, err
		}
		took, err := place.stand(caller)
		if err != nil {
			return nil, err
		}
		if took {
			continue // and look again: the bell may have rung before anybody listened
		}
		select {
		case <-caller.Done():
		case <-r.open.Done():
			return nil, store.ErrShuttingDown
		case <-rang:
		case <-time.After(lockPoll):
		}
	}
}

// keep counts a run among those that are kept alive, until done is called.
func (r *Runner) keep(run string) (done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[run] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.running, run)
	}
}

// insist repeats a turn's second commit while the database is away, full or overloaded, for as long as the turn may take, which ends
// with ctx, and for a while in any case: a reply that was paid for is not dropped for a hiccup. After that the sweeper ends the run.
func (r *Runner) insist(ctx context.Context, commit func() error) error {
	ends, _ := ctx.Deadline()
	limit := time.After(max(insistFor, time.Until(ends)))
	for {
		err := commit()
		if e, ok := store.AsError(err); !ok || e.Code != store.CodeUnavailable || errors.Is(err, store.ErrShuttingDown) {
			return err
		}
		select {
		case <-limit:
			return err
		case <-r.ctx.Done(): // the server must end
			return err
		case <-time.After(insistEvery):
		}
	}
}

// Run keeps the turns alive that run or wait here, and ends the runs that a crash has left behind, here or elsewhere, until
// ctx ends.
func (r *Runner) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { every(ctx, keepEvery, r.keepAlive) })
	every(ctx, sweepEvery, r.sweep)
	return nil
}

// every calls do at once, and then at each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, do func(context.Context)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		do(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *Runner) keepAlive(ctx context.Context) {
	r.mu.Lock()
	runs := slices.Collect(maps.Keys(r.running))
	r.mu.Unlock()
	var err error
	if len(runs) > 0 {
		err = r.cfg.Store.KeepTurns(ctx, runs, turnLease)
	}
	if err = errors.Join(err, r.line.keepAlive(ctx)); err != nil && ctx.Err() == nil {
		r.cfg.Log.Log(ctx, r.cfg.Store.Level(err), "keep turns alive", "error", err)
	}
}

// Offer takes what the reader of the stream has read: a turn that waits for another replica's learns that it has ended.
func (r *Runner) Offer(entries []stream.Entry) { r.line.ring(entries) }

func (r *Runner) sweep(ctx context.Context) {
	runs, err := r.cfg.Store.AbandonedRuns(ctx, sweepAtOnce)
	if err != nil {
		// The database was away, for the other replicas' heartbeats too: they get the time to make up for it.
		r.quietUntil = time.Now().Add(turnLease)
		if ctx.Err() == nil {
			r.cfg.Log.Log(ctx, r.cfg.Store.Level(err), "sweep", "error", err)
		}
		return
	}
	if now := time.Now(); now.Before(r.quietUntil) {
		return
	}
	for _, run := range runs {
		r.mu.Lock()
		_, ours := r.running[run.ID]
		r.mu.Unlock()
		if ours {
			continue // it lives: what was late is its heartbeat
		}
		r.cfg.Log.Warn("a run was left behind by a crash", "run", run.ID)
		if err := r.cfg.Store.FailTurn(ctx, run, store.RunInterrupted); err != nil {
			r.cfg.Log.Log(ctx, r.cfg.Store.Level(err), "end an abandoned run", "run", run.ID, "error", err)
		}
	}
}

// Drain lets no new turn begin, and waits for those that run. When ctx ends it interrupts them: each ends as failed, its
// caller told that the server is shutting down.
func (r *Runner) Drain(ctx context.Context) {
	r.mu.Lock()
	r.draining = true
	r.mu.Unlock()
	r.shut()
	done := make(chan struct{})
	go func() {
		r.turns.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		r.cancel(errInterrupted)
		<-done
	}
	r.cancel(errInterrupted)
}
