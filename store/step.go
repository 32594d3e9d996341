package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// turnStep is a turn taking its session's lock, or giving it back: one statement and round trip for all the turns of a batch, on
// PostgreSQL. On SQLite there is no round trip to save.
type turnStep struct {
	session string
	lock    func(t *tx) []any // as lockColumns has it; or
	unlock  func(t *tx) []any // as unlockColumns has it

	// What came of it. If it is not done, whoever applies the write finds out why.
	done            bool
	fence, sequence int64
}

const lockSessionsSQL = `UPDATE sessions SET run_id = new.run_id, fence = fence + 1, locked_until = new.locked_until,
	last_sequence = last_sequence + 1, expires_at = new.expires_at
	FROM {rows} WHERE sessions.id = new.id AND sessions.business_id = new.business_id AND sessions.agent_id = new.agent_id
	AND sessions.channel = new.channel AND sessions.expires_at > new.at AND (sessions.run_id IS NULL OR sessions.locked_until < new.at)
	AND NOT EXISTS (SELECT 1 FROM session_line WHERE session_id = sessions.id AND alive_until > new.at)
	RETURNING sessions.id, sessions.fence, sessions.last_sequence`

var lockColumns = []column{
	{"id", "text"},
	{"run_id", "text"},
	{"locked_until", "bigint"},
	{"expires_at", "bigint"},
	{"business_id", "text"},
	{"agent_id", "text"},
	{"channel", "text"},
	{"at", "bigint"},
}

const unlockSessionsSQL = `UPDATE sessions SET run_id = NULL, locked_until = NULL, last_sequence = last_sequence + 2, expires_at = new.expires_at
	FROM {rows} WHERE sessions.id = new.id AND sessions.run_id = new.run_id AND sessions.fence = new.fence
	RETURNING sessions.id, sessions.fence, sessions.last_sequence`

var unlockColumns = []column{{"id", "text"}, {"run_id", "text"}, {"fence", "bigint"}, {"expires_at", "bigint"}}

// takeSteps takes the steps of a batch. Of two steps for one session the second is left to be applied by itself.
func (s *Store) takeSteps(ctx context.Context, t *tx, batch []*write) error {
	var locks, unlocks []*turnStep
	for _, w := range batch {
		switch {
		case w.step == nil:
			continue
		case w.step.lock != nil:
			locks = append(locks, w.step)
		default:
			unlocks = append(unlocks, w.step)
		}
		w.step.done = false
	}
	if !s.remote() {
		return nil
	}
	of := make(map[string]*turnStep, len(locks)+len(unlocks))
	unlocks = firstOf(unlocks, of)
	locks = firstOf(locks, of) // a session that is unlocked first is locked in its turn
	args, err := s.stepsSQL.args([]some{
		{len(unlocks), func(i int) ([]any, error) { return unlocks[i].unlock(t), nil }},
		{len(locks), func(i int) ([]any, error) { return locks[i].lock(t), nil }},
	})
	if err != nil || len(of) == 0 {
		return err
	}
	_, err = t.query(ctx, s.stepsSQL.text, args, func(scan func(...any) error) error {
		var id string
		var fence, sequence int64
		if err := scan(&id, &fence, &sequence); err != nil {
			return err
		}
		x := of[id]
		if x == nil {
			return fmt.Errorf("session %s was not asked for", id)
		}
		x.done, x.fence, x.sequence = true, fence, sequence
		return nil
	})
	if err != nil {
		return fmt.Errorf("unlock %d sessions and lock %d: %w", len(unlocks), len(locks), err)
	}
	return nil
}

// firstOf are the steps whose sessions have none yet, in order of these, and puts them there.
func firstOf(steps []*turnStep, of map[string]*turnStep) []*turnStep {
	slices.SortStableFunc(steps, func(x, y *turnStep) int { return cmp.Compare(x.session, y.session) })
	return slices.DeleteFunc(steps, func(x *turnStep) bool {
		if of[x.session] != nil {
			return true
		}
		of[x.session] = x
		return false
	})
}
