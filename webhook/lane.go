package webhook

import (
	"math"
	"slices"
	"time"

	"parley/store"
	"parley/store/hook"
)

const (
	laneInFlight = 8 // attempts at once to one endpoint (contract, section 5)
	laneAside    = 4 // of those, what is out of its turn has at most, while others wait
	laneReplayed = 2 // of those, a replay has at most

	windowLeast = 16  // deliveries of one endpoint that may wait in memory, however little room there is
	windowMost  = 512 // and however much there is
	talkLeast   = 2   // of these, those of one conversation are an eighth, and at least so many,
	talkMost    = 64  // and at most
	heardMost   = 64  // what the bell brings while SQL is read

	asidesMost = 128 // that wait in memory, out of their turn; an eighth of them of one conversation
	asidesFew  = 8   // with no more left the lane reads on
)

// lane is what the worker knows of one endpoint: a reader of its outbox, in order. All up to last was taken in: it waits in a
// talk, or is in flight, or is over; or its conversation remembers from where it has to be read again.
type lane struct {
	b        *business
	endpoint string

	last   int64 // the number up to which all was taken in
	seen   int64 // a number that stands in SQL
	behind bool  // there may be more above last than the bell brings: SQL is read before anything else is taken in

	talks    map[string]*talk // the conversations of what waits or is in flight
	runnable []*talk          // with a job that may go out
	parched  bool             // a conversation has nothing left that waits in memory, but in SQL
	asides   []*hook.Job      // waiting, out of their turn, in the order of SQL; some are due later
	due      bool             // SQL has something that is due out of its turn, or soon will be
	more     bool             // SQL had more of that than there was room for
	refused  int              // of what was read of that last, how many found no room
	numbers  int              // of what waits, or may be read now
	booked   int              // of these, for what may be read
	known    map[string]*hook.Job
	over     []string // events that are to leave known when the reading under way has ended

	reading  reading // what is under way
	readLast reading
	upTo     int64       // what a reading forward surely shows
	void     bool        // what it brings counts for nothing
	heard    []*hook.Job // by the bell, while SQL is read
	deaf     bool        // not all that it said was heard

	inFlight, asidesInFlight, replayed int
	lastAside                          bool
	target                             *hook.Target // as it was read last; nil: since then it may have changed
	wake                               store.Time   // when it is made ready again
	moved, touched                     time.Time    // when an attempt last ended; when it was last of use
	isReady, isWanting, isStarved      bool
}

// talk is a conversation at an endpoint: one attempt at a time.
type talk struct {
	jobs     []*hook.Job // waiting, in their turn
	from     int64       // the first that was not taken in, and waits in SQL with those after it; 0: there is none
	asides   int         // waiting out of their turn
	busy     bool        // an attempt is in flight
	runnable bool
}

func newLane(b *business, endpoint string) *lane {
	now := time.Now()
	return &lane{b: b, endpoint: endpoint, talks: map[string]*talk{}, known: map[string]*hook.Job{}, moved: now, touched: now}
}

func (l *lane) talk(of *hook.Job) *talk {
	t := l.talks[of.Lane]
	if t == nil {
		t = new(talk)
		l.talks[of.Lane] = t
	}
	return t
}

// forget drops a conversation of which there is nothing to know.
func (l *lane) forget(lane string, t *talk) {
	if len(t.jobs)+t.asides == 0 && t.from == 0 && !t.busy {
		delete(l.talks, lane)
	}
}

func (l *lane) run(t *talk) {
	if len(t.jobs) > 0 && !t.busy && !t.runnable {
		t.runnable = true
		l.runnable = append(l.runnable, t)
	}
}

// add takes in a delivery in its turn, if its conversation has room, and says whether it did. No later one of that conversation
// may come before it then: they are read again when there is room.
func (l *lane) add(job *hook.Job, most int) bool {
	t := l.talk(job)
	if t.from == 0 && len(t.jobs) >= most {
		t.from = job.Seq
	}
	if t.from != 0 {
		return false
	}
	l.put(t, job)
	return true
}

func (l *lane) put(t *talk, job *hook.Job) {
	t.jobs = append(t.jobs, job)
	l.known[job.EventID] = job
	l.run(t)
}

// addAside takes in a delivery out of its turn.
func (l *lane) addAside(job *hook.Job) {
	l.talk(job).asides++
	l.asides = append(l.asides, job)
	l.known[job.EventID] = job
}

