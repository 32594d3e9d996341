package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"
)

// Session is a chat conversation with an agent. Its turns run one after the other: whoever runs one holds the session's
// lock, a run id with a fence that counts the holders, until that turn ends or the lock's time is over.
type Session struct {
	bun.BaseModel `bun:"table:sessions,alias:session"`

	ID           string  `bun:"id,pk"`
	BusinessID   string  `bun:"business_id"`
	AgentID      string  `bun:"agent_id"`
	Channel      Channel `bun:"channel"`
	LastSequence int64   `bun:"last_sequence"` // of its events
	ExpiresAt    Time    `bun:"expires_at"`
	RunID        *string `bun:"run_id"`
	Fence        int64   `bun:"fence"`
	LockedUntil  *Time   `bun:"locked_until"`
	CreatedAt    Time    `bun:"created_at"`
}

// Turn is one turn of a session, from BeginTurn to FinishTurn or FailTurn.
type Turn struct {
	SessionID string
	Message   *Message // the user's
	Run       *Run
	// History says how far the session had got before this turn: what is cached of its history counts only with this.
	History int64
	Key     *IdempotencyKey // under which its answer is kept
	// Rendering is its reply's: set before FinishTurn.
	Rendering *Rendering
}

// TurnInput is what a turn begins with. The zero SessionID begins a new session.
type TurnInput struct {
	BusinessID string
	AgentID    string
	Model      string // what is going to answer
	SessionID  string
	Channel    Channel
	Text       string
	Metadata   *JSONObject
	Lease      time.Duration   // how long the turn holds the session, unless KeepTurns prolongs it
	Ticket     *Ticket         // its own, which leaves the session's line when the turn begins; nil: it has none
	Place      string          // the ticket that it shows: its own, or that of a turn that it goes before; empty: it goes behind all
	Key        *IdempotencyKey // the turn happens once for it; nil: each time
}

