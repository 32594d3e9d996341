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
	Ticket     string `bun:"ticket,pk"` // sorts by arrival
	AliveUntil Time   `bun:"alive_until"`
}

// TicketLease is how long a place is kept for a turn of whose replica nothing more is heard.
const TicketLease = 5 * time.Second

// lastInLine is behind every ticket: where a turn stands that has none.
const lastInLine = "~"

// NewTicket is a ticket of who arrives now. It counts when it is put in line.
func (s *Store) NewTicket(session string) *Ticket {
	return &Ticket{SessionID: session, Ticket: fmt.Sprintf("%020d_%s", s.Now(), newID("tkt"))}
}

// StandInLine puts a ticket in line.
func (s *Store) StandInLine(_ context.Context, ticket *Ticket) error {
	return s.batcher.do(128, func(ctx context.Context, t *tx) error {
		row := &Ticket{SessionID: ticket.SessionID, Ticket: ticket.Ticket, AliveUntil: t.now.Add(TicketLease)}
		if _, err := t.NewInsert().Model(row).On("CONFLICT DO NOTHING").Returning("NULL").Exec(ctx); err != nil {
			return fmt.Errorf("stand in line: %w", err)
		}
		return nil
	})
}

// KeepInLine keeps tickets alive that stand in line, and brings back none that has left it.
func (s *Store) KeepInLine(_ context.Context, tickets []string) error {
	return s.batcher.do(64*len(tickets), func(ctx context.Context, t *tx) error {
		_, err := t.NewRaw("UPDATE session_line SET alive_until = ? WHERE ticket IN (?)", t.now.Add(TicketLease), bun.List(tickets)).Exec(ctx)
		if err != nil {
			return fmt.Errorf("keep %d tickets in line: %w", len(tickets), err)
		}
		return nil
	})
}

// LeaveLine takes a ticket out of the line.
func (s *Store) LeaveLine(ticket *Ticket) {
	s.batcher.post(128, func(ctx context.Context, t *tx) error { return leaveLine(ctx, t, ticket) })
}

func leaveLine(ctx context.Context, t *tx, ticket *Ticket) error {
	_, err := t.NewRaw("DELETE FROM session_line WHERE session_id = ? AND ticket = ?", ticket.SessionID, ticket.Ticket).Exec(ctx)
	if err != nil {
		return fmt.Errorf("leave the line: %w", err)
	}
	return nil
}
