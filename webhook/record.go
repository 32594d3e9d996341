package webhook

import (
	"context"
	"errors"
	"slices"
	"time"

	"parley/store"
	"parley/store/hook"
)

const (
	maxUnwritten = 500 - maxTokens // outcomes that are not written: a crash repeats so many deliveries, and those in flight
	enough       = 250             // outcomes are written at once,
	recordEvery  = 50 * time.Millisecond
	recordRetry  = 250 * time.Millisecond
	patientTries = 3               // as a whole, before it is looked for one that cannot be written
	lastChance   = 2 * time.Second // for the outcomes that are left when the worker ends
)

// record writes outcomes down, many in one transaction, until there are no more; then it rings for what changed. With the
// database away it waits: what it never gets to write is sent again, which is what at-least-once allows.
func (w *Worker) record(ctx context.Context) {
	flush := time.NewTimer(recordEvery)
	for open := true; open; {
		t, ok := <-w.outcomes
		if !ok {
			return
		}
		batch := []*task{t}
		flush.Reset(recordEvery)
	collect:
		for open {
			select { // what waits by now goes along
			case t, open = <-w.outcomes:
			default:
				if len(batch) >= enough {
					break collect
				}
				select {
				case t, open = <-w.outcomes:
				case <-flush.C:
					break collect
				}
			}
			if open {
				batch = append(batch, t)
			}
		}
		w.write(ctx, batch)
	}
}

// write writes outcomes, however long it takes.
func (w *Worker) write(ctx context.Context, batch []*task) {
	defer w.written(batch)
	batch = slices.Clone(batch)
	for tries := 1; len(batch) > 0; tries++ {
		err := w.writeOnce(ctx, batch...)
		if err == nil || errors.Is(err, store.ErrShuttingDown) {
			return
		}
		w.cfg.Log.Log(ctx, w.cfg.Store.Level(err), "record outcomes", "outcomes", len(batch), "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(recordRetry):
		}
		// Else it is no outcome's fault.
		if tries >= patientTries && w.cfg.Store.Reach() == store.Reached {
			batch = w.writeSingly(ctx, batch)
		}
	}
}

// writeSingly writes outcomes one by one, until there is one that the database does not take even without what its receiver and
// the network had to say: either it takes none just now, or that one is to keep no others waiting. It returns what is left.
func (w *Worker) writeSingly(ctx context.Context, batch []*task) (left []*task) {
	for i, t := range batch {
		if w.writeOnce(ctx, t) == nil {
			continue
		}
		if w.cfg.Store.Reach() != store.Reached {
			return batch[i:]
		}
		if made := t.outcome.Attempt; made != nil {
			w.cfg.Log.Error("an outcome cannot be written in full", "delivery", t.job.ID())
			made.ResponseBody, made.RemoteAddress = nil, nil
		}
		if w.writeOnce(ctx, t) != nil {
			return append(batch[i+1:], t)
		}
	}
	return nil
}

func (w *Worker) writeOnce(ctx context.Context, batch ...*task) error {
	outcomes := make([]*hook.Outcome, len(batch))
	for i, t := range batch {
		outcomes[i] = t.outcome
	}
	store.Failpoint("record.before")
	recorded, err := w.cfg.Hooks.Record(ctx, outcomes)
	store.Failpoint("record.after")
	if err != nil {
		return err
	}
	for business, deliveries := range recorded.Changed {
		w.cfg.Stream.PublishDeliveries(business, deliveries...)
	}
	if w.cfg.Recorded != nil {
		w.cfg.Recorded(outcomes)
	}
	for _, c := range recorded.Health {
		w.tellHealth(c)
	}
	for _, business := range recorded.Disabled {
		w.Changed(business)
		w.cfg.Stream.PublishDeliveries(business) // whatever else waited for the endpoint ended with it
	}
	return nil
}

// tellHealth tells of an endpoint that has changed: once, however many deliveries fail.
func (w *Worker) tellHealth(c hook.HealthChange) {
	log := w.cfg.Log.With("endpoint", c.EndpointID, "business", c.BusinessID)
	switch c.To {
	case hook.Failing:
		log.Warn("an endpoint fails", "failure", c.Why)
	case hook.Recovered:
		log.Info("an endpoint has recovered")
	case hook.Disabled:
		log.Warn("an endpoint was disabled", "reason", c.Why)
	}
}

// written ends what was recorded, or given up at the end of the process: SQL has it now.
func (w *Worker) written(batch []*task) {
	replayed := false
	for _, t := range batch {
		<-w.permits
		w.holds.end(t.hold.Shard)
	}
	w.move(func() {
		soon := w.cfg.Store.Now().Add(ahead)
		for _, t := range batch {
			l := t.lane
			l.written(t.job.EventID)
			if next := t.outcome.Next; next != nil && *next <= soon {
				l.due = true
				w.want(l)
			}
			replayed = replayed || t.job.ReplayID != nil
		}
	})
	if replayed {
		nudge(w.replays)
	}
}
