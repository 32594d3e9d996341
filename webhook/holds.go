package webhook

import (
	"context"
	"slices"
	"sync"
	"time"

	"parley/store"
)

const (
	renewEvery = time.Second
	// A shard that is to go waits so long for its attempts in flight: then they are the next holder's to make again, for one slow
	// receiver must not hold up all of a shard. At a stop they have until the end of the drain.
	leavePatience = 3 * time.Second
	forGood       = time.Hour

	handEvery = 250 * time.Millisecond         // how often a shard that is to be handed back is looked at
	sureFor   = store.ShardLease - time.Second // since a renewal was begun: then another replica may take the shard
)

// holds are the shards that this replica does the deliveries of.
type holds struct {
	shared bool // with other replicas: a hold must be renewed

	moving sync.Mutex // held while shards are taken or renewed: SQL and of tell the same then

	mu   sync.Mutex // guards what follows
	of   map[int]*hold
	busy [store.Shards]int // attempts, from their start until their outcome is written
}

type hold struct {
	store.Hold
	sureUntil time.Time
	leaving   bool // it is to be handed back: nothing new begins
	since     time.Time
}

func (h *hold) good(now time.Time) bool { return now.Before(h.sureUntil) }

// open is whether deliveries of a shard may be taken up.
func (h *holds) open(shard int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.of[shard]
	return held != nil && h.usable(held)
}

// usable says whether something new may begin under a hold; mu is held.
func (h *holds) usable(held *hold) bool {
	return !held.leaving && (!h.shared || held.good(time.Now()))
}

// begin counts an attempt in, if it may begin under the hold that its job was read under.
func (h *holds) begin(under store.Hold) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := h.of[under.Shard]
	if held == nil || held.Hold != under || !h.usable(held) {
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
func (h *holds) all() []store.Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []store.Hold
	for _, held := range h.of {
		if h.usable(held) {
			out = append(out, held.Hold)
		}
	}
	return out
}

func (h *holds) took(taken []store.Hold, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range taken {
		h.of[t.Shard] = &hold{Hold: t, sureUntil: began.Add(sureFor)}
	}
}

// renewed notes which holds SQL says are still ours, forgets the others, and marks those beyond the fair share as leaving. A
// hold that we had lost sight of meanwhile is strange: what was read under it is forgotten, and it is to be handed back.
func (h *holds) renewed(held []store.Hold, share int, began time.Time) (strange []store.Hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for shard, x := range h.of {
		if !x.good(now) || !slices.Contains(held, x.Hold) {
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
		x.sureUntil = began.Add(sureFor)
		if !x.leaving {
			staying++
			x.leaving, x.since = staying > share, now
		}
	}
	return strange
}

// leave marks everything as leaving.
func (h *holds) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, x := range h.of {
		x.leaving, x.since = true, time.Now().Add(forGood)
	}
}

// idle takes the leaving holds out of which nothing is in flight any more.
func (h *holds) idle() []store.Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []store.Hold
	for shard, x := range h.of {
		if x.leaving && (h.busy[shard] == 0 || time.Since(x.since) > leavePatience) {
			out = append(out, x.Hold)
			delete(h.of, shard)
		}
	}
	return out
}

// still are the holds that were not let go of, leaving or not.
func (h *holds) still() []store.Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []store.Hold
	for _, x := range h.of {
		out = append(out, x.Hold)
	}
	return out
}

// rest takes what is left.
func (h *holds) rest() []store.Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []store.Hold
	for shard, x := range h.of {
		out = append(out, x.Hold)
		delete(h.of, shard)
	}
	return out
}

// renew keeps the holds alive until ctx ends, hands back what is beyond the fair share, and has the feeder take what is free. To hand
// a shard back may take long, if much is in flight there: the others are renewed meanwhile.
func (w *Worker) renew(ctx context.Context) {
	if !w.holds.shared {
		return
	}
	var giving sync.WaitGroup
	defer giving.Wait()
	give := func(holds []store.Hold) {
		if len(holds) > 0 {
			giving.Go(func() { w.give(ctx, holds) })
		}
	}
	renewal, handing := time.NewTicker(renewEvery), time.NewTicker(handEvery)
	defer renewal.Stop()
	defer handing.Stop()
	for {
		strange, err := w.renewOnce(ctx)
		if err != nil && ctx.Err() == nil {
			w.cfg.Log.Warn("renew the hold on shards", "error", err)
		}
		give(strange)
	hand:
		for {
			select {
			case <-ctx.Done():
				return
			case <-renewal.C:
				break hand
			case <-handing.C:
				give(w.holds.idle())
			}
		}
	}
}

// renewOnce returns the holds that SQL says are ours, and that are not to be used.
func (w *Worker) renewOnce(ctx context.Context) (strange []store.Hold, err error) {
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	w.holds.moving.Lock()
	began := time.Now()
	held, share, err := w.cfg.Store.RenewShards(ctx, w.replica)
	if err == nil {
		strange = w.holds.renewed(held, share, began)
	}
	w.holds.moving.Unlock()
	if err != nil {
		return nil, err
	}
	if missing := share - len(w.holds.all()); missing > 0 {
		select {
		case w.takes <- missing:
		case <-ctx.Done():
		}
	}
	return strange, nil
}

// keep renews the leases of what is still held, for the attempts in flight.
func (w *Worker) keep() {
	if !w.holds.shared {
		return
	}
	holds := w.holds.still()
	if len(holds) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), renewEvery)
	defer cancel()
	if err := w.cfg.Store.KeepShards(ctx, holds); err != nil {
		w.cfg.Log.Warn("keep the shards until the attempts in flight have ended", "error", err)
	}
}

// give hands shards back.
func (w *Worker) give(ctx context.Context, holds []store.Hold) {
	if len(holds) == 0 {
		return
	}
	if err := w.cfg.Store.GiveShards(ctx, holds); err != nil {
		w.cfg.Log.Warn("hand shards back: they are free when their leases end", "shards", len(holds), "error", err)
	}
}
