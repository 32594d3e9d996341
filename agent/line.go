package agent

import (
	"context"
	"sync"

	"parley/store"
	"parley/stream"
)

// line is this replica's part of the lines that turns stand in for sessions, on all replicas together. On SQLite there are no
// others, and the queue within the process is the whole of it: nobody takes a place then.
//
// Within a replica the queue alone decides who goes first, whatever tickets they hold: tickets are written by many turns at
// once, so that theirs can be another order. Whoever the queue lets in shows the foremost ticket of all who wait here, and takes
// only its own out of the line. So no turn waits for one that waits for it, and a turn is served before all who stand behind it
// here, and behind those on other replicas.
type line struct {
	store *store.Store

	mu       sync.Mutex          // guards what follows
	sessions map[string]*waiting // in which turns stand in line here
}

// waiting are the turns that stand in line here for one session.
type waiting struct {
	places map[*place]struct{}
	rang   chan struct{} // the bell: closed when something has happened in the session, and made anew
}

func newLine(s *store.Store) *line { return &line{store: s, sessions: map[string]*waiting{}} }

// place is where one turn stands; nil, for a session that nobody else knows yet, is nowhere.
type place struct {
	line     *line
	t        *store.Ticket
	standing bool // only its turn's goroutine looks
}

// arrive is for a turn that has come. It takes a place only if it has to wait.
func (l *line) arrive(agent *store.Agent, session string) *place {
	if !l.store.Remote() {
		return nil
	}
	return &place{line: l, t: &store.Ticket{SessionID: session, BusinessID: agent.BusinessID, AgentID: agent.ID}}
}

// stand takes the place, and says whether it did, not having it yet.
func (p *place) stand(ctx context.Context) (took bool, err error) {
	if p == nil || p.standing {
		return false, nil
	}
	if err := p.line.store.StandInLine(ctx, p.t); err != nil {
		return false, err
	}
	p.standing = true
	l, session := p.line, p.t.SessionID
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions[session] == nil {
		l.sessions[session] = &waiting{places: map[*place]struct{}{}, rang: make(chan struct{})}
	}
	l.sessions[session].places[p] = struct{}{}
	return true, nil
}

// ticket is the turn's own; nil if it does not stand in line.
func (p *place) ticket() *store.Ticket {
	if p == nil || !p.standing {
		return nil
	}
	return p.t
}

// foremost is the ticket that a turn shows when the queue has let it in: the first of all who wait here for its session. Empty if
// nobody does.
func (p *place) foremost() (ticket string) {
	if p == nil {
		return ""
	}
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	if here := p.line.sessions[p.t.SessionID]; here != nil {
		for other := range here.places {
			if ticket == "" || other.t.Ticket < ticket {
				ticket = other.t.Ticket
			}
		}
	}
	return ticket
}

// served gives the place up: the turn has begun.
func (p *place) served() {
	if p == nil || !p.standing {
		return
	}
	p.standing = false
	l, session := p.line, p.t.SessionID
	l.mu.Lock()
	defer l.mu.Unlock()
	here := l.sessions[session]
	if delete(here.places, p); len(here.places) == 0 {
		delete(l.sessions, session)
	}
}

// leave gives up the place of a turn that did not get in.
func (p *place) leave() {
	if p != nil && p.standing {
		p.served()
		p.line.store.LeaveLine(p.t)
	}
}

// rings is closed when something happens in the session of a place that is taken.
func (p *place) rings() <-chan struct{} {
	if p == nil || !p.standing {
		return nil
	}
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	return p.line.sessions[p.t.SessionID].rang
}

func (l *line) ring(entries []stream.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		if here := l.sessions[e.Lane]; here != nil {
			close(here.rang)
			here.rang = make(chan struct{})
		}
	}
}

func (l *line) keepAlive(ctx context.Context) error {
	var tickets []*store.Ticket
	l.mu.Lock()
	for _, here := range l.sessions {
		for p := range here.places {
			tickets = append(tickets, p.t)
		}
	}
	l.mu.Unlock()
	if len(tickets) == 0 {
		return nil
	}
	return l.store.KeepInLine(ctx, tickets)
}
