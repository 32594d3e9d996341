package webhook

import (
	"context"
	"slices"
	"time"

	"parley/store"
	"parley/stream"
)

// The feeder is the only one that reads deliveries for the scheduler: fresh ones that the stream rang for, and due ones that
// the scheduler asks for. It hands them over in the order in which it read them. So what is fresh overtakes nothing that
// waits: a claim that was read before it arrives before it, and if there is something to claim, the lane is parked. Nor does a
// claim overtake what the stream is still to bring, or has lost: it reaches no further than what has been taken in.

const (
	intakeBatch = 50          // entries for which deliveries are read together, up to 100 each
	lookEvery   = time.Second // how often a loss is looked for
	readAgain   = 250 * time.Millisecond
)

// Tests have fewer do.
var (
	gapAtOnce       = 200  // events of a gap read at once, with their documents
	givenBackAtOnce = 1000 // deliveries to be given back do not wait until the feeder is asked anyway
)

// fed is what the feeder hands over.
type fed struct {
	jobs   []*store.Job // fresh deliveries, in sequence
	behind []store.Due  // endpoints of which SQL has older ones: their fresh ones are to wait there too
	claim  *claimed     // or the answer to an ask
	moved  bool         // shards were taken: there may be much to ask for
}

// Offer takes what the reader of the stream has read. It does not block: what does not fit is found missing by its sequence.
func (w *Worker) Offer(entries []stream.Entry) {
	for _, e := range entries {
		if e.Seq == 0 && len(e.Deliveries) == 0 {
			w.Changed(e.BusinessID)
		}
	}
	select {
	case w.inbox <- entries:
	default:
		w.lost.Add(1)
	}
}

// feed works until ctx ends.
func (w *Worker) feed(ctx context.Context) {
	defer close(w.fed)
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	in := &w.intake
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case entries := <-w.inbox:
			err = in.take(ctx, w.waiting(entries))
		case a := <-w.asks:
			w.claim(ctx, a, true)
		case n := <-w.takes:
			err = in.takeShards(ctx, n)
		case <-ticker.C:
			if !w.cfg.NoPoll { // whatever the stream says: another replica may have lost it, or died between a commit and its bell
				err = in.look(ctx)
			}
		}
		if err != nil && ctx.Err() == nil {
			w.cfg.Log.Warn("feed the delivery worker", "error", err)
		}
	}
}

// waiting adds what else waits in the inbox, up to a batch.
func (w *Worker) waiting(entries []stream.Entry) []stream.Entry {
	for len(entries) < intakeBatch {
		select {
		case more := <-w.inbox:
			entries = append(entries, more...)
		default:
			return entries
		}
	}
	return entries
}

// intake counts the sequences.
type intake struct {
	w      *Worker
	last   map[string]int64 // by business: whatever is up to it was taken in, or waits in SQL for its claim
	losses int64
}

// insist repeats a reading until it succeeds or ctx ends: to go on without it would let later events overtake.
func (in *intake) insist(ctx context.Context, read func() error) error {
	for {
		err := read()
		if err == nil || ctx.Err() != nil {
			return err
		}
		in.w.cfg.Log.Warn("read deliveries: trying again", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(readAgain):
		}
	}
}

// take takes in entries of the stream, and what their sequences show to be missing.
func (in *intake) take(ctx context.Context, entries []stream.Entry) error {
	entries = slices.Clone(entries) // others read them too
	slices.SortStableFunc(entries, func(a, b stream.Entry) int { return int(a.Seq - b.Seq) })
	var events []string
	documents := map[string][]byte{}
	for _, e := range entries {
		if !in.w.holds.open(store.ShardOf(e.BusinessID)) {
			continue
		}
		last := in.last[e.BusinessID]
		if e.Seq <= last {
			continue // a stroke for changed deliveries, or one that came late: its event was read from SQL meanwhile
		}
		if e.Seq > last+1 {
			if err := in.hand(ctx, events, documents); err != nil {
				return err
			}
			events = nil
			if err := in.fill(ctx, e.BusinessID, last, e.Seq-1); err != nil {
				return err
			}
		}
		events = append(events, e.EventID)
		if e.Body != nil {
			documents[e.EventID] = e.Body
		}
		in.last[e.BusinessID] = e.Seq
	}
	return in.hand(ctx, events, documents)
}

