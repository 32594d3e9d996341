package agent

import (
	"context"
	"maps"
	"slices"
	"sync"

	"parley/store"
	"parley/stream"
)

// line is this replica's part of the lines that turns stand in for sessions, on all replicas together. On SQLite there are no
// others, and the queue within the process is the whole of it: nobody takes a place then.
type line struct {
	store *store.Store

	mu     sync.Mutex // guards what follows
	places map[*place]struct{}
	bells  map[string]*bell // by session
}

// bell rings when something has happened in a session.
type bell struct {
	rang      chan struct{} // closed, and made anew
	listeners int
}

func newLine(s *store.Store) *line {
	return &line{store: s, places: map[*place]struct{}{}, bells: map[string]*bell{}}
}

// place is where one turn stands; nil, for a session that nobody else knows yet, is nowhere.
type place struct {
	line     *line
	t        *store.Ticket
	standing bool // only its turn's goroutine looks
}

// arrive is for a turn that has come. It takes a place only if it has to wait.
func (l *line) arrive(agent *store.Agent, session string) *place {
	if !l.store.Shared() {
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
	l.places[p] = struct{}{}
	if l.bells[session] == nil {
		l.bells[session] = &bell{rang: make(chan struct{})}
	}
	l.bells[session].listeners++
	return true, nil
}

// ticket is what the turn shows to be let in; nil if it does not stand in line.
func (p *place) ticket() *store.Ticket {
	if p == nil || !p.standing {
		return nil
	}
	return p.t
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
	delete(l.places, p)
	if l.bells[session].listeners--; l.bells[session].listeners == 0 {
		delete(l.bells, session)
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
	return p.line.bells[p.t.SessionID].rang
}

func (l *line) ring(entries []stream.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entries {
		if b := l.bells[e.Lane]; b != nil {
			close(b.rang)
			b.rang = make(chan struct{})
		}
	}
}

func (l *line) keepAlive(ctx context.Context) error {
	l.mu.Lock()
	places := slices.Collect(maps.Keys(l.places))
	l.mu.Unlock()
	if len(places) == 0 {
		return nil
	}
	tickets := make([]*store.Ticket, len(places))
	for i, p := range places {
		tickets[i] = p.t
	}
	return l.store.KeepInLine(ctx, tickets)
}
