package webhook

import (
	"context"
	"time"
)

// replayWindow is how many deliveries of a replay are due at a time: enough for its slots until the next look, and little enough
// for what else an endpoint's lane keeps in memory.
const replayWindow = 32

// replay goes on with the replays of the shards held, until ctx ends. It has a goroutine of its own: however many replays there are,
// and however long they take to read, they hold up nothing that is fresh. That a shard is still held is looked at in the commit.
func (w *Worker) replay(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.replays:
		case <-ticker.C:
		}
		due, err := w.cfg.Store.AdvanceReplays(ctx, w.holds.all(), replayWindow)
		if err != nil && ctx.Err() == nil {
			w.cfg.Log.Warn("go on with replays", "error", err)
		}
		for business, deliveries := range due {
			w.cfg.Stream.PublishDeliveries(business, deliveries...)
		}
		if len(due) > 0 {
			nudge(w.pokes)
		}
	}
}

// nudge has whoever reads the channel look once more, now or as soon as he can.
func nudge(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default: // he is about to
	}
}
