package webhook

import (
	"context"
	"errors"
	"time"

	"parley/store"
)

const (
	recordedAtOnce = 500
	recordEvery    = 50 * time.Millisecond
	recordRetry    = 250 * time.Millisecond
	lastChance     = 2 * time.Second // for the outcomes that are left when the worker ends
)

// record writes outcomes down, many in one transaction, until there are no more; then it rings for what changed. With the
// database away it waits: what it never gets to write is sent again after its lease, which is what at-least-once allows.
func (w *Worker) record(ctx context.Context) {
	var batch []*store.Outcome
	flush := time.NewTimer(recordEvery)
	flush.Stop()
	for {
		select {
		case o, open := <-w.outcomes:
			if !open {
				w.write(ctx, batch)
				return
			}
			if len(batch) == 0 {
				flush.Reset(recordEvery)
			}
			if batch = append(batch, o); len(batch) < recordedAtOnce {
				continue
			}
		case <-flush.C:
		}
		w.write(ctx, batch)
		batch = nil
	}
}

func (w *Worker) write(ctx context.Context, batch []*store.Outcome) {
	defer func() {
		w.unwritten.Add(-int64(len(batch)))
		for _, o := range batch {
			w.holds.end(o.Job.Shard)
		}
	}()
	for len(batch) > 0 {
		store.Failpoint("record.before")
		changed, disabled, err := w.cfg.Store.Record(ctx, batch)
		store.Failpoint("record.after")
		if err == nil {
			w.ring(batch, changed, disabled)
			return
		}
		w.cfg.Log.Warn("record outcomes", "outcomes", len(batch), "error", err)
		if errors.Is(err, store.ErrShuttingDown) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(recordRetry):
		}
	}
}

// ring tells the live lists of deliveries what changed, and the replayer that a replay may go on.
func (w *Worker) ring(batch []*store.Outcome, changed, disabled []string) {
	done := make(map[string]bool, len(changed))
	for _, id := range changed {
		done[id] = true
	}
	of := map[string][]string{}
	replayed := false
	for _, o := range batch {
		replayed = replayed || o.Job.ReplayID != nil
		if done[o.Job.DeliveryID] {
			of[o.Job.BusinessID] = append(of[o.Job.BusinessID], o.Job.DeliveryID)
		}
	}
	if replayed {
		nudge(w.replays)
	}
	for business, deliveries := range of {
		w.cfg.Stream.PublishDeliveries(business, deliveries...)
	}
	for _, business := range disabled {
		w.cfg.Stream.PublishDeliveries(business) // whatever else waited for the endpoint ended with it
	}
}
