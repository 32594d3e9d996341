package webhook

import (
	"context"
	"fmt"
	"sync/atomic"

	"parley/store"
)

const (
	maxDocuments    = 32 << 20 // bytes of the documents of deliveries that wait in memory
	documentsAtOnce = 100      // read from SQL together
)

// documents are those of the deliveries that wait in memory, each held once for however many endpoints get it. What finds no
// room for its document waits without, and so does what waits for an endpoint from which nothing comes back: the sender reads it
// (document). A delivery so keeps its place, whatever its document weighs, and memory is bounded by bytes too.
type documents struct {
	of   map[string]*shared // by event; the scheduler's alone, as are all methods but room
	size atomic.Int64       // bytes
}

// shared is a document, and how many jobs have it.
type shared struct {
	body []byte
	jobs int
}

// room is for how many bytes there still is some.
func (d *documents) room() int { return maxDocuments - int(d.size.Load()) }

// hold counts a job in that waits from now on, or has it wait without its document.
func (d *documents) hold(job *store.Job) {
	doc := d.of[job.EventID]
	if doc == nil {
		if job.Body == nil || len(job.Body) > d.room() {
			job.Body = nil
			return
		}
		doc = &shared{body: job.Body}
		d.of[job.EventID] = doc
		d.size.Add(int64(len(doc.body)))
	}
	doc.jobs++
	job.Body = doc.body // it may have been read by itself
}

// letGo counts a job out that is to be sent, and keeps its document.
func (d *documents) letGo(job *store.Job) {
	if job.Body == nil {
		return
	}
	doc := d.of[job.EventID]
	if doc.jobs--; doc.jobs == 0 {
		delete(d.of, job.EventID)
		d.size.Add(-int64(len(doc.body)))
	}
}

// drop has jobs that wait do so without their documents.
func (d *documents) drop(jobs []*store.Job) {
	for _, job := range jobs {
		d.letGo(job)
		job.Body = nil
	}
}

// document reads what a job is to bring, if it has waited without, and says whether it is there.
func (w *Worker) document(ctx context.Context, job *store.Job) (found bool, err error) {
	if job.Body != nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, rereadWithin)
	defer cancel()
	events, err := w.cfg.Store.EventsByID(ctx, []string{job.EventID})
	if err != nil {
		return false, err
	}
	event := events[job.EventID]
	if event == nil {
		w.lacksEvent(job)
		return false, nil
	}
	job.Body = event.Body
	return true, nil
}

func (w *Worker) lacksEvent(job *store.Job) {
	w.cfg.Log.Error("a delivery without its event", "delivery", job.DeliveryID, "error", fmt.Errorf("event %s is not in SQL", job.EventID))
}
