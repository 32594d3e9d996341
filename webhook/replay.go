package webhook

import (
	"context"
	"time"
)

// replayWindow is how many deliveries of a replay wait in the outbox at a time: enough for its slots until the next look.
const replayWindow = 100

// replay goes on with the replays of the shards held, until ctx ends. It has a goroutine of its own: however many replays there
// are, and however long they take to read, they hold up nothing that is fresh.
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
		holds := w.holds.all()
		if len(holds) == 0 {
			continue
		}
		lanes, err := w.cfg.Hooks.AdvanceReplays(ctx, holds, replayWindow)
		if err != nil && ctx.Err() == nil {
			w.cfg.Log.Log(ctx, w.cfg.Store.Level(err), "go on with replays", "error", err)
		}
		if len(lanes) > 0 {
			w.move(func() { w.found(lanes, nil, 0) })
		}
	}
}
