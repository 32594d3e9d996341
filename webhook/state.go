package webhook

import (
	"context"
	"time"
)

// State is what the worker has come to just now.
type State struct {
	InFlight int           // attempts under way
	Lanes    int           // endpoints that it knows anything of
	Behind   int           // those of them that are read from SQL
	Oldest   time.Duration // how long the delivery has waited that has waited longest for its turn
	Failing  int           // enabled endpoints whose last delivery failed for good
}

// State tells what the worker has come to.
func (w *Worker) State() State {
	measured, s := w.measured.Load(), State{}
	if measured != nil {
		s.Failing = measured.Failing
		if measured.Oldest != 0 {
			s.Oldest = max(0, w.cfg.Store.Now().Sub(measured.Oldest))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.InFlight = w.flying.used
	for _, b := range w.businesses {
		s.Lanes += len(b.lanes)
		for _, l := range b.lanes {
			if l.behind || l.parched {
				s.Behind++
			}
		}
	}
	return s
}

const measureEvery = 5 * time.Second

// measure looks up in SQL, until ctx ends, what is told of the shards held and stands nowhere else.
func (w *Worker) measure(ctx context.Context) {
	ticker := time.NewTicker(measureEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var shards []int
		for _, x := range w.holds.all() {
			shards = append(shards, x.Shard)
		}
		found, err := w.cfg.Hooks.Measure(ctx, shards)
		if err != nil {
			if ctx.Err() == nil {
				w.cfg.Log.Log(ctx, w.cfg.Store.Level(err), "measure what waits", "error", err)
			}
			continue // what was found before is still the best guess
		}
		w.measured.Store(&found)
	}
}
