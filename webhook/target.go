package webhook

import (
	"context"
	"sync"
	"time"

	"parley/store"
)

const (
	stale        = 50 * time.Millisecond // what was read longer ago is read again before it is sent
	staleRinging = time.Second           // while the bell tells of every change of endpoints, on other replicas too
	rereadWithin = 2 * time.Second
)

// targets are the endpoints as they stood when they were last read, shared by the jobs that have waited in memory.
type targets struct {
	mu sync.Mutex
	of map[string]*target
}

type target struct {
	mu   sync.Mutex // held while it is read: one reads for all
	last *store.Target
}

func (ts *targets) get(endpoint string) *target {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.of[endpoint]
	if t == nil {
		t = new(target)
		ts.of[endpoint] = t
	}
	return t
}

// forget drops an endpoint whose lane is idle.
func (ts *targets) forget(endpoint string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.of, endpoint)
}

// refresh brings what a job is sent with up to date, and says whether it still waits. While the bell rings, it has told of
// whatever changed: then the job itself is read again, and else its endpoint at most, once a second for all its jobs. In silence
// anything may have changed.
func (w *Worker) refresh(ctx context.Context, job *store.Job) (waits bool, err error) {
	age := w.cfg.Store.Now().Sub(job.ReadAt)
	switch changed := w.changedAt(job.BusinessID) >= job.ReadAt; {
	case changed || age > stale && !w.cfg.Stream.Ringing():
		return w.reread(ctx, job)
	case age <= staleRinging:
		return true, nil
	}
	t := w.targets.get(job.EndpointID)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil || w.cfg.Store.Now().Sub(t.last.ReadAt) > staleRinging {
		reading, cancel := context.WithTimeout(ctx, rereadWithin)
		read, err := w.cfg.Store.Targets(reading, []string{job.EndpointID})
		cancel()
		if err != nil {
			return false, err
		}
		if len(read) != 1 || read[0].EndpointID != job.EndpointID {
			return false, nil
		}
		t.last = read[0]
	}
	if t.last.Gone || t.last.Status != store.Enabled { // the bell was lost: what waited was ended
		return w.reread(ctx, job)
	}
	job.Aim(t.last)
	return true, nil
}

func (w *Worker) reread(ctx context.Context, job *store.Job) (waits bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, rereadWithin)
	defer cancel()
	return w.cfg.Store.Reread(ctx, job)
}
