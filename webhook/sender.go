package webhook

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"parley/store"
)

// task is an attempt to be made.
type task struct {
	job   *store.Job
	token *token
}

// begin has a sender make the attempt: one that is idle, or a new one. Senders are kept, for their stacks have grown to what an
// attempt needs.
func (w *Worker) begin(ctx context.Context, job *store.Job, held *token) {
	t := task{job, held}
	select {
	case w.tasks <- t:
	default:
		go w.sender(ctx, t)
	}
}

func (w *Worker) sender(ctx context.Context, t task) {
	idle := time.NewTimer(senderIdle)
	defer idle.Stop()
	for open := true; open; {
		e := w.deliver(ctx, t)
		e.token = t.token
		w.ended <- e
		idle.Reset(senderIdle)
		select {
		case t, open = <-w.tasks:
		case <-idle.C:
			return
		}
	}
}

// late says whether a job has waited too long here: its lease may end before the attempt does.
func (w *Worker) late(job *store.Job) bool {
	return job.LeaseUntil.Sub(w.cfg.Store.Now()) < w.cfg.Timeout+leaseMargin
}

// deliver makes one attempt and decides what follows from it.
func (w *Worker) deliver(ctx context.Context, t task) ended {
	job := t.job
	waits, err := w.refresh(ctx, job)
	if err == nil && waits {
		waits, err = w.document(ctx, job)
	}
	if err != nil {
		w.cfg.Log.Warn("send a delivery: giving it back", "error", err)
		return ended{job: job, cut: true}
	}
	if !waits {
		return ended{job: job}
	}
	if w.late(job) { // reading took long
		return ended{job: job, cut: true}
	}
	if job.EndpointStatus == store.Disabled && job.Trigger != store.TriggerTest {
		outcome := &store.Outcome{Job: job, Status: store.Skipped}
		if job.Attempts > 0 {
			outcome.Status = store.Failed
		}
		return ended{job: job, outcome: outcome}
	}
	made, a := w.attempt(ctx, t)
	if a.status == 0 && errors.Is(context.Cause(ctx), errCut) {
		return ended{job: job, cut: true}
	}
	v := w.cfg.Policy.of(job.Trigger).decide(made.Number-job.Base, a, rand.Float64())
	if job.Trigger == store.TriggerTest {
		v.disable = "" // it counts for nothing
	}
	outcome := &store.Outcome{Job: job, Attempt: made, Status: v.status, Disable: v.disable}
	if v.failure != "" {
		made.Error = &v.failure
	}
	if v.status == store.Retrying {
		next := w.cfg.Store.Now().Add(v.delay)
		outcome.Next, made.NextAttemptAt = &next, &next
	}
	return ended{job: job, outcome: outcome}
}
