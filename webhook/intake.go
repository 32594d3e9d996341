package webhook

import (
	"context"
	"slices"
	"time"

	"parley/store"
	"parley/stream"
)

// Offer takes what the reader of the stream has read. It does not block: what does not fit is found missing by its sequence.
func (w *Worker) Offer(entries []stream.Entry) {
	select {
	case w.inbox <- entries:
	default:
		w.lost.Add(1)
	}
}

const (
	intakeBatch = 200             // entries for which deliveries are read together
	gapLimit    = 1000            // events of a gap read at once; a longer one is left to their leases
	lookEvery   = 2 * time.Second // how often a loss is looked for
)

// takeIn turns the stream's entries into jobs, in sequence, and notices by the sequences what the stream has lost.
func (w *Worker) takeIn(ctx context.Context) {
	in := &w.intake
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		var entries []stream.Entry
		select {
		case <-ctx.Done():
			return
		case entries = <-w.inbox:
		case <-ticker.C:
			if losses := w.lost.Load() + w.cfg.Stream.Losses(); losses != in.losses && !w.cfg.NoPoll {
				if err := in.look(ctx, false); err == nil {
					in.losses = losses
				}
			}
			continue
		}
	more:
		for len(entries) < intakeBatch {
			select {
			case e := <-w.inbox:
				entries = append(entries, e...)
			default:
				break more
			}
		}
		in.take(ctx, entries)
	}
}

// intake counts the sequences.
type intake struct {
	w      *Worker
	last   map[string]int64 // by business: whatever is up to it was taken in, or is due in SQL by itself
	losses int64
}

func (in *intake) take(ctx context.Context, entries []stream.Entry) {
	var events []string
	documents := map[string][]byte{}
	slices.SortStableFunc(entries, func(a, b stream.Entry) int { return int(a.Seq - b.Seq) })
	for _, e := range entries {
		last := in.last[e.BusinessID]
		if e.Seq <= last {
			continue // a stroke for changed deliveries, or one that came late: its event was read from SQL meanwhile
		}
		if e.Seq > last+1 {
			missed, err := in.w.cfg.Store.EventsAfter(ctx, e.BusinessID, max(last, e.Seq-1-gapLimit), e.Seq-1, nil, gapLimit)
			if err != nil {
				in.w.cfg.Log.Warn("read what the stream has lost: it is due when its leases end", "error", err)
			}
			for _, m := range missed {
				events = append(events, m.ID)
				documents[m.ID] = m.Body
			}
		}
		events = append(events, e.EventID)
		if e.Body != nil {
			documents[e.EventID] = e.Body
		}
		in.last[e.BusinessID] = e.Seq
	}
	in.hand(ctx, events, documents)
}

// hand reads the deliveries of events and hands them to the scheduler.
func (in *intake) hand(ctx context.Context, events []string, documents map[string][]byte) {
	for len(events) > 0 {
		n := min(len(events), intakeBatch)
		jobs, err := in.w.cfg.Store.FreshJobs(ctx, events[:n])
		if err == nil {
			jobs, err = in.w.withDocuments(ctx, jobs, documents)
		}
		var overtaken []string
		if err == nil && len(jobs) > 0 {
			overtaken, err = in.w.cfg.Store.Overtaken(ctx, endpointsOf(jobs))
		}
		if err != nil {
			if ctx.Err() == nil {
				in.w.cfg.Log.Warn("read fresh deliveries: they are due when their leases end", "events", n, "error", err)
			}
			return
		}
		if len(jobs) > 0 {
			select {
			case in.w.arrivals <- arrival{jobs, overtaken}:
			case <-ctx.Done():
				// They stay leased to nobody: give them back.
				_ = in.w.cfg.Store.Release(context.WithoutCancel(ctx), ids(jobs))
				return
			}
		}
		events = events[n:]
	}
}

func endpointsOf(jobs []*store.Job) []string {
	var out []string
	for _, j := range jobs {
		if !slices.Contains(out, j.EndpointID) {
			out = append(out, j.EndpointID)
		}
	}
	return out
}

// look compares every business's sequence with what was taken in, and takes in what is missing. At the start it only notes
// where they stand: what is older is due in SQL by itself.
func (in *intake) look(ctx context.Context, start bool) error {
	extents, err := in.w.cfg.Store.AllExtents(ctx)
	if err != nil {
		return err
	}
	for _, e := range extents {
		last := in.last[e.BusinessID]
		if e.Last <= last {
			continue
		}
		if !start {
			missed, err := in.w.cfg.Store.EventsAfter(ctx, e.BusinessID, max(last, e.Last-gapLimit), e.Last, nil, gapLimit)
			if err != nil {
				return err
			}
			events := make([]string, len(missed))
			documents := make(map[string][]byte, len(missed))
			for i, m := range missed {
				events[i] = m.ID
				documents[m.ID] = m.Body
			}
			in.hand(ctx, events, documents)
		}
		in.last[e.BusinessID] = e.Last
	}
	return nil
}