// next takes the job that may go out now, if the lane has a slot: one that is in its turn and one that is not by turns, while
// there are both. What it would take it shows to room first.
func (l *lane) next(now store.Time, room func(*hook.Job) bool) *hook.Job {
	if l.inFlight >= laneInFlight {
		return nil
	}
	for len(l.runnable) > 0 && l.runnable[0].busy {
		l.runnable[0].runnable = false
		l.runnable = l.runnable[1:]
	}
	inTurn := len(l.runnable) > 0
	if i := l.nextAside(now); i >= 0 && (!inTurn || l.asidesInFlight < laneAside && !l.lastAside) {
		job := l.asides[i]
		if !room(job) {
			return nil
		}
		l.asides = slices.Delete(l.asides, i, i+1)
		t := l.talk(job)
		t.asides--
		t.busy = true
		l.count(job, 1)
		l.lastAside = true
		if l.more && len(l.asides) <= asidesFew {
			l.due, l.more = true, false
		}
		return job
	}
	if !inTurn {
		return nil
	}
	t := l.runnable[0]
	job := t.jobs[0]
	if !room(job) {
		return nil
	}
	l.runnable = l.runnable[1:]
	t.jobs[0] = nil
	t.jobs = t.jobs[1:]
	t.runnable, t.busy = false, true
	if len(t.jobs) == 0 && t.from != 0 {
		l.parched = true
	}
	l.count(job, 1)
	l.lastAside = false
	return job
}

// nextAside finds what may go out now, out of its turn; -1: nothing.
func (l *lane) nextAside(now store.Time) int {
	for i, job := range l.asides {
		if job.Due <= now && !l.talks[job.Lane].busy && (job.ReplayID == nil || l.replayed < laneReplayed) {
			return i
		}
	}
	return -1
}

// wakes is when the first of what waits here will be due; 0: none will.
func (l *lane) wakes(now store.Time) (at store.Time) {
	for _, job := range l.asides {
		if job.Due > now && (at == 0 || job.Due < at) {
			at = job.Due
		}
	}
	return at
}

func (l *lane) count(job *hook.Job, n int) {
	l.inFlight += n
	if !job.InTurn() {
		l.asidesInFlight += n
	}
	if job.ReplayID != nil {
		l.replayed += n
	}
}

// end counts an attempt out. Its job stays known until its outcome is written: SQL still has it.
func (l *lane) end(job *hook.Job, now time.Time) {
	l.count(job, -1)
	l.moved, l.touched = now, now
	t := l.talks[job.Lane]
	t.busy = false
	l.run(t)
	l.forget(job.Lane, t)
}

// written is told that SQL has the outcome. A reading that began before may still show the job.
func (l *lane) written(event string) {
	if l.reading != nothing {
		l.over = append(l.over, event)
	} else {
		delete(l.known, event)
	}
}

// missed is told that all up to a number is in SQL, and the bell may not have brought it.
func (l *lane) missed(seq int64) {
	l.seen = max(l.seen, seq)
	if seq > l.last {
		l.behind = true
	}
}

// giveBack forgets all that waits, which is in SQL, and is read again from there.
func (l *lane) giveBack() {
	first := int64(math.MaxInt64)
	for id, t := range l.talks {
		for _, job := range t.jobs {
			first = min(first, job.Seq)
			delete(l.known, job.EventID)
		}
		if t.from != 0 {
			first = min(first, t.from)
		}
		t.jobs, t.from, t.asides, t.runnable = nil, 0, 0, false
		l.forget(id, t)
	}
	if first != math.MaxInt64 {
		l.last, l.behind = min(l.last, first-1), true
	}
	for _, job := range l.asides {
		delete(l.known, job.EventID)
	}
	l.due = l.due || l.more || len(l.asides) > 0
	l.runnable, l.asides, l.heard, l.parched, l.more = nil, nil, nil, false, false
	l.void = l.reading != nothing
}

// trim leaves to SQL what conversations have in memory beyond their part of a window that has become smaller, and returns how
// much that was.
func (l *lane) trim(most int) (n int) {
	for _, t := range l.talks {
		if len(t.jobs) <= most {
			continue
		}
		t.from = t.jobs[most].Seq
		for _, job := range t.jobs[most:] {
			delete(l.known, job.EventID)
			n++
		}
		t.jobs = t.jobs[:most]
	}
	return n
}

// waiting is how many deliveries wait in memory.
func (l *lane) waiting() int { return l.numbers - l.booked }

// idle says whether nothing would be lost by forgetting the lane.
func (l *lane) idle() bool {
	return len(l.known) == 0 && !l.behind && !l.parched && !l.due && !l.more && l.reading == nothing && !l.isReady && !l.isWanting
}
