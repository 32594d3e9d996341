package agent

import (
	"container/list"
	"sync"
)

// queue lets the turns of each session in one at a time, in order of arrival.
type queue struct {
	mu       sync.Mutex            // guards sessions
	sessions map[string]*list.List // who is in, then who waits: a channel each, closed when its turn has come
}

func newQueue() *queue { return &queue{sessions: map[string]*list.List{}} }

// join takes the last place of the session's queue, and does not wait: come is closed when all before it have left. Whoever has
// joined must leave.
func (q *queue) join(session string) (come <-chan struct{}, leave func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.push(session)
}

// joinIdle is join for those who would not wait: it fails if anybody is in.
func (q *queue) joinIdle(session string) (leave func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sessions[session] != nil {
		return nil, false
	}
	_, leave = q.push(session)
	return leave, true
}

// push is called with mu held.
func (q *queue) push(session string) (come <-chan struct{}, leave func()) {
	turn := make(chan struct{})
	line := q.sessions[session]
	if line == nil {
		line = list.New()
		q.sessions[session] = line
	}
	place := line.PushBack(turn)
	if line.Front() == place {
		close(turn)
	}
	return turn, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		first := line.Front() == place
		line.Remove(place)
		switch next := line.Front(); {
		case next == nil:
			delete(q.sessions, session)
		case first:
			close(next.Value.(chan struct{}))
		}
	}
}
