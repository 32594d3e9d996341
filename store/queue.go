package store

import "sync"

// queue is what waits to be committed, in a line for each business. A batch takes of one after the
// other: who has much to write waits behind himself.
type queue struct {
	bell chan struct{} // rings when there is something, or nothing will ever be

	mu      sync.Mutex // guards what follows
	lines   map[string]*line
	turns   []*line // those in which somebody waits, in the order in which they are served
	waiting int
	closed  bool
	// How many rows a write of a business makes, where that is more than a few.
	rows map[string]int
}

type line struct {
	business string
	writes   []*Write
}

const (
	// Waiting writes at most; of one business half of what the others leave. Beyond, callers are
	// told to come back.
	queuedWrites = 4096
	fewRows      = 16
	knownRows    = 1000 // businesses of which rows knows
)

func newQueue() *queue {
	return &queue{bell: make(chan struct{}, 1), lines: map[string]*line{}, rows: map[string]int{}}
}

// put has a write wait, unless the server is about to stop, or has too much to write.
func (q *queue) put(w *Write) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrShuttingDown
	}
	l := q.lines[w.Business]
	own := 0
	if l != nil {
		own = len(l.writes)
	}
	if own >= (queuedWrites-(q.waiting-own))/2 {
		return ErrOverloaded
	}
	if l == nil {
		l = &line{business: w.Business}
		q.lines[w.Business] = l
		q.turns = append(q.turns, l)
	}
	l.writes = append(l.writes, w)
	q.waiting++
	q.ring()
	return nil
}

func (q *queue) ring() {
	select {
	case q.bell <- struct{}{}:
	default:
	}
}

// close has nothing more be put.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.ring()
}

// batch waits for writes, and takes as many as one transaction may have; none once the queue is
// closed and empty. Of those that run their own statements, each of which may lock anything, single
// says to take one: two would lock in whatever order they came, and somebody else in another one.
func (q *queue) batch(single bool) []*Write {
	for {
		q.mu.Lock()
		if q.waiting > 0 {
			defer q.mu.Unlock()
			return q.take(single)
		}
		closed := q.closed
		q.mu.Unlock()
		if closed {
			return nil
		}
		<-q.bell
	}
}

func (q *queue) take(single bool) (batch []*Write) {
	size, rows, own := 0, 0, false
	var later []*line // what does not fit comes first in the next batch
	for len(q.turns) > 0 && len(batch) < batchWrites {
		l := q.turns[0]
		q.turns = q.turns[1:]
		w := l.writes[0]
		if len(batch) > 0 && (size+w.Size > batchBytes || rows+q.rows[l.business] > batchRows || single && own && w.Read == nil) {
			later = append(later, l)
			continue
		}
		batch = append(batch, w)
		size, rows, own = size+w.Size, rows+q.rows[l.business], own || w.Read == nil
		l.writes[0] = nil
		l.writes = l.writes[1:]
		q.waiting--
		if len(l.writes) > 0 {
			q.turns = append(q.turns, l)
		} else {
			delete(q.lines, l.business)
		}
	}
	q.turns = append(later, q.turns...)
	return batch
}

// made notes how many rows of deliveries a batch has made of each business's events.
func (q *queue) made(rows map[string]int, batch []*Write) {
	writes := map[string]int{}
	for _, w := range batch {
		writes[w.Business]++
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for business, n := range writes {
		each := max(rows[business]/n, q.rows[business]*3/4) // not all of its writes make rows
		if each <= fewRows {
			delete(q.rows, business)
			continue
		}
		if _, known := q.rows[business]; !known && len(q.rows) >= knownRows {
			for any := range q.rows {
				delete(q.rows, any)
				break
			}
		}
		q.rows[business] = each
	}
}
