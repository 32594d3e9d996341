package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
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
	place := ""
	err := s.Change(128, func(ctx context.Context, t *Tx) error {
		var session, last string
		err := t.ForUpdate().ModelTableExpr("sessions").Column("id").
			Where("id = ? AND business_id = ? AND agent_id = ?", ticket.SessionID, ticket.BusinessID, ticket.AgentID).Scan(ctx, &session)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrSessionNotFound
		}
		if err == nil {
			err = t.NewRaw("SELECT COALESCE(MAX(ticket), '') FROM session_line WHERE session_id = ?", ticket.SessionID).Scan(ctx, &last)
		}
		if err != nil {
			return fmt.Errorf("read the line of session %s: %w", ticket.SessionID, err)
		}
		number := 0
		if last != "" {
			if number, err = strconv.Atoi(last); err != nil {
				return fmt.Errorf("read the line of session %s: %w", ticket.SessionID, err)
			}
		}
		place = fmt.Sprintf("%020d", number+1)
		row := &Ticket{SessionID: ticket.SessionID, Ticket: place, AliveUntil: t.Now.Add(TicketLease)}
		if _, err := t.NewInsert().Model(row).Returning("NULL").Exec(ctx); err != nil {
			return fmt.Errorf("stand in line: %w", err)
		}
		return nil
	})
	if err == nil {
		ticket.Ticket = place
	}
	return err
}

// KeepInLine keeps tickets alive that stand in line, and brings back none that has left it.
func (s *Store) KeepInLine(_ context.Context, tickets []*Ticket) error {
	return s.Change(64*len(tickets), func(ctx context.Context, t *Tx) error {
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
	s.post(128, func(_ context.Context, t *Tx) error { leaveLine(t, ticket); return nil })
}

func leaveLine(t *Tx, ticket *Ticket) {
	t.Exec(`DELETE FROM session_line WHERE session_id = $1 AND ticket = $2`, ticket.SessionID, ticket.Ticket)
}
