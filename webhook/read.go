package webhook

import (
	"time"

	"parley/store"
	"parley/store/hook"
)

const (
	maxReads    = 4 // from SQL at once
	ownReads    = 2 // of one business
	readAgain   = 250 * time.Millisecond
	readLimit   = 10 * time.Second       // of what many attempts need
	refusedMost = 2000                   // rows that a reading skips because there was no room for them in the one before
	stuck       = 250 * time.Millisecond // a lane of which nothing ended for so long has no use for what waits in its window

	// ahead is what is read that will be due out of its turn: what is due sooner than the next look but one is so known in time.
	ahead = 2 * lookEvery
)

// reading is what a lane reads from SQL, one thing at a time.
type reading int

const (
	nothing reading = iota
	forward         // what comes after the last one that it took in
	again           // what is left of conversations that have nothing waiting in memory
	due             // what is due out of its turn
)

// read is one reading of a lane.
type read struct {
	lane   *lane
	what   reading
	after  int64
	upTo   int64 // the last number that SQL surely shows
	until  store.Time
	limit  int
	booked int // places in the window
}

// window is how many deliveries of a lane may wait in memory.
func (w *Worker) window(l *lane) int {
	return max(windowLeast, min(windowMost, (w.numbers.share(l.b.numbers)-(l.b.numbers-l.numbers))/2))
}

// wants says what the lane is to read next, each thing in its turn.
func (w *Worker) wants(l *lane) reading {
	if l.reading != nothing || l.b.gone || w.stopping {
		return nothing
	}
	window := w.window(l)
	room := l.numbers <= window/2
	if !room && (l.behind || l.parched) && len(l.runnable) == 0 && l.inFlight < laneInFlight { // all of it waits for others
		w.count(l.b, l, -l.trim(w.most(l)))
		room = l.numbers < window
	}
	for i := range due {
		switch what := (l.readLast+i)%due + 1; {
		case what == forward && l.behind && room,
			what == again && l.parched && room,
			what == due && l.due && len(l.asides) <= asidesMost/2:
			return what
		}
	}
	return nothing
}

// want has the lane stand in the line of its business for a reading, if it wants one.
func (w *Worker) want(l *lane) {
	if l.isWanting || w.wants(l) == nothing {
		return
	}
	l.isWanting = true
	l.b.wanting = append(l.b.wanting, l)
	if !l.b.isWanting {
		l.b.isWanting = true
		w.wanting = append(w.wanting, l.b)
	}
}

// startReads begins readings, a business after the other, and its lanes one after the other; mu is held.
func (w *Worker) startReads() {
	for waiting := 0; w.reads < maxReads && waiting < len(w.wanting); {
		b := w.wanting[0]
		w.wanting = w.wanting[1:]
		b.isWanting = false
		var r *read
		if b.reads < ownReads && !b.gone {
			l := b.wanting[0]
			b.wanting = b.wanting[1:]
			l.isWanting = false
			r = w.newRead(l)
			w.want(l) // at the end of the line, where there was no room
		}
		if len(b.wanting) > 0 && !b.isWanting && !b.gone {
			b.isWanting = true
			w.wanting = append(w.wanting, b)
		}
		if r == nil {
			waiting++
			continue
		}
		waiting = 0
		w.reads++
		b.reads++
		w.running.Go(func() { w.read(r) })
	}
}

// newRead prepares a reading, if there is room for what it brings.
func (w *Worker) newRead(l *lane) *read {
	r := &read{lane: l, what: w.wants(l)}
	if r.what == nothing {
		return nil
	}
	room := min(w.window(l)-l.numbers, w.numbers.size-w.numbers.used)
	if room <= 0 && r.what != due || w.numbers.used >= w.numbers.size {
		if w.makeRoom(l); w.numbers.used >= w.numbers.size {
			return nil
		}
		room = min(w.window(l)-l.numbers, w.numbers.size-w.numbers.used)
	}
	room = max(room, 1)
	switch r.what {
	case forward:
		l.deaf, l.heard = false, nil
		r.after, r.upTo = l.last, max(l.seen, l.b.last)
		l.upTo = r.upTo
	case again:
		for _, t := range l.talks {
			if t.from != 0 && len(t.jobs) == 0 && (r.after == 0 || t.from <= r.after) {
				r.after = t.from
			}
		}
		r.upTo = l.last
		if r.after--; r.after < 0 { // nothing is left to be read
			l.parched = false
			return nil
		}
	case due:
		room = min(room, asidesMost-len(l.asides))
		l.due, l.more = false, false
		r.until = w.cfg.Store.Now().Add(ahead)
	}
	r.booked, r.limit = room, room
	if r.what == due { // what is known is there, too
		for _, job := range l.known {
			if !job.InTurn() {
				r.limit++
			}
		}
		r.limit += l.refused
	}
	w.count(l.b, l, r.booked)
	l.booked = r.booked
	l.reading, l.readLast = r.what, r.what
	return r
}

