package webhook

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"parley/store"
	"parley/store/hook"
	"parley/stream"
)

const (
	lookEvery = time.Second            // how often a lost bell is looked for
	lookQuiet = 250 * time.Millisecond // and while the stream is away
	patience  = 100 * time.Millisecond // what a look finds, the bell is about to bring: it has so long
	keptFor   = 10 * time.Second       // a lane without anything to do, for what comes next

	everywhere = "" // is no business
)

// looking says where the worker is to look at once for what waits in SQL.
type looking struct {
	of          map[string]bool // of which businesses; with "" everywhere
	begun, done int             // looks everywhere, and the last of them of which the lanes were told
}

// Offer takes what the reader of the stream has read. It does not block.
func (w *Worker) Offer(entries []stream.Entry) {
	if !slices.IsSortedFunc(entries, bySeq) { // other replicas ring, too
		entries = slices.Clone(entries)
		slices.SortStableFunc(entries, bySeq)
	}
	w.move(func() {
		for i := range entries {
			switch e := &entries[i]; {
			case e.Seq > 0:
				w.hear(e)
			case len(e.Deliveries) == 0:
				w.changed(e.BusinessID)
			}
		}
	})
	if losses := w.cfg.Stream.Losses(); w.losses.Swap(losses) != losses {
		w.order()
	}
}

func bySeq(a, b stream.Entry) int { return cmp.Compare(a.Seq, b.Seq) }

// Changed says that the endpoints of a business, or what waits for them, have changed: what was read of them before is read
// again before it is sent, and what is due now is looked for at once.
func (w *Worker) Changed(business string) { w.move(func() { w.changed(business) }) }

func (w *Worker) changed(business string) {
	if b := w.businesses[business]; b != nil {
		b.version++
		for _, l := range b.lanes {
			l.target = nil
		}
	}
	if _, open := w.holds.open(hook.ShardOf(business)); open {
		w.orderLocked(business)
		nudge(w.replays)
	}
}

// rewound forgets a business of which SQL has lost events that were taken in: its lanes begin anew
// from what is there.
func (w *Worker) rewound(b *business) {
	w.cfg.Log.Error("the database has lost events that the worker knew of: what waits is read anew", "business", b.id)
	w.drop(b)
	w.orderLocked(b.id)
}

// compare finds the businesses of which a failover of the database has lost events that were taken
// in: their numbers have gone back. It says whether it is to be repeated soon. What nothing is
// known of, as when nothing happens, it does not ask for.
func (w *Worker) compare(ctx context.Context, back *stream.Regress) (again bool) {
	seen := map[string]int64{}
	known := map[string]*business{}
	w.mu.Lock()
	for id, b := range w.businesses {
		known[id], seen[id] = b, b.last
		for _, l := range b.lanes {
			seen[id] = max(seen[id], l.last)
		}
	}
	w.mu.Unlock()
	extents, err := w.cfg.Store.Extents(ctx, slices.Collect(maps.Keys(seen))...)
	if err != nil {
		if ctx.Err() == nil {
			w.cfg.Log.Log(ctx, w.cfg.Store.Level(err), "compare what is known with SQL", "error", err)
		}
		return false
	}
	lost, doubt := back.Compare(seen, extents)
	if len(lost) > 0 {
		w.move(func() {
			for _, id := range lost {
				if b := known[id]; !b.gone {
					w.rewound(b)
				}
			}
		})
	}
	return doubt
}

// business finds what is known of a business, under the hold on its shard; nil: it is another
// replica's, or may be.
func (w *Worker) business(id string) *business {
	b := w.businesses[id]
	if b != nil && w.holds.lost(b.hold) {
		w.drop(b)
		b = nil
	}
	under, open := w.holds.open(hook.ShardOf(id))
	if !open {
		return nil
	}
	if b == nil && !w.stopping {
		b = &business{id: id, hold: under, lanes: map[string]*lane{}, since: w.looking.begun}
		w.businesses[id] = b
	}
	return b
}

