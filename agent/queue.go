package agent

import (
	"container/list"
	"context"
	"sync"
)

// queue lets the turns of each session in one at a time, in order of arrival.
type queue struct {
	mu       sync.Mutex            // guards sessions
	sessions map[string]*list.List // who is in, then who waits: a channel each, closed when its turn has come
}

func newQueue() *queue { return &queue{sessions: map[string]*list.List{}} }

// enter waits for the session's turn, or for ctx to end. Whoever got in must leave.
func (q *queue) enter(ctx context.Context, session string) (leave func(), err error) {
	turn := make(chan struct{})
	q.mu.Lock()
	line := q.sessions[session]
	if line == nil {
		line = list.New()
		q.sessions[session] = line
	}
	place := line.PushBack(turn)
	if line.Front() == place {
		close(turn)
	}
	q.mu.Unlock()
	leave = func() {
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
	select {
	case <-turn:
		return leave, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// busy says whether a turn of the session is in, or waits.
func (q *queue) busy(session string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.sessions[session] != nil
}