// fill takes in the events of a business after one sequence and up to another, from SQL.
func (in *intake) fill(ctx context.Context, business string, after, until int64) error {
	for after < until {
		var missed []*store.Event
		err := in.insist(ctx, func() (err error) {
			missed, err = in.w.cfg.Store.EventsAfter(ctx, business, after, until, nil, gapAtOnce)
			return err
		})
		if err != nil {
			return err
		}
		if len(missed) == 0 {
			break // they are too old to be kept
		}
		events := make([]string, len(missed))
		documents := make(map[string][]byte, len(missed))
		for i, m := range missed {
			events[i] = m.ID
			documents[m.ID] = m.Body
		}
		if err := in.hand(ctx, events, documents); err != nil {
			return err
		}
		after = missed[len(missed)-1].Seq
		in.last[business] = after
		select { // there may be much to take in
		case a := <-in.w.asks:
			in.w.claim(ctx, a, false)
		default:
		}
	}
	in.last[business] = max(in.last[business], until)
	return nil
}

// hand reads the deliveries of events and hands them to the scheduler. What older ones of its endpoint come before, which wait in SQL,
// goes there: at once, if it is much, for it would fill the memory.
func (in *intake) hand(ctx context.Context, events []string, documents map[string][]byte) error {
	for chunk := range slices.Chunk(events, intakeBatch) {
		var ready, behind fed
		err := in.insist(ctx, func() error {
			jobs, overtaken, err := in.w.cfg.Store.FreshJobs(ctx, in.w.holds.all(), chunk)
			if err != nil {
				return err
			}
			if ready.jobs, behind.jobs = jobs, nil; !in.w.cfg.NoPoll {
				ready.jobs, behind = apart(jobs, overtaken)
			}
			ready.jobs, err = in.w.withDocuments(ctx, ready.jobs, documents)
			return err
		})
		if err != nil {
			return err
		}
		if len(ready.jobs) > 0 {
			in.w.fed <- ready
		}
		if len(behind.jobs) >= givenBackAtOnce {
			if err := in.w.cfg.Store.Release(ctx, behind.jobs); err == nil {
				behind.jobs = nil
			} else if ctx.Err() == nil { // the scheduler tries again
				in.w.cfg.Log.Warn("give deliveries back", "error", err)
			}
		}
		if len(behind.behind) > 0 {
			in.w.fed <- behind
		}
	}
	return nil
}

// apart takes the jobs of endpoints that are overtaken apart.
func apart(jobs []*store.Job, overtaken []string) (ready []*store.Job, behind fed) {
	if len(overtaken) == 0 {
		return jobs, fed{}
	}
	seen := make(map[string]bool, len(overtaken)) // whether of those endpoints
	for _, endpoint := range overtaken {
		seen[endpoint] = false
	}
	for _, job := range jobs {
		of, is := seen[job.EndpointID]
		switch {
		case !is:
			ready = append(ready, job)
			continue
		case !of:
			seen[job.EndpointID] = true
			behind.behind = append(behind.behind, endpointOf(job))
		}
		behind.jobs = append(behind.jobs, job)
	}
	return ready, behind
}

// lookForLosses looks if the stream is away, or may have lost something since the last look.
func (in *intake) lookForLosses(ctx context.Context) error {
	losses := in.w.lost.Load() + in.w.cfg.Stream.Losses()
	if in.w.cfg.NoPoll || losses == in.losses && in.w.cfg.Stream.Ringing() {
		return nil
	}
	err := in.look(ctx)
	if err == nil {
		in.losses = losses
	}
	return err
}