// drop forgets a business: what is in flight ends, and all else is in SQL.
func (w *Worker) drop(b *business) {
	b.gone = true
	w.numbers.used -= b.numbers
	b.numbers = 0
	delete(w.businesses, b.id)
}

// lane finds an endpoint's lane, or makes one. A new one knows of nothing: seq is what it is to be told of now. Unless the bell
// has brought, or a look has found, all that came before, it begins with the first row in SQL.
func (w *Worker) lane(b *business, endpoint string, seq int64) *lane {
	l := b.lanes[endpoint]
	if l == nil {
		l = newLane(b, endpoint)
		if b.missed == 0 || w.looking.done > b.since {
			l.last = seq - 1
		}
		b.lanes[endpoint] = l
	}
	return l
}

// hear takes in an event that the bell brings. What it lacks is read from SQL, by the lanes that it lacks it for.
func (w *Worker) hear(e *stream.Entry) {
	b := w.business(e.BusinessID)
	if b == nil {
		return
	}
	// SQL gives numbers again that it had given before.
	if e.Seq == b.last && e.EventID != b.lastID {
		w.rewound(b)
		if b = w.business(e.BusinessID); b == nil {
			return
		}
	}
	b.touched = time.Now()
	late := e.Seq <= b.last
	if e.Seq > b.last+1 {
		b.missed, b.since = e.Seq-1, w.looking.begun
	}
	if !late {
		b.last, b.lastID = e.Seq, e.EventID
	}
	if e.Body != nil && len(e.Recipients) > 0 && !late {
		w.bodies.Put(b.id, e.EventID, e.Body, len(e.Body))
	}
	for _, r := range e.Recipients {
		l := w.lane(b, r.EndpointID, e.Seq)
		switch {
		case e.Seq <= l.last || l.reading == forward && e.Seq <= l.upTo:
			continue // it was read before it was heard
		case late:
			l.missed(e.Seq)
			l.deaf = true
		default:
			w.tell(l, &hook.Job{
				Shard: b.hold.Shard, EndpointID: r.EndpointID, Seq: e.Seq, EventID: e.EventID, BusinessID: b.id, Type: e.Type,
				Lane: cmp.Or(e.Lane, e.EventID), Epoch: r.Epoch, Trigger: store.TriggerAutomatic,
			})
		}
		w.want(l)
	}
	if e.More { // lanes that are not named have missed it
		b.missed, b.since = e.Seq, w.looking.begun
		w.orderLocked(b.id)
	}
}

// tell tells a lane of a delivery that the bell brings in order.
func (w *Worker) tell(l *lane, job *hook.Job) {
	switch {
	case l.behind && l.reading == forward && len(l.heard) < heardMost:
		l.heard = append(l.heard, job)
	case l.behind:
		l.deaf = true
	case l.b.missed > l.last, !w.takeIn(l, job):
		l.missed(job.Seq)
	}
}

// takeIn takes a delivery into the lane's window, and says whether there was room. Where a conversation has its part of it, it is
// left in SQL, too, but the lane may go on.
func (w *Worker) takeIn(l *lane, job *hook.Job) bool {
	if l.numbers >= w.window(l) || w.numbers.used >= w.numbers.size {
		w.makeRoom(l)
		return false
	}
	if l.add(job, w.most(l)) {
		w.count(l.b, l, 1)
		w.makeReady(l)
	}
	l.last = job.Seq
	return true
}

func (w *Worker) count(b *business, l *lane, n int) {
	l.numbers += n
	if !b.gone {
		b.numbers += n
		w.numbers.used += n
	}
}

// order has someone look everywhere at once.
func (w *Worker) order() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.orderLocked(everywhere)
}

func (w *Worker) orderLocked(where string) {
	w.looking.of[where] = true
	nudge(w.looks)
}

