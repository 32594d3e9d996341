package webhook

import (
	"context"
	"errors"
	"fmt"

	"parley/store"
)

// ask is what the scheduler wants of the claimer.
type ask struct {
	release []*store.Job   // to be given back to SQL first, so that the claim sees them
	all     bool           // claim whatever is due; else for the endpoints of room alone
	room    map[string]int // for how many deliveries there is use, by endpoint; of others, claimedAtOnce
	rest    int            // and in all
}

// claimed is the claimer's answer.
type claimed struct {
	ask      ask
	released bool                    // the release was written
	wanted   map[string]int          // how many were asked for, by endpoint
	jobs     map[string][]*store.Job // the jobs now held, with their documents
	err      error
}

// claim answers asks, one after the other, until there are no more.
func (w *Worker) claim(ctx context.Context, asks <-chan ask, answers chan<- claimed) {
	for a := range asks {
		c := claimed{ask: a}
		if c.err = w.answer(ctx, &c); c.err != nil && !errors.Is(c.err, store.ErrShuttingDown) {
			w.cfg.Log.Warn("claim due deliveries", "error", c.err)
		}
		answers <- c
	}
}

func (w *Worker) answer(ctx context.Context, c *claimed) error {
	if len(c.ask.release) > 0 {
		if err := w.cfg.Store.Release(ctx, ids(c.ask.release)); err != nil {
			return err
		}
	}
	c.released = true
	due := make([]string, 0, len(c.ask.room))
	if c.ask.all {
		var err error
		if due, err = w.cfg.Store.DueEndpoints(ctx); err != nil {
			return err
		}
	} else {
		for endpoint := range c.ask.room {
			due = append(due, endpoint)
		}
	}
	c.wanted = make(map[string]int, len(due))
	var wanted []store.Wanted
	rest := c.ask.rest
	for _, endpoint := range due {
		n, known := c.ask.room[endpoint]
		if !known {
			n = claimedAtOnce
		}
		if n = min(n, rest); n > 0 {
			rest -= n
			c.wanted[endpoint] = n
			wanted = append(wanted, store.Wanted{EndpointID: endpoint, Limit: n})
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	jobs, err := w.cfg.Store.Claim(ctx, wanted, Lease(w.cfg.Timeout))
	if err != nil {
		c.wanted = nil
		return err
	}
	// A job without its document is not made: it is due again when its lease ends.
	if jobs, err = w.withDocuments(ctx, jobs, nil); err != nil {
		return err
	}
	c.jobs = make(map[string][]*store.Job, len(wanted))
	for _, job := range jobs {
		c.jobs[job.EndpointID] = append(c.jobs[job.EndpointID], job)
	}
	return nil
}

// withDocuments gives the jobs their events' documents: those at hand, the others from SQL.
func (w *Worker) withDocuments(ctx context.Context, jobs []*store.Job, atHand map[string][]byte) ([]*store.Job, error) {
	var missing []string
	for _, job := range jobs {
		if job.Body = atHand[job.EventID]; job.Body == nil {
			missing = append(missing, job.EventID)
		}
	}
	if len(missing) == 0 {
		return jobs, nil
	}
	events, err := w.cfg.Store.EventsByID(ctx, missing)
	if err != nil {
		return nil, err
	}
	out := jobs[:0]
	for _, job := range jobs {
		if job.Body == nil {
			event := events[job.EventID]
			if event == nil {
				w.cfg.Log.Error("a delivery without its event", "delivery", job.DeliveryID, "error", fmt.Sprintf("event %s is not in SQL", job.EventID))
				continue
			}
			job.Body = event.Body
		}
		out = append(out, job)
	}
	return out, nil
}