// read reads, and goes on with what was read.
func (w *Worker) read(r *read) {
	l := r.lane
	var rows []*hook.Job
	var err error
	if r.what == due {
		rows, err = w.cfg.Hooks.Due(w.ctx, l.b.hold.Shard, l.endpoint, r.until, r.limit)
	} else {
		rows, err = w.cfg.Hooks.Next(w.ctx, l.b.hold.Shard, l.endpoint, r.after, r.limit)
	}
	if err != nil && w.ctx.Err() == nil {
		w.cfg.Log.Log(w.ctx, w.cfg.Store.Level(err), "read what waits for an endpoint", "endpoint", l.endpoint, "error", err)
		select {
		case <-w.ctx.Done():
		case <-time.After(readAgain):
		}
	}
	w.move(func() {
		w.reads--
		l.b.reads--
		w.count(l.b, l, -r.booked)
		l.booked = 0
		switch {
		case err != nil || l.void:
			l.due = l.due || r.what == due
		case l.b.gone:
		case r.what == forward:
			w.readOn(r, rows)
		case r.what == again:
			w.readAgain(r, rows)
		case r.what == due:
			w.readDue(r, rows)
		}
		l.reading, l.void = nothing, false
		for _, event := range l.over {
			delete(l.known, event)
		}
		l.over = nil
		l.touched = time.Now()
		w.makeReady(l)
		w.want(l)
	})
}

// most is how many deliveries of one conversation may wait in memory.
func (w *Worker) most(l *lane) int { return min(max(w.window(l)/8, talkLeast), talkMost) }

// readOn takes in what SQL has after the last one. If that is all, the bell's word counts again, from what SQL surely showed.
func (w *Worker) readOn(r *read, rows []*hook.Job) {
	l := r.lane
	most := w.most(l)
	for _, job := range rows {
		if l.last = max(l.last, job.Seq); l.known[job.EventID] == nil && l.add(job, most) {
			w.count(l.b, l, 1)
		}
	}
	heard := l.heard
	l.heard = nil
	if len(rows) >= r.limit {
		return
	}
	l.last = max(l.last, r.upTo)
	l.behind = l.deaf || l.b.missed > l.last || l.seen > l.last
	for _, job := range heard {
		if job.Seq > l.last && !l.behind {
			w.tell(l, job)
		}
	}
}

// readAgain takes in what was left in SQL of conversations that have room now. The rows of those that are remembered from before
// the first row read are left alone: they have earlier ones.
func (w *Worker) readAgain(r *read, rows []*hook.Job) {
	l := r.lane
	most := w.most(l)
	to := r.upTo
	if len(rows) >= r.limit {
		to = min(to, rows[len(rows)-1].Seq)
	}
	full := map[string]bool{}
	for _, job := range rows {
		t := l.talks[job.Lane]
		if job.Seq > to || t == nil || t.from <= r.after || job.Seq < t.from || full[job.Lane] {
			continue
		}
		if t.from = job.Seq; len(t.jobs) >= most {
			full[job.Lane] = true
			continue
		}
		if t.from++; l.known[job.EventID] == nil {
			l.put(t, job)
			w.count(l.b, l, 1)
		}
	}
	l.parched = false
	for id, t := range l.talks {
		if t.from > r.after && t.from <= to && !full[id] {
			t.from = to + 1 // there is none of it up to there
		}
		if t.from > l.last {
			t.from = 0 // whatever comes is read, or heard of
		}
		l.parched = l.parched || t.from != 0 && len(t.jobs) == 0
		l.forget(id, t)
	}
}

// readDue takes in what is due out of its turn, or will be before the next look.
func (w *Worker) readDue(r *read, rows []*hook.Job) {
	l := r.lane
	l.refused = 0
	full := map[string]bool{}
	for _, job := range rows {
		if known := l.known[job.EventID]; known != nil {
			w.sentAgain(l, known, job)
			continue
		}
		t := l.talk(job)
		if full[job.Lane] = full[job.Lane] || t.asides >= asidesMost/8 || len(l.asides) >= asidesMost; full[job.Lane] {
			l.refused++ // with all after it of its conversation
			l.forget(job.Lane, t)
			continue
		}
		l.addAside(job)
		w.count(l.b, l, 1)
	}
	l.refused = min(l.refused, refusedMost)
	l.more = len(rows) >= r.limit || l.refused > 0
	if l.more && l.refused == 0 && len(l.asides) <= asidesFew {
		l.due, l.more = true, false
	}
}

// sentAgain has what waits in memory go out as it stands in SQL by now, if it was sent again since it was read.
func (w *Worker) sentAgain(l *lane, known, job *hook.Job) {
	if known.Generation == job.Generation {
		return
	}
	for i, waiting := range l.asides {
		if waiting == known {
			l.asides[i] = job
			l.known[job.EventID] = job
			return
		}
	}
	// It is in flight: what was sent again is read by the look after its outcome.
}

// makeRoom gives back what waits in the fullest lane of the business that holds most, if that is more than this lane's business,
// or else in a lane of its own that has no use for it.
func (w *Worker) makeRoom(l *lane) {
	if w.numbers.used < w.numbers.size || l.numbers >= windowLeast {
		return
	}
	most := l.b
	for _, b := range w.businesses {
		if b.numbers > most.numbers+windowLeast {
			most = b
		}
	}
	var victim *lane
	now := time.Now()
	for _, x := range most.lanes {
		if x == l || x.waiting() == 0 || most == l.b && x.waiting() <= windowLeast && now.Sub(x.moved) < stuck {
			continue
		}
		if victim == nil || x.waiting() > victim.waiting() || x.waiting() == victim.waiting() && x.moved.Before(victim.moved) {
			victim = x
		}
	}
	if victim == nil {
		return
	}
	n := victim.waiting()
	victim.giveBack()
	victim.moved = now
	w.count(most, victim, -n)
	w.want(victim)
}
