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
	Version    int64  // of the agent, as it was read; 0: whichever it has
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
// two commits. It refuses with ErrSessionNotFound, ErrSessionExpired, ErrChannelMismatch or ErrSessionBusy, for its key
// with ErrKeyReused, ErrKeyInFlight or ErrKeyAnswered, and for its agent with ErrAgentChanged or ErrAgentNotFound.
func (s *Store) BeginTurn(_ context.Context, in TurnInput) (*Turn, error) {
	turn := &Turn{SessionID: in.SessionID, Key: in.Key}
	fresh := in.SessionID == ""
	if fresh {
		turn.SessionID = NewID("ses")
	}
	runID, messageID := NewID("run"), NewID("msg")
	var lock *Session
	var locked bool
	var taken takenKey
	var version int64 // of the agent; 0: there is none
	err := s.Write(&Write{
		Business: in.BusinessID, Size: 2048 + 2*len(in.Text),
		Read: func(t *Tx) {
			runID = t.timely("run", runID)
			until := t.Now.Add(in.Lease)
			lock = &Session{
				ID: turn.SessionID, BusinessID: in.BusinessID, AgentID: in.AgentID, Channel: in.Channel, LastSequence: 1,
				ExpiresAt: t.Now.Add(s.cfg.SessionTTL), RunID: &runID, Fence: 1, LockedUntil: &until, CreatedAt: t.Now,
			}
			version = 0
			t.Bulk(lockKeys, "", versionBulk, []any{in.BusinessID, in.AgentID}, func(scan func(...any) error) error { return scan(&version) })
			in.Key.take(t, in.BusinessID, runID, &taken)
			if locked = fresh; !fresh {
				lock.take(t, cmp.Or(in.Place, lastInLine), in.Key, in.Version, &locked)
			}
			t.Expect(EventKind{in.BusinessID, in.AgentID, MessageCreated})
		},
		Apply: func(ctx context.Context, t *Tx) error {
			if err := taken.refusal(in.Key, runID); err != nil {
				return err
			}
			if err := in.stale(version); err != nil {
				in.Key.giveBack(t, runID)
				s.forgetAgent(in.BusinessID, in.AgentID)
				return err
			}
			if !locked {
				in.Key.giveBack(t, runID)
				return lock.refusal(ctx, t)
			}
			if fresh {
				Insert(t, lock)
			} else if in.Ticket != nil {
				leaveLine(t, in.Ticket)
			}
			turn.History = lock.LastSequence - 1
			turn.Message = &Message{
				ID: messageID, BusinessID: in.BusinessID, SessionID: &turn.SessionID, RunID: &runID, Direction: Inbound,
				Author: AuthorLead, Text: in.Text, Metadata: in.Metadata, Sequence: lock.LastSequence, CreatedAt: t.Now,
			}
			turn.Run = &Run{
				ID: runID, BusinessID: in.BusinessID, AgentID: in.AgentID, SessionID: &turn.SessionID, Channel: in.Channel,
				Status: RunRunning, Model: in.Model, TokenUsage: TokenUsage{Source: UsageNone}, MessageID: messageID,
				Fence: lock.Fence, OwnedUntil: *lock.LockedUntil, StartedAt: t.Now, Steps: []RunStep{},
			}
			event, err := turn.Message.event(in.AgentID, in.Channel)
			if err != nil {
				return err
			}
			Insert(t, turn.Message)
			Insert(t, turn.Run)
			t.AddEvent(event)
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	return turn, nil
}

// stale says why a turn cannot begin with the agent that it was read with; nil: it can.
func (in *TurnInput) stale(version int64) error {
	switch {
	case in.Version == 0 || in.Version == version:
		return nil
	case version == 0:
		return ErrAgentNotFound
	}
	return ErrAgentChanged
}

var versionBulk = NewBulk(`SELECT new.row, a.version FROM agents AS a, {rows}
	WHERE a.business_id = new.business_id AND a.id = new.agent_id AND a.deleted_at IS NULL`, Column{"business_id", "text"}, Column{"agent_id", "text"})

// lockBulk locks sessions for turns, each unless another turn has it, stands in line before this
// one, the turn's key was not taken, or its agent has changed. Its subqueries are scalars:
// PostgreSQL hashes no table for them.
var lockBulk = NewBulk(`UPDATE sessions SET run_id = new.run_id, fence = sessions.fence + 1, locked_until = new.locked_until,
		last_sequence = sessions.last_sequence + 1, expires_at = new.expires_at
	FROM {rows} WHERE sessions.id = new.id AND sessions.business_id = new.business_id AND sessions.agent_id = new.agent_id
	AND sessions.channel = new.channel AND sessions.expires_at > new.now AND (sessions.run_id IS NULL OR sessions.locked_until < new.now)
	AND (SELECT MIN(l.ticket) FROM session_line AS l WHERE l.session_id = sessions.id AND l.ticket < new.place AND l.alive_until > new.now) IS NULL
	AND (new.key = '' OR (SELECT k.run_id FROM idempotency_keys AS k WHERE k.business_id = new.business_id AND k.key = new.key) = new.run_id)
	AND (new.version = 0 OR (SELECT a.version FROM agents AS a WHERE a.business_id = new.business_id AND a.id = new.agent_id
		AND a.deleted_at IS NULL) = new.version)
	RETURNING new.row, fence, last_sequence`,
	Column{"id", "text"}, Column{"business_id", "text"}, Column{"agent_id", "text"}, Column{"channel", "text"}, Column{"run_id", "text"},
	Column{"locked_until", "bigint"}, Column{"expires_at", "bigint"}, Column{"now", "bigint"}, Column{"place", "text"}, Column{"key", "text"},
	Column{"version", "bigint"})

// take queues the lock of an existing session. Whoever stands in line before the place goes first.
func (lock *Session) take(t *Tx, place string, key *IdempotencyKey, version int64, locked *bool) {
	named := ""
	if key != nil {
		named = key.Key
	}
	t.Bulk(LockSessions, lock.ID, lockBulk, []any{
		lock.ID, lock.BusinessID, lock.AgentID, string(lock.Channel), *lock.RunID, int64(*lock.LockedUntil), int64(lock.ExpiresAt), int64(t.Now),
		place, named, version,
	}, func(scan func(...any) error) error {
		*locked = true
		return scan(&lock.Fence, &lock.LastSequence)
	})
}

// refusal says why a session could not be locked.
func (lock *Session) refusal(ctx context.Context, t *Tx) error {
	held := new(Session)
	err := t.NewSelect().Model(held).
		Where("id = ? AND business_id = ? AND agent_id = ?", lock.ID, lock.BusinessID, lock.AgentID).Scan(ctx)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return ErrSessionNotFound
	case err != nil:
		return fmt.Errorf("read session %s: %w", lock.ID, err)
	case held.ExpiresAt <= t.Now && (held.RunID == nil || *held.LockedUntil < t.Now):
		return ErrSessionExpired
	case held.Channel != lock.Channel:
		return ErrChannelMismatch
	}
	return ErrSessionBusy
}

// KeepTurns prolongs the hold of turns on their sessions, while they run. It must not wait behind
// anybody's lists.
func (s *Store) KeepTurns(ctx context.Context, runs []string, lease time.Duration) error {
	db := s.db
	if s.remote() {
		db = s.keyed
	}
	return s.inTxOn(ctx, db, func(ctx context.Context, t *Tx) error {
		var sessions []string
		err := t.NewRaw("SELECT id FROM sessions WHERE id IN (SELECT session_id FROM runs WHERE id IN (?)) AND run_id IN (?) ORDER BY id"+
			s.Locking("NO KEY UPDATE"), bun.List(runs), bun.List(runs)).Scan(ctx, &sessions)
		if err == nil && len(sessions) > 0 {
			_, err = t.NewRaw("UPDATE sessions SET locked_until = ? WHERE id IN (?)", t.Now.Add(lease), bun.List(sessions)).Exec(ctx)
		}
		if err == nil {
			_, err = t.NewRaw("UPDATE runs SET owned_until = ? WHERE id IN (?) AND finished_at IS NULL", t.Now.Add(lease), bun.List(runs)).Exec(ctx)
		}
		if err != nil {
			return fmt.Errorf("keep %d turns: %w", len(runs), err)
		}
		return nil
	})
}

// errTurnLost says that a turn no longer holds its session: it ran out of time, and was ended by another hand.
var errTurnLost = refuse(CodeModelTimeout, "model_timeout", "the turn took too long and was ended")

var unlockBulk = NewBulk(`UPDATE sessions SET run_id = NULL, locked_until = NULL, last_sequence = sessions.last_sequence + 2, expires_at = new.expires_at
	FROM {rows} WHERE sessions.id = new.id AND sessions.run_id = new.run_id AND sessions.fence = new.fence RETURNING new.row, last_sequence`,
	Column{"id", "text"}, Column{"run_id", "text"}, Column{"fence", "bigint"}, Column{"expires_at", "bigint"})

// FinishTurn stores the reply and the end of the run, with their events, and unlocks the session: the second commit. The
// fence decides: a turn whose session was taken over changes nothing. The last step's model is the run's, and its usage the
// sum of theirs.
func (s *Store) FinishTurn(_ context.Context, turn *Turn, text string, steps ...RunStep) (*Message, error) {
	reply := &Message{
		ID: NewID("msg"), BusinessID: turn.Run.BusinessID, SessionID: &turn.SessionID, RunID: &turn.Run.ID,
		Direction: Outbound, Author: AuthorAgent, Text: text, Rendering: turn.Rendering,
	}
	size := 2048 + 2*len(text)
	if r := turn.Rendering; r != nil && r.HTML != nil {
		size += 2 * len(*r.HTML)
	}
	var sequence int64
	err := s.Write(&Write{
		Business: turn.Run.BusinessID, Size: size,
		Read: func(t *Tx) {
			if sequence = 0; !t.end(turn.Run.ID) {
				return
			}
			t.Bulk(LockSessions, turn.SessionID, unlockBulk, []any{turn.SessionID, turn.Run.ID, turn.Run.Fence, int64(t.Now.Add(s.cfg.SessionTTL))},
				func(scan func(...any) error) error { return scan(&sequence) })
			t.Expect(turn.Run.kind(MessageCreated), turn.Run.kind(RunFinished))
		},
		Apply: func(_ context.Context, t *Tx) error {
			if sequence == 0 {
				return errTurnLost
			}
			run := *turn.Run
			run.end(RunStatusFinished, steps, t.Now)
			run.ReplyID = &reply.ID
			reply.Sequence, reply.CreatedAt = sequence-1, t.Now
			replied, err := reply.event(run.AgentID, run.Channel)
			if err != nil {
				return err
			}
			finished, err := run.event(sequence)
			if err != nil {
				return err
			}
			if err := turn.Key.keep(t, answerOf(&run, reply)); err != nil {
				return err
			}
			Insert(t, reply)
			t.AddEvent(replied, finished)
			return s.writeEnd(t, &run)
		},
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}

// FailTurn ends a run that failed, with its event, and unlocks the session if the run still holds it. The session's
// history is as before the turn. A run that has ended already is left as it is.
func (s *Store) FailTurn(_ context.Context, run *Run, class string, steps ...RunStep) error {
	var sequence int64
	return s.Write(&Write{
		Business: run.BusinessID, Size: 1024,
		Read: func(t *Tx) {
			if sequence = 0; !t.end(run.ID) {
				return
			}
			// First: a statement that waits for another replica, which ends the run too, would not
			// see that it has.
			if s.remote() {
				t.Lock(LockSessions, *run.SessionID, `SELECT id FROM sessions WHERE id = $1 FOR UPDATE`, []any{*run.SessionID}, nil)
			}
			t.Lock(LockSessions, *run.SessionID, `UPDATE sessions SET last_sequence = last_sequence + 1,
				locked_until = CASE WHEN run_id = $1 THEN NULL ELSE locked_until END, run_id = CASE WHEN run_id = $1 THEN NULL ELSE run_id END
				WHERE id = $2 AND EXISTS (SELECT 1 FROM runs WHERE id = $1 AND finished_at IS NULL AND fence = $3) RETURNING last_sequence`,
				[]any{run.ID, *run.SessionID, run.Fence}, func(scan func(...any) error) error { return scan(&sequence) })
			t.Expect(run.kind(RunFailed))
		},
		Apply: func(_ context.Context, t *Tx) error {
			if sequence == 0 {
				return errTurnLost
			}
			failed := *run
			failed.end(RunStatusFailed, steps, t.Now)
			failed.ErrorClass = &class
			event, err := failed.event(sequence)
			if err != nil {
				return err
			}
			t.Exec(`DELETE FROM idempotency_keys WHERE run_id = $1`, run.ID) // whoever asks again gets a new one
			t.AddEvent(event)
			return s.writeEnd(t, &failed)
		},
	})
}

// writeEnd queues the end of a run. That it is running by its finished_at, which no index has, has it looked up by its id.
func (s *Store) writeEnd(t *Tx, r *Run) error {
	steps, err := encode(r.Steps)
	if err != nil {
		return err
	}
	var cost, class, reply any
	if c := s.cost(r.Steps); c != nil {
		cost = *c
	}
	if r.ErrorClass != nil {
		class = *r.ErrorClass
	}
	if r.ReplyID != nil {
		reply = *r.ReplyID
	}
	t.Bulk(ReadOnly, r.ID, endRunBulk, []any{
		r.ID, r.Fence, string(r.Status), r.Model, int64(r.InputTokens), int64(r.OutputTokens), string(r.Source), cost, class, string(steps), reply,
		int64(*r.FinishedAt),
	}, nil)
	return nil
}

var endRunBulk = NewBulk(`UPDATE runs SET status = new.status, model = new.model, input_tokens = new.input_tokens, output_tokens = new.output_tokens,
		usage_source = new.usage_source, cost = new.cost, error_class = new.error_class, steps = new.steps, reply_id = new.reply_id,
		finished_at = new.finished_at
	FROM {rows} WHERE runs.id = new.id AND runs.fence = new.fence AND runs.finished_at IS NULL`,
	Column{"id", "text"}, Column{"fence", "bigint"}, Column{"status", "text"}, Column{"model", "text"}, Column{"input_tokens", "bigint"},
	Column{"output_tokens", "bigint"}, Column{"usage_source", "text"}, Column{"cost", "bigint"}, Column{"error_class", "text"}, Column{"steps", "text"},
	Column{"reply_id", "text"}, Column{"finished_at", "bigint"})

func (r *Run) kind(of EventType) EventKind { return EventKind{r.BusinessID, r.AgentID, of} }