// look looks everywhere each second, until ctx ends, for any bell may be lost; what it finds, the
// bell has time to bring. While the stream is away it looks more often, and gives none. So often,
// too, it looks for what SQL has lost.
func (w *Worker) look(ctx context.Context) {
	var back stream.Regress
	for quiet := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookQuiet):
		}
		if w.cfg.NoPoll {
			continue
		}
		quiet += lookQuiet
		regular := quiet >= lookEvery
		if regular {
			quiet = 0
			if w.compare(ctx, &back) {
				quiet = lookEvery / 2
			}
		}
		switch {
		case !w.cfg.Stream.Ringing():
			w.order()
		case regular:
			_ = w.lookOnce(ctx, map[string]bool{everywhere: true}, patience)
		}
	}
}

// lookWhereTold looks where it was ordered, until ctx ends.
func (w *Worker) lookWhereTold(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.looks:
		}
		w.mu.Lock()
		of := w.looking.of
		w.looking.of = map[string]bool{}
		w.mu.Unlock()
		if err := w.lookOnce(ctx, of, 0); err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(lookQuiet):
				w.order()
			}
		}
	}
}

// lookOnce walks the lanes that have rows in SQL, of some businesses or everywhere, and tells them what it found.
func (w *Worker) lookOnce(ctx context.Context, of map[string]bool, patience time.Duration) error {
	look := 0
	if w.cfg.NoPoll {
		delete(of, everywhere)
	}
	if of[everywhere] {
		of = nil
		w.mu.Lock()
		w.looking.begun++
		look = w.looking.begun
		w.tidy(time.Now())
		w.mu.Unlock()
	}
	asked := slices.Collect(maps.Keys(of))
	var shards []int
	holds := w.holds.all()
	if w.holds.late() {
		look = 0 // what waits in a shard whose renewal is late is not looked for
	}
	for _, x := range holds {
		if of == nil || slices.ContainsFunc(asked, func(b string) bool { return hook.ShardOf(b) == x.Shard }) {
			shards = append(shards, x.Shard)
		}
	}
	lanes, err := w.cfg.Hooks.Lanes(ctx, shards)
	if err != nil {
		if ctx.Err() == nil {
			w.cfg.Log.Log(ctx, w.cfg.Store.Level(err), "look what waits", "error", err)
		}
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(patience):
	}
	w.move(func() { w.found(lanes, of, look) })
	return nil
}

// found tells the lanes what a look found of them, or those of some businesses alone. look is its number, if it was at all.
func (w *Worker) found(lanes []hook.Lane, of map[string]bool, look int) {
	w.looking.done = max(w.looking.done, look)
	soon := w.cfg.Store.Now().Add(ahead)
	for i := range lanes {
		x := &lanes[i]
		if of != nil && !of[x.BusinessID] {
			continue
		}
		b := w.business(x.BusinessID)
		if b == nil {
			continue
		}
		l := b.lanes[x.EndpointID]
		if l == nil {
			l = newLane(b, x.EndpointID)
			b.lanes[x.EndpointID] = l
		}
		l.touched = time.Now()
		if x.LastSeq > l.last {
			l.missed(x.LastSeq)
		}
		l.due = l.due || x.NextDue != 0 && x.NextDue <= soon
		w.want(l)
	}
}

// tidy forgets the lanes that have had nothing to do for a while, and all of the shards that are not ours any more.
func (w *Worker) tidy(now time.Time) {
	for _, b := range w.businesses {
		if w.holds.lost(b.hold) {
			w.drop(b)
			continue
		}
		for endpoint, l := range b.lanes {
			if l.idle() && now.Sub(l.touched) > keptFor && (b.missed <= l.last || w.looking.done > b.since) {
				delete(b.lanes, endpoint)
			}
		}
		if len(b.lanes) == 0 && now.Sub(b.touched) > keptFor {
			delete(w.businesses, b.id)
		}
	}
}
