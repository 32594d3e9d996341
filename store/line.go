package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"
)

// Ticket is a turn's place in the line of those that wait for a session, on all replicas together.
type Ticket struct {
	bun.BaseModel `bun:"table:session_line,alias:line"`

	SessionID  string `bun:"session_id,pk"`
	Ticket     string `bun:"ticket,pk"` // its place: counts from 1 in a line, and sorts as it counts; empty: it does not stand yet
	AliveUntil Time   `bun:"alive_until"`

	BusinessID string `bun:"-"` // whose session it must be
	AgentID    string `bun:"-"`
}

// TicketLease is how long a place is kept for a turn of whose replica nothing more is heard.
const TicketLease = 5 * time.Second

// lastInLine is behind every ticket: where a turn stands that has none.
const lastInLine = "~"

// StandInLine gives a ticket the last place in its session's line. The places are counted under the session's lock, so that no
// replica's clock decides who came first.
func (s *Store) StandInLine(_ context.Context, ticket *Ticket) error {
	var found bool
	var place string
	err := s.Write(&Write{
		Business: ticket.BusinessID, Size: 128,
		Read: func(t *Tx) {
			found = false
			lock := ""
			if t.remote {
				lock = " FOR UPDATE"
			}
			t.Lock(LockSessions, ticket.SessionID, `SELECT id FROM sessions WHERE id = $1 AND business_id = $2 AND agent_id = $3`+lock,
				[]any{ticket.SessionID, ticket.BusinessID, ticket.AgentID}, func(scan func(...any) error) error {
					found = true
					return scan(&place)
				})
		},
		Apply: func(_ context.Context, t *Tx) error {
			if !found {
				return ErrSessionNotFound
			}
			t.Read(standInLineSQL, []any{ticket.SessionID, int64(t.Now.Add(TicketLease))}, func(scan func(...any) error) error { return scan(&place) })
			return nil
		},
	})
	if err == nil {
		ticket.Ticket = place
	}
	return err
}

// standInLineSQL makes the ticket after the last one of a session: a number of twenty digits.
const standInLineSQL = `INSERT INTO session_line (session_id, ticket, alive_until)
	SELECT $1, substr('00000000000000000000' || n, length(n) + 1), CAST($2 AS BIGINT)
	FROM (SELECT CAST(CAST(COALESCE(MAX(ticket), '0') AS BIGINT) + 1 AS TEXT) AS n FROM session_line WHERE session_id = $1) AS last
	RETURNING ticket`

// KeepInLine keeps tickets alive that stand in line, and brings back none that has left it.
func (s *Store) KeepInLine(_ context.Context, tickets []*Ticket) error {
	return s.Change("", 64*len(tickets), func(ctx context.Context, t *Tx) error {
		for _, ticket := range tickets {
			_, err := t.NewRaw("UPDATE session_line SET alive_until = ? WHERE session_id = ? AND ticket = ?",
				t.Now.Add(TicketLease), ticket.SessionID, ticket.Ticket).Exec(ctx)
			if err != nil {
				return fmt.Errorf("keep %d tickets in line: %w", len(tickets), err)
			}
		}
		return nil
	})
}

// LeaveLine takes a ticket out of the line.
func (s *Store) LeaveLine(ticket *Ticket) {
	s.post(ticket.BusinessID, 128, func(t *Tx) { leaveLine(t, ticket) })
}

func leaveLine(t *Tx, ticket *Ticket) {
	t.Exec(`DELETE FROM session_line WHERE session_id = $1 AND ticket = $2`, ticket.SessionID, ticket.Ticket)
}
