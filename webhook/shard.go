package webhook

import (
	"context"
	"slices"
	"sync"
	"time"

	"parley/store/hook"
)

const (
	renewEvery = 500 * time.Millisecond
	// A shard that is to go waits so long for its attempts in flight: then they are the next holder's to make again, for one
	// slow receiver must not hold up all of a shard. At a stop they have until the end of the drain.
	leavePatience = 3 * time.Second
	forGood       = time.Hour
	sureFor       = hook.ShardLease - time.Second // since a renewal was begun: then another replica may take the shard
)

// holds are the shards that this replica does the deliveries of.
type holds struct {
	shared bool // with other replicas: a hold must be renewed

	mu   sync.Mutex // guards what follows
	of   map[int]*hold
	busy [hook.Shards]int // attempts, from their start until their outcome is written
}

type hold struct {
	hook.Hold
	sureUntil time.Time
	leaving   bool // it is to be handed back: nothing new begins
	since     time.Time
}

func (h *hold) good(now time.Time) bool { return now.Before(h.sureUntil) }

// usable says whether something new may begin under a hold; mu is held.
func (h *holds) usable(held *hold) bool {
	return held != nil && !held.leaving && (!h.shared || held.good(time.Now()))
}

// open is the hold under which deliveries of a shard may be taken up.
func (h *holds) open(shard int) (under hook.Hold, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.of[shard]
	if !h.usable(held) {
		return under, false
	}
	return held.Hold, true
}

// good says whether an attempt that was begun under a hold may still be sent.
func (h *holds) good(under hook.Hold) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.of[under.Shard]
	return held != nil && held.Hold == under && (!h.shared || held.good(time.Now()))
}

// lost says whether nothing begins any more under a hold: it is another replica's, or is to be
// handed back. One that was not renewed in time may still be.
func (h *holds) lost(under hook.Hold) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.of[under.Shard]
	return held == nil || held.Hold != under || held.leaving
}

// begin counts an attempt in, if it may begin under the hold.
func (h *holds) begin(under hook.Hold) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if held := h.of[under.Shard]; !h.usable(held) || held.Hold != under {
		return false
	}
	h.busy[under.Shard]++
	return true
}

func (h *holds) end(shard int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy[shard]--
}

// all are the holds under which deliveries may be taken up.
func (h *holds) all() (out []hook.Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, held := range h.of {
		if h.usable(held) {
			out = append(out, held.Hold)
		}
	}
	return out
}

// late says whether there are holds that were not renewed in time, and may still be.
func (h *holds) late() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, held := range h.of {
		if !held.leaving && !h.usable(held) {
			return true
		}
	}
	return false
}

func (h *holds) took(taken []hook.Hold, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range taken {
		h.of[t.Shard] = &hold{Hold: t, sureUntil: began.Add(sureFor)}
	}
}

// renewed notes which holds SQL says are still ours, forgets the others, and marks those beyond the
// fair share as leaving. One that was renewed too late, and that nobody took meanwhile, goes on
// with what is in flight: late says that there are such. A hold that we had lost sight of is
// strange: it is to be handed back.
func (h *holds) renewed(held []hook.Hold, share int, began time.Time) (strange []hook.Hold, late bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for shard, x := range h.of {
		if !slices.Contains(held, x.Hold) {
			delete(h.of, shard)
		}
	}
	staying := 0
	for _, still := range held {
		x := h.of[still.Shard]
		if x == nil {
			strange = append(strange, still)
			continue
		}
		late = late || !x.good(now)
		x.sureUntil = began.Add(sureFor)
		if !x.leaving {
			staying++
			x.leaving, x.since = staying > share, now
		}
	}
	return strange, late
}

// leave marks everything as leaving.
func (h *holds) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.of {
		x.leaving, x.since = true, time.Now().Add(forGood)
	}
}

// idle takes out the leaving holds of which nothing is in flight any more.
func (h *holds) idle() []hook.Hold {
	return h.take(func(x *hold) bool { return x.leaving && (h.busy[x.Shard] == 0 || time.Since(x.since) > leavePatience) })
}

// take takes out the holds that are meant.
func (h *holds) take(meant func(*hold) bool) (out []hook.Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for shard, x := range h.of {
		if meant(x) {
			out = append(out, x.Hold)
			delete(h.of, shard)
		}
	}
	return out
}

// renew keeps the holds alive until ctx ends, hands back what is beyond the fair share, and takes what is free.
func (w *Worker) renew(ctx context.Context) {
	if !w.holds.shared {
		return
	}
	renewal := time.NewTicker(renewEvery)
	defer renewal.Stop()
	for {
		if err := w.renewOnce(ctx); err != nil && ctx.Err() == nil {
			w.cfg.Log.Log(ctx, w.cfg.Store.Level(err), "renew the hold on shards", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-renewal.C:
		}
	}
}

func (w *Worker) renewOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sureFor/2)
	defer cancel()
	began := time.Now()
	held, share, err := w.cfg.Hooks.RenewShards(ctx, w.replica)
	if err != nil {
		return err
	}
	strange, late := w.holds.renewed(held, share, began)
	if late { // nothing was taken in meanwhile
		w.order()
	}
	w.give(ctx, append(strange, w.holds.idle()...))
	if missing := share - len(w.holds.all()); missing > 0 {
		err = w.takeShards(ctx, missing)
	}
	return err
}

// takeShards takes up to so many free shards. What waits there is found by a look; what is committed after that comes by the
// stream.
func (w *Worker) takeShards(ctx context.Context, limit int) error {
	began := time.Now()
	taken, err := w.cfg.Hooks.TakeShards(ctx, w.replica, limit)
	if err == nil {
		w.holds.took(taken, began)
	}
	if len(taken) > 0 {
		w.order()
	}
	return err
}

// keep renews the leases of what is still held, for the attempts in flight.
func (w *Worker) keep(ctx context.Context) {
	w.holds.mu.Lock()
	var holds []hook.Hold
	for _, x := range w.holds.of {
		holds = append(holds, x.Hold)
	}
	w.holds.mu.Unlock()
	if len(holds) == 0 {
		return
	}
	if err := w.cfg.Hooks.KeepShards(ctx, holds); err != nil {
		w.cfg.Log.Log(ctx, w.cfg.Store.Level(err), "keep the shards until the attempts in flight have ended", "error", err)
		return
	}
}

// give hands shards back.
func (w *Worker) give(ctx context.Context, holds []hook.Hold) {
	if len(holds) == 0 {
		return
	}
	if err := w.cfg.Hooks.GiveShards(ctx, holds); err != nil {
		w.cfg.Log.Log(ctx, w.cfg.Store.Level(err), "hand shards back: they are free when their leases end", "shards", len(holds), "error", err)
	}
}
