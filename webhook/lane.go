package webhook

import (
	"slices"
	"time"

	"parley/store"
)

const (
	laneInFlight = 8    // attempts at once to one endpoint (contract, section 5)
	laneAside    = 4    // of those, at most, are sent out of their turn
	laneReplayed = 2    // and of these, at most, by a replay
	laneQueue    = 1000 // deliveries of one endpoint in memory; beyond, they wait in SQL
	chokedAfter  = 250 * time.Millisecond
)

// lane is what the scheduler knows of one endpoint.
type lane struct {
	store.Due
	queue    []*store.Job        // waiting, in order of sequence
	aside    []*store.Job        // waiting, out of their turn: by hand and tests, as they came, then replays, each in sequence
	busy     map[string]struct{} // the conversations in flight: one attempt each
	inFlight int
	asides   int                   // of those in flight, the ones out of their turn
	replayed int                   // and of these, by a replay
	moved    time.Time             // when an attempt last ended or, the lane being idle, began
	parked   bool                  // SQL has deliveries of it that are due: it is fed from there alone
	letGo    map[string]*store.Job // the deliveries on their way back to SQL that nothing is to overtake
	ready    bool                  // stands in the scheduler's ready list
}

func newLane(of store.Due) *lane {
	return &lane{Due: of, busy: map[string]struct{}{}, letGo: map[string]*store.Job{}}
}

// add puts a job in its place. Jobs come nearly in order: the place is found from the end.
func (l *lane) add(job *store.Job) {
	i := len(l.queue)
	for i > 0 && l.queue[i-1].Seq > job.Seq {
		i--
	}
	l.queue = slices.Insert(l.queue, i, job)
}

// addAside puts a job among those out of their turn.
func (l *lane) addAside(job *store.Job) {
	i := len(l.aside)
	for i > 0 && l.aside[i-1].ReplayID != nil && (job.ReplayID == nil || sameReplay(l.aside[i-1], job) && l.aside[i-1].Seq > job.Seq) {
		i--
	}
	l.aside = slices.Insert(l.aside, i, job)
}

// takeReplay takes out what waits of the replay that a job is of.
func (l *lane) takeReplay(of *store.Job) (taken []*store.Job) {
	l.aside = slices.DeleteFunc(l.aside, func(job *store.Job) bool {
		if !sameReplay(job, of) {
			return false
		}
		taken = append(taken, job)
		return true
	})
	return taken
}

func sameReplay(a, b *store.Job) bool {
	return a.ReplayID != nil && b.ReplayID != nil && *a.ReplayID == *b.ReplayID
}

// next takes the first job that may go out now: the lane has a slot, and the job's conversation none in flight. What is out of
// its turn goes when nothing else can.
func (l *lane) next() *store.Job {
	if l.inFlight >= laneInFlight {
		return nil
	}
	for i, job := range l.queue {
		if _, busy := l.busy[key(job)]; busy {
			continue
		}
		if i == 0 {
			l.queue[0] = nil
			l.queue = l.queue[1:]
		} else {
			l.queue = slices.Delete(l.queue, i, i+1)
		}
		return job
	}
	if l.asides >= laneAside {
		return nil
	}
	for i, job := range l.aside {
		if _, busy := l.busy[key(job)]; busy || job.ReplayID != nil && l.replayed >= laneReplayed {
			continue
		}
		l.aside = slices.Delete(l.aside, i, i+1)
		return job
	}
	return nil
}

// key names what a job is kept in order with: its conversation, for a replay within the replay, and else nothing.
func key(job *store.Job) string {
	switch {
	case job.ReplayID != nil:
		return *job.ReplayID + " " + job.Lane
	case job.Aside():
		return job.DeliveryID
	}
	return job.Lane
}

func (l *lane) begin(job *store.Job, now time.Time) {
	if l.inFlight == 0 {
		l.moved = now
	}
	l.count(job, 1)
	l.busy[key(job)] = struct{}{}
}

func (l *lane) count(job *store.Job, n int) {
	l.inFlight += n
	if job.Aside() {
		l.asides += n
	}
	if job.ReplayID != nil {
		l.replayed += n
	}
}

func (l *lane) end(job *store.Job, now time.Time) {
	l.count(job, -1)
	l.moved = now
	delete(l.busy, key(job))
}

// stalled says whether something is in flight and nothing has ended for a while.
func (l *lane) stalled(now time.Time) bool {
	return l.inFlight > 0 && now.Sub(l.moved) > chokedAfter
}

// choked says whether every slot is busy besides.
func (l *lane) choked(now time.Time) bool {
	return l.inFlight >= laneInFlight && l.stalled(now)
}

// overtakes says whether a job from SQL comes after one that is still on its way there, and so was not seen by its claim: one of
// those in their turn, or of the same replay.
func (l *lane) overtakes(job *store.Job) bool {
	for _, gone := range l.letGo {
		if gone.Seq < job.Seq && (job.Fresh() && !gone.Aside() || sameReplay(job, gone)) {
			return true
		}
	}
	return false
}

// room is for how many deliveries from SQL the lane has use.
func (l *lane) room(now time.Time) int {
	switch {
	case l.choked(now):
		return 0
	case l.parked:
		return max(0, claimedAtOnce-len(l.queue))
	}
	return max(0, min(claimedAtOnce, laneQueue-len(l.queue)))
}

// hungry says whether a parked lane could do with more from SQL at once.
func (l *lane) hungry(now time.Time) bool {
	return len(l.queue) < fewLeft && l.inFlight < laneInFlight && l.room(now) > 0
}

// idle says whether nothing would be lost by forgetting the lane.
func (l *lane) idle() bool {
	return l.inFlight == 0 && len(l.queue)+len(l.aside) == 0 && !l.parked && len(l.letGo) == 0 && !l.ready
}