// BeginTurn locks the session for the turn, and stores the user's message, its event and the run: the first of a turn's
// two commits. It refuses with ErrSessionNotFound, ErrSessionExpired, ErrChannelMismatch or ErrSessionBusy, and for its key
// with ErrKeyReused, ErrKeyInFlight or ErrKeyAnswered.
func (s *Store) BeginTurn(_ context.Context, in TurnInput) (*Turn, error) {
	turn := &Turn{SessionID: in.SessionID, Key: in.Key}
	fresh := in.SessionID == ""
	if fresh {
		turn.SessionID = newID("ses")
	}
	runID, messageID := newID("run"), newID("msg")
	var step *turnStep
	if !fresh && in.Ticket == nil && in.Place == "" && in.Key == nil { // else there is more to look at
		step = &turnStep{session: in.SessionID, lock: func(t *tx) []any {
			runID = t.timely("run", runID)
			return []any{
				in.SessionID, runID, int64(t.now.Add(in.Lease)), int64(t.now.Add(s.cfg.SessionTTL)), in.BusinessID, in.AgentID, string(in.Channel),
				int64(t.now),
			}
		}}
	}
	err := s.batcher.doTurn(2048+2*len(in.Text), step, func(ctx context.Context, t *tx) error {
		runID = t.timely("run", runID)
		lock := Session{
			ID: turn.SessionID, BusinessID: in.BusinessID, AgentID: in.AgentID, Channel: in.Channel, LastSequence: 1,
			ExpiresAt: t.now.Add(s.cfg.SessionTTL), RunID: &runID, Fence: 1, CreatedAt: t.now,
		}
		until := t.now.Add(in.Lease)
		lock.LockedUntil = &until
		if err := in.Key.check(ctx, t, in.BusinessID); err != nil {
			return err
		}
		if fresh {
			t.sessions = append(t.sessions, &lock)
		} else if step != nil && step.done {
			lock.Fence, lock.LastSequence = step.fence, step.sequence
		} else if err := lockSession(ctx, t, &lock, cmp.Or(in.Place, lastInLine), in.Ticket); err != nil {
			return err
		}
		if err := in.Key.claim(ctx, t, in.BusinessID, runID); err != nil {
			return err
		}
		turn.History = lock.LastSequence - 1
		turn.Message = &Message{
			ID: messageID, BusinessID: in.BusinessID, SessionID: &turn.SessionID, RunID: &runID, Direction: Inbound,
			Author: AuthorLead, Text: in.Text, Metadata: in.Metadata, Sequence: lock.LastSequence, CreatedAt: t.now,
		}
		turn.Run = &Run{
			ID: runID, BusinessID: in.BusinessID, AgentID: in.AgentID, SessionID: &turn.SessionID, Channel: in.Channel,
			Status: RunRunning, Model: in.Model, TokenUsage: TokenUsage{Source: UsageNone}, MessageID: messageID,
			Fence: lock.Fence, OwnedUntil: until, StartedAt: t.now, Steps: []RunStep{},
		}
		event, err := turn.Message.event(in.AgentID, in.Channel)
		if err != nil {
			return err
		}
		t.messages = append(t.messages, turn.Message)
		t.runs = append(t.runs, turn.Run)
		t.events = append(t.events, event)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return turn, nil
}

// lockSession takes the lock of an existing session in one conditional statement, and only if that changed nothing asks
// why. It fills in the fence and sequence. Whoever stands in line before the place goes first.
func lockSession(ctx context.Context, t *tx, lock *Session, place string, ticket *Ticket) error {
	err := t.row(ctx, lockSessionSQL, []any{
		lock.RunID, lock.LockedUntil, lock.ExpiresAt, lock.ID, lock.BusinessID, lock.AgentID, lock.Channel, t.now, t.now, place, t.now,
	}, &lock.Fence, &lock.LastSequence)
	if err == nil && ticket != nil {
		return leaveLine(ctx, t, ticket)
	}
	if !errors.Is(err, sql.ErrNoRows) {
		if err != nil {
			return fmt.Errorf("lock session %s: %w", lock.ID, err)
		}
		return nil
	}
	held := new(Session)
	err = t.NewSelect().Model(held).
		Where("id = ? AND business_id = ? AND agent_id = ?", lock.ID, lock.BusinessID, lock.AgentID).Scan(ctx)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return ErrSessionNotFound
	case err != nil:
		return fmt.Errorf("read session %s: %w", lock.ID, err)
	case held.ExpiresAt <= t.now && (held.RunID == nil || *held.LockedUntil < t.now):
		return ErrSessionExpired
	case held.Channel != lock.Channel:
		return ErrChannelMismatch
	}
	return ErrSessionBusy
}

// KeepTurns prolongs the hold of turns on their sessions, while they run.
func (s *Store) KeepTurns(_ context.Context, runs []string, lease time.Duration) error {
	return s.batcher.do(64*len(runs), func(ctx context.Context, t *tx) error {
		_, err := t.NewRaw("UPDATE sessions SET locked_until = ? WHERE id IN (SELECT session_id FROM runs WHERE id IN (?)) AND run_id IN (?)",
			t.now.Add(lease), bun.List(runs), bun.List(runs)).Exec(ctx)
		if err == nil {
			_, err = t.NewRaw("UPDATE runs SET owned_until = ? WHERE id IN (?) AND status = ?", t.now.Add(lease), bun.List(runs), RunRunning).Exec(ctx)
		}
		if err != nil {
			return fmt.Errorf("keep %d turns: %w", len(runs), err)
		}
		return nil
	})
}

// errTurnLost says that a turn no longer holds its session: it ran out of time, and was ended by another hand.
var errTurnLost = refuse(CodeModelTimeout, "model_timeout", "the turn took too long and was ended")

// FinishTurn stores the reply and the end of the run, with their events, and unlocks the session: the second commit. The
// fence decides: a turn whose session was taken over changes nothing. The last step's model is the run's, and its usage the
// sum of theirs.
func (s *Store) FinishTurn(_ context.Context, turn *Turn, text string, steps ...RunStep) (*Message, error) {
	reply := &Message{
		ID: newID("msg"), BusinessID: turn.Run.BusinessID, SessionID: &turn.SessionID, RunID: &turn.Run.ID,
		Direction: Outbound, Author: AuthorAgent, Text: text, Rendering: turn.Rendering,
	}
	size := 2048 + 2*len(text)
	if r := turn.Rendering; r != nil && r.HTML != nil {
		size += 2 * len(*r.HTML)
	}
	step := &turnStep{session: turn.SessionID, unlock: func(t *tx) []any {
		return []any{turn.SessionID, turn.Run.ID, turn.Run.Fence, int64(t.now.Add(s.cfg.SessionTTL))}
	}}
	err := s.batcher.doTurn(size, step, func(ctx context.Context, t *tx) error {
		sequence := step.sequence
		if !step.done {
			err := t.row(ctx, unlockSessionSQL, []any{t.now.Add(s.cfg.SessionTTL), turn.SessionID, turn.Run.ID, turn.Run.Fence}, &sequence)
			if errors.Is(err, sql.ErrNoRows) {
				return errTurnLost
			}
			if err != nil {
				return fmt.Errorf("unlock session %s: %w", turn.SessionID, err)
			}
		}
		run := *turn.Run
		run.end(RunStatusFinished, steps, t.now)
		run.ReplyID = &reply.ID
		reply.Sequence, reply.CreatedAt = sequence-1, t.now
		replied, err := reply.event(run.AgentID, run.Channel)
		if err != nil {
			return err
		}
		finished, err := run.event(sequence)
		if err != nil {
			return err
		}
		if err := turn.Key.keep(ctx, t, answerOf(&run, reply)); err != nil {
			return err
		}
		t.messages = append(t.messages, reply)
		t.ended = append(t.ended, &run)
		t.events = append(t.events, replied, finished)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// FailTurn ends a run that failed, with its event, and unlocks the session if the run still holds it. The session's
// history is as before the turn. A run that has ended already is left as it is.
func (s *Store) FailTurn(_ context.Context, run *Run, class string, steps ...RunStep) error {
	return s.batcher.do(1024, func(ctx context.Context, t *tx) error {
		var sequence int64
		err := t.NewRaw(`UPDATE sessions SET last_sequence = last_sequence + 1,
			locked_until = CASE WHEN run_id = ? THEN NULL ELSE locked_until END, run_id = CASE WHEN run_id = ? THEN NULL ELSE run_id END
			WHERE id = ? AND EXISTS (SELECT 1 FROM runs WHERE id = ? AND status = ? AND fence = ?) RETURNING last_sequence`,
			run.ID, run.ID, run.SessionID, run.ID, RunRunning, run.Fence).Scan(ctx, &sequence)
		if errors.Is(err, sql.ErrNoRows) {
			return errTurnLost
		}
		if err != nil {
			return fmt.Errorf("unlock session %s: %w", *run.SessionID, err)
		}
		if err := releaseKey(ctx, t, run.ID); err != nil {
			return err
		}
		failed := *run
		failed.end(RunStatusFailed, steps, t.now)
		failed.ErrorClass = &class
		event, err := failed.event(sequence)
		if err != nil {
			return err
		}
		t.ended = append(t.ended, &failed)
		t.events = append(t.events, event)
		return nil
	})
}

// endRunsSQL tells a run that is running by what no index has: it is to be looked up by its id.
const endRunsSQL = `UPDATE runs SET status = new.status, model = new.model, input_tokens = new.input_tokens,
	output_tokens = new.output_tokens, usage_source = new.usage_source, cost = new.cost, error_class = new.error_class,
	steps = new.steps, reply_id = new.reply_id, finished_at = new.finished_at
	FROM {rows} WHERE runs.id = new.id AND runs.fence = new.fence AND runs.finished_at IS NULL`

var endedRunColumns = []column{
	{"id", "text"},
	{"fence", "bigint"},
	{"status", "text"},
	{"model", "text"},
	{"input_tokens", "bigint"},
	{"output_tokens", "bigint"},
	{"usage_source", "text"},
	{"cost", "bigint"},
	{"error_class", "text"},
	{"steps", "text"},
	{"reply_id", "text"},
	{"finished_at", "bigint"},
}

// endOf makes the rows that say how the transaction's runs ended.
func (s *Store) endOf(t *tx) func(i int) ([]any, error) {
	return func(i int) ([]any, error) {
		r := t.ended[i]
		steps, err := encode(r.Steps)
		return []any{
			r.ID, r.Fence, string(r.Status), r.Model, int64(r.InputTokens), int64(r.OutputTokens), string(r.Source), orNil(s.cost(r.Steps)),
			orNil(r.ErrorClass), string(steps), orNil(r.ReplyID), int64(*r.FinishedAt),
		}, err
	}
}
