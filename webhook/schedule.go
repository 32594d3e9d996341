package webhook

import (
	"time"

	"parley/store"
	"parley/store/hook"
)

// pool is what all businesses share.
type pool struct{ size, used int }

// may says whether who has so much of it may take so much more: nobody gets more than half of what the others leave, so that
// there always is some for one more.
func (p *pool) may(own, more int) bool { return own+more <= p.share(own) }

func (p *pool) share(own int) int { return (p.size - (p.used - own)) / 2 }

// business is what the worker knows of a business with deliveries that wait, or that waited until lately.
type business struct {
	id      string
	hold    hook.Hold // under which all of this was read: under another one it counts for nothing
	last    int64     // the number of the last event that the bell brought,
	lastID  string    // and its id
	missed  int64     // it did not bring all up to this one
	since   int       // looks that had begun by then: a later one finds the lanes that this concerns
	version int       // counts changes of its endpoints
	lanes   map[string]*lane
	ready   []*lane // in which an attempt may begin
	wanting []*lane // that want to read
	touched time.Time

	isReady, isWanting, gone bool

	flying, young, numbers, heavy, reads int // of what all share
}

// task is an attempt that is being made.
type task struct {
	job     *hook.Job
	lane    *lane
	hold    hook.Hold
	target  *hook.Target // nil: to be read
	version int          // of the business's endpoints when the attempt began
	heavy   int          // bytes that it takes of what all share
	outcome *hook.Outcome
	token   token
	next    *task
}

// dispatch begins attempts, of a business after the other, and of its lanes one after the other, while there may be more. It
// returns them as a list; mu is held.
func (w *Worker) dispatch() (first *task) {
	now, last := time.Now(), &first
	for waiting := 0; waiting < len(w.ready) && !w.stopping && len(w.permits) < maxUnwritten; { // written goes on
		b := w.ready[0]
		w.ready = w.ready[1:]
		var t *task
		if w.tokens.left(b, now) {
			t = w.begin(b)
		} else {
			w.alarm.Reset(brief / 2)
		}
		if b.isReady = len(b.ready) > 0 && !b.gone; b.isReady {
			w.ready = append(w.ready, b)
		}
		if t == nil {
			waiting++
			continue
		}
		waiting = 0
		w.tokens.take(&t.token, b, now)
		*last, last = t, &t.next
	}
	return first
}

// begin begins an attempt of the business, unless there is none to begin.
func (w *Worker) begin(b *business) *task {
	if b.gone || !w.flying.may(b.flying, 1) {
		return nil
	}
	if !w.holds.begin(b.hold) {
		if w.holds.lost(b.hold) {
			w.drop(b)
		}
		return nil
	}
	now := w.cfg.Store.Now()
	for len(b.ready) > 0 {
		l := b.ready[0]
		b.ready = b.ready[1:]
		l.isReady = false
		t := &task{lane: l, hold: b.hold, version: b.version}
		if t.job = l.next(now, func(job *hook.Job) bool { return w.room(b, t, job) }); t.job == nil {
			w.wake(l, now)
			continue
		}
		w.makeReady(l) // it may have more, and stands at the end of the line
		w.count(b, l, -1)
		w.want(l)
		w.flying.used++
		b.flying++
		w.heavy.used += t.heavy
		b.heavy += t.heavy
		if l.target != nil && now.Sub(l.target.ReadAt) < targetAge {
			t.target = l.target
		}
		return t
	}
	w.holds.end(b.hold.Shard)
	return nil
}

// room says whether there is room for the job's document. The sizes of those that are still to be read show only then.
func (w *Worker) room(b *business, t *task, job *hook.Job) bool {
	if job.Body == nil {
		job.Body, _ = w.bodies.Get(job.EventID)
	}
	switch {
	case job.Body == nil:
		t.heavy = unknownBody
	case len(job.Body) > lightBody:
		t.heavy = len(job.Body)
	default:
		return true
	}
	if w.heavy.may(b.heavy, t.heavy) || b.heavy == 0 && w.heavy.used+t.heavy <= w.heavy.size {
		return true
	}
	job.Body, t.heavy = nil, 0
	if !t.lane.isStarved {
		t.lane.isStarved = true
		w.starved = append(w.starved, t.lane)
	}
	return false
}

// weigh corrects what a task takes of the room for documents.
func (w *Worker) weigh(t *task, bytes int) {
	if bytes <= lightBody {
		bytes = 0
	}
	b := t.lane.b
	w.heavy.used += bytes - t.heavy
	b.heavy += bytes - t.heavy
	t.heavy = bytes
	starved := w.starved
	w.starved = nil
	for _, l := range starved {
		l.isStarved = false
		w.makeReady(l)
	}
}

// finish ends an attempt: its outcome, if there is one, goes to the recorder. It returns the attempts that may begin then.
func (w *Worker) finish(t *task) (first *task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, b := t.lane, t.lane.b
	w.tokens.giveBack(&t.token)
	w.flying.used--
	b.flying--
	if t.heavy > 0 {
		w.weigh(t, 0)
	}
	t.job.Body = nil
	l.end(t.job, time.Now())
	w.makeReady(l)
	w.want(l)
	if t.outcome != nil {
		w.outcomes <- t // it has room for all permits
	} else {
		delete(l.known, t.job.EventID)
		w.holds.end(t.hold.Shard)
	}
	if w.stopping && w.flying.used == 0 {
		close(w.idle)
	}
	first = w.dispatch()
	w.startReads()
	return first
}

func (w *Worker) makeReady(l *lane) {
	if l.isReady || l.b.gone {
		return
	}
	l.isReady = true
	l.b.ready = append(l.b.ready, l)
	if !l.b.isReady {
		l.b.isReady = true
		w.ready = append(w.ready, l.b)
	}
}

// wake makes the lane ready when what waits in it out of its turn is due.
func (w *Worker) wake(l *lane, now store.Time) {
	if at := l.wakes(now); at != 0 && (l.wake == 0 || at < l.wake) {
		l.wake = at
		time.AfterFunc(at.Sub(now), func() {
			w.move(func() {
				l.wake = 0
				w.makeReady(l)
			})
		})
	}
}
