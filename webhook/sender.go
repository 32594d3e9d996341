package webhook

import (
	"math/rand/v2"
	"time"

	"parley/store"
	"parley/store/hook"
)

const (
	targetAge   = time.Second // an endpoint that was read longer ago is read again before anything is sent to it
	lightBody   = 4 << 10     // as much as the stream carries: these bytes are bounded by the number of attempts
	unknownBody = 1 << 20     // what a document is taken for until it is read
)

// send hands attempts to senders that are idle, or to new ones. Senders are kept, for their stacks have grown to what an attempt
// needs.
func (w *Worker) send(first *task) {
	for first != nil {
		t := first
		first, t.next = t.next, nil
		select {
		case w.tasks <- t:
		default:
			w.running.Go(func() { w.sender(t) })
		}
	}
}

func (w *Worker) sender(t *task) {
	idle := time.NewTimer(senderIdle)
	defer idle.Stop()
	for open := true; open; {
		w.deliver(t)
		if t = w.finish(t); t != nil {
			rest := t.next
			t.next = nil
			w.send(rest)
			continue
		}
		idle.Reset(senderIdle)
		select {
		case t, open = <-w.tasks:
		case <-idle.C:
			return
		}
	}
}

// deliver makes an attempt, and decides what follows from it. Without an outcome it was cut short, and is in SQL as before.
func (w *Worker) deliver(t *task) {
	if !w.prepare(t) {
		return
	}
	job := t.job
	o := &hook.Outcome{Job: job, Hold: t.hold}
	switch {
	case over(job, t.target):
		if o.Status = store.Skipped; job.Attempts > 0 {
			o.Status = store.Failed
		}
		if !w.permit(t) {
			return
		}
	case job.Body == nil: // retention was faster, or someone else's hand
		w.cfg.Log.Error("a delivery without its event", "delivery", job.ID(), "event", job.EventID)
		class := "no_event"
		o.Status, o.URL = store.Failed, t.target.URL
		o.Attempt = &hook.Attempt{Number: job.Attempts + 1, Trigger: job.Trigger, StartedAt: store.At(time.Now()), Error: &class}
		if !w.permit(t) {
			return
		}
	default:
		made, a, ok := w.attempt(t)
		if !ok {
			return
		}
		v := w.cfg.Policy.of(job.Trigger).decide(made.Number-job.Base, a, rand.Float64())
		if job.Trigger == store.TriggerTest {
			v.disable = "" // it counts for nothing
		}
		o.Attempt, o.URL, o.Status, o.Disable = made, t.target.URL, v.status, v.disable
		if v.failure != "" {
			made.Error = &v.failure
		}
		if v.status == store.Retrying {
			next := w.cfg.Store.Now().Add(v.delay)
			o.Next, made.NextAttemptAt = &next, &next
		}
	}
	t.outcome = o
}

// over says whether a delivery was ended: its endpoint has been disabled or deleted since it was made.
func over(job *hook.Job, target *hook.Target) bool {
	return target.Gone || job.Epoch < target.Epoch || target.Status == store.Disabled && job.Trigger != store.TriggerTest
}

// prepare reads what the job needs and is not at hand, and says whether it may be sent then: to
// read may take long. If its shard's hold was not renewed meanwhile, it waits until that is done,
// or another replica has it.
func (w *Worker) prepare(t *task) bool {
	waited, ok := w.fetch(t)
	for ok && waited && !w.holds.good(t.hold) {
		if w.holds.lost(t.hold) || !w.pause() {
			return false
		}
		t.target = nil // it may have changed
		_, ok = w.fetch(t)
	}
	return ok
}

// fetch reads what the job needs and is not at hand. It says whether it had to, and is not ok if it
// was cut short.
func (w *Worker) fetch(t *task) (waited, ok bool) {
	job := t.job
	for t.target == nil || job.Body == nil && !over(job, t.target) {
		waited = true
		var found bool
		var err error
		if t.target == nil {
			found, err = w.readTarget(t)
		} else if job.Body, found, err = w.fetched.Get(w.ctx, job.EventID); found {
			w.bodies.Put(job.BusinessID, job.EventID, job.Body, len(job.Body))
			w.move(func() { w.weigh(t, len(job.Body)) })
		}
		switch {
		case err != nil && !w.tryAgain(err):
			return waited, false
		case err == nil && !found:
			return false, true // it cannot be sent, but that is an outcome
		}
	}
	return waited, true
}

// readTarget reads the endpoint. What changed while the job waited for it is read again.
func (w *Worker) readTarget(t *task) (found bool, err error) {
	target, found, err := w.targets.Get(w.ctx, t.job.EndpointID)
	if err != nil {
		return false, err
	}
	if !found {
		target = &hook.Target{EndpointID: t.job.EndpointID, Gone: true}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	l := t.lane
	if l.b.version != t.version {
		t.version = l.b.version
		return true, nil
	}
	t.target, l.target = target, target
	return found, nil
}

// tryAgain waits a while after a failure to read, and says whether to go on.
func (w *Worker) tryAgain(err error) bool {
	if w.ctx.Err() != nil {
		return false
	}
	w.cfg.Log.Log(w.ctx, w.cfg.Store.Level(err), "send a delivery: trying again", "error", err)
	return w.pause()
}

// pause waits a while, and says whether to go on.
func (w *Worker) pause() bool {
	select {
	case <-w.ctx.Done():
		return false
	case <-time.After(readAgain):
		return true
	}
}

// permit waits until there is room for one more outcome that is not written, and says whether there is. So no more than
// maxUnwritten are known and not written, whatever becomes of the database.
func (w *Worker) permit(t *task) bool {
	t.token.answered.Store(true)
	select {
	case w.permits <- struct{}{}:
		return true
	default:
	}
	select {
	case w.permits <- struct{}{}:
		return true
	case <-w.ctx.Done():
		return false
	}
}
