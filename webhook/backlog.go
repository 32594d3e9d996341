package webhook

import (
	"context"
	"time"

	"parley/store"
)

// What the scheduler takes in, and what waits in SQL for want of room: a lane that is parked is fed from there alone.

// take takes over what the feeder has read.
func (w *Worker) take(f fed) {
	switch {
	case f.claim != nil:
		w.claimedJobs(f.claim, time.Now())
	case f.moved:
		w.nextAsk = time.Time{}
	default:
		w.arrived(f)
	}
}

// arrived queues fresh deliveries, or gives them back to SQL where their lane is fed from there or memory is full.
func (w *Worker) arrived(f fed) {
	for _, of := range f.behind {
		if l := w.laneOf(of); !l.parked {
			w.park(l)
		}
	}
	for _, job := range f.jobs {
		l := w.laneOf(endpointOf(job))
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

// park gives a lane's queue back to SQL, and has it fed from there.
func (w *Worker) park(l *lane) {
	w.setParked(l, true)
	w.dequeued(l.queue...)
	for _, job := range l.queue {
		w.giveBack(l, job)
	}
	l.queue = nil
}

func (w *Worker) giveBack(l *lane, job *store.Job) {
	l.letGo[job.DeliveryID] = job
	w.release(job)
}

func (w *Worker) release(job *store.Job) {
	job.Body = nil
	w.letGo = append(w.letGo, job)
}

// giveAsideBack gives back a job that is out of its turn. Of a replay all go that wait here: they would overtake it.
func (w *Worker) giveAsideBack(l *lane, job *store.Job) {
	if job.ReplayID == nil {
		w.release(job)
		return
	}
	w.giveBack(l, job)
	for _, later := range l.takeReplay(job) {
		w.dequeued(later)
		w.giveBack(l, later)
	}
}

// due says whether the feeder is to be asked: each half second, as soon as a lane that is fed from SQL runs dry, and before much waits
// to be given back, for until then the feeder brings what comes after it.
func (w *Worker) due(now time.Time) bool {
	switch {
	case w.asked:
		return false
	case !now.Before(w.nextAsk):
		return true
	case w.failing || w.cfg.NoPoll:
		return false
	case len(w.letGo) >= givenBackAtOnce:
		return true
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
	a := ask{
		release: w.letGo, all: !now.Before(w.nextAsk), room: map[store.Due]int{}, asides: map[store.Due]int{}, rest: max(0, maxBacklog-w.backlog),
	}
	lanes := w.parked
	if a.all {
		lanes = w.lanes
	}
	for _, l := range lanes {
		if a.all || l.hungry(now) {
			n := l.room(now)
			if a.rest == 0 {
				n = max(0, min(n, fewLeft-len(l.queue)))
			}
			a.room[l.Due] = n
			if len(l.aside) > 0 {
				a.asides[l.Due] = len(l.aside)
			}
		}
	}
	return a
}

// claimedJobs queues what the feeder brought. An endpoint of which SQL had all that was asked for has more: it is parked. One
// of which SQL had less has no more, unless some is on its way there.
func (w *Worker) claimedJobs(c *claimed, now time.Time) {
	w.asked, w.failing = false, c.err != nil
	if c.ask.all || c.err != nil {
		w.nextAsk = now.Add(claimEvery)
	}
	if !c.released {
		w.letGo = append(c.ask.release, w.letGo...)
	} else {
		for _, job := range c.ask.release {
			if l := w.lanes[job.EndpointID]; l != nil {
				delete(l.letGo, job.DeliveryID)
			}
		}
	}
	for of, wanted := range c.wanted {
		l := w.laneOf(of)
		n := 0 // of those that go out in their turn
		for _, job := range c.jobs[of.EndpointID] {
			if !job.Aside() {
				n++
			}
			if l.overtakes(job) {
				w.giveBack(l, job)
			} else {
				w.enqueue(l, job)
			}
		}
		if parked := wanted > 0 && n >= wanted; parked || len(l.letGo) == 0 {
			w.setParked(l, parked)
		}
	}
}

// unfold makes rows, until ctx ends, of what has waited for some time without. They stay leased: whoever holds them goes on.
func (w *Worker) unfold(ctx context.Context) {
	ticker := time.NewTicker(unfoldEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := w.cfg.Store.Unfold(ctx); err != nil && ctx.Err() == nil {
			w.cfg.Log.Warn("make rows of deliveries that wait", "error", err)
		}
	}
}

func (w *Worker) setParked(l *lane, parked bool) {
	if l.parked = parked; parked {
		w.parked[l.EndpointID] = l
	} else {
		delete(w.parked, l.EndpointID)
	}
}