// look compares every business's sequence with what was taken in, and takes in what is missing.
func (in *intake) look(ctx context.Context) error {
	extents, err := in.w.cfg.Store.AllExtents(ctx)
	if err != nil {
		return err
	}
	for _, e := range extents {
		if !in.w.holds.open(store.ShardOf(e.BusinessID)) {
			continue
		}
		if last := in.last[e.BusinessID]; e.Last > last {
			if err := in.fill(ctx, e.BusinessID, last, e.Last); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeShards takes up to so many free shards, and takes in what has been committed there meanwhile.
func (in *intake) takeShards(ctx context.Context, n int) error {
	taken, err := in.acquire(ctx, n)
	if err != nil || taken == 0 {
		return err
	}
	in.w.fed <- fed{moved: true}
	return in.look(ctx)
}

// acquire takes up to so many free shards. What was committed there before is free in SQL then, and waits for a claim; what is
// committed after comes by the stream, and is counted from where the feeds stood before.
func (in *intake) acquire(ctx context.Context, n int) (int, error) {
	extents, err := in.w.cfg.Store.AllExtents(ctx)
	if err != nil {
		return 0, err
	}
	in.w.holds.moving.Lock()
	defer in.w.holds.moving.Unlock()
	began := time.Now()
	taken, err := in.w.cfg.Store.TakeShards(ctx, in.w.replica, n)
	if err != nil {
		return 0, err
	}
	for _, e := range extents {
		if slices.ContainsFunc(taken, func(h store.Hold) bool { return h.Shard == store.ShardOf(e.BusinessID) }) {
			in.last[e.BusinessID] = e.Last
		}
	}
	in.w.holds.took(taken, began)
	return len(taken), nil
}

// ask is what the scheduler wants of the feeder.
type ask struct {
	release []*store.Job      // to be given back to SQL first, so that the claim sees them
	all     bool              // claim whatever is due; else for the endpoints of room alone
	room    map[store.Due]int // for how many deliveries there is use, by endpoint; of others, claimedAtOnce
	asides  map[store.Due]int // how many wait in memory out of their turn
	rest    int               // and in all
}

// claimed is the feeder's answer.
type claimed struct {
	ask      ask
	released bool                    // the release was written
	wanted   map[store.Due]int       // how many were asked for, by endpoint
	jobs     map[string][]*store.Job // the jobs now held, by endpoint, in sequence, with their documents
	err      error
}

// claim answers an ask, and looks for losses before, unless that is what goes on just now.
func (w *Worker) claim(ctx context.Context, a ask, look bool) {
	c := &claimed{ask: a}
	if c.err = w.answer(ctx, c, look); c.err != nil && ctx.Err() == nil {
		w.cfg.Log.Warn("claim due deliveries", "error", c.err)
	}
	w.fed <- fed{claim: c}
}

func (w *Worker) answer(ctx context.Context, c *claimed, look bool) error {
	if len(c.ask.release) > 0 {
		if err := w.cfg.Store.Release(ctx, c.ask.release); err != nil {
			return err
		}
	}
	c.released = true
	if w.cfg.NoPoll {
		return nil
	}
	holds := map[int]store.Hold{}
	var shards []int
	for _, h := range w.holds.all() {
		holds[h.Shard] = h
		shards = append(shards, h.Shard)
	}
	due := make([]store.Due, 0, len(c.ask.room))
	if c.ask.all {
		if look {
			if err := w.intake.lookForLosses(ctx); err != nil {
				return err
			}
		}
		var err error
		if due, err = w.cfg.Store.DueEndpoints(ctx, shards); err != nil {
			return err
		}
	} else {
		for endpoint := range c.ask.room {
			due = append(due, endpoint)
		}
	}
	c.wanted = make(map[store.Due]int, len(due))
	var wanted []store.Wanted
	rest := c.ask.rest
	for _, d := range due {
		h, held := holds[d.Shard]
		if !held {
			continue
		}
		n, known := c.ask.room[d]
		if !known {
			n = claimedAtOnce
		}
		if n = min(n, max(rest, fewLeft)); n > 0 { // a few, however full memory is: else what hangs would starve the others
			rest = max(0, rest-n)
			c.wanted[d] = n
			wanted = append(wanted, store.Wanted{EndpointID: d.EndpointID, Limit: n, Asides: c.ask.asides[d], UpTo: w.intake.last[d.BusinessID], Hold: h})
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
	err = w.intake.insist(ctx, func() (err error) {
		jobs, err = w.withDocuments(ctx, jobs, nil)
		return err
	})
	if err != nil { // ctx has ended: the shards are handed back with whatever is held
		c.wanted = nil
		return err
	}
	c.jobs = make(map[string][]*store.Job, len(wanted))
	for _, job := range jobs {
		c.jobs[job.EndpointID] = append(c.jobs[job.EndpointID], job)
	}
	return nil
}

// withDocuments gives the jobs their events' documents: those at hand, and of the others, from SQL, those for which there is room.
func (w *Worker) withDocuments(ctx context.Context, jobs []*store.Job, atHand map[string][]byte) ([]*store.Job, error) {
	var missing []string
	seen := map[string]bool{}
	for _, job := range jobs {
		if job.Body == nil {
			if job.Body = atHand[job.EventID]; job.Body == nil && !seen[job.EventID] {
				seen[job.EventID] = true
				missing = append(missing, job.EventID)
			}
		}
	}
	if len(missing) == 0 {
		return jobs, nil
	}
	room, read := w.documents.room(), map[string]*store.Event{}
	for ids := range slices.Chunk(missing, documentsAtOnce) {
		if room <= 0 {
			break
		}
		events, err := w.cfg.Store.EventsByID(ctx, ids)
		if err != nil {
			return jobs, err
		}
		for _, id := range ids {
			read[id] = events[id]
		}
		for _, event := range events {
			room -= len(event.Body)
		}
	}
	out := make([]*store.Job, 0, len(jobs))
	for _, job := range jobs {
		if event, looked := read[job.EventID]; looked && job.Body == nil {
			if event == nil {
				w.lacksEvent(job)
				continue
			}
			job.Body = event.Body
		}
		out = append(out, job)
	}
	return out, nil
}
