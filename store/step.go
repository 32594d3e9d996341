package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// turnStep is a turn taking its session's lock, or giving it back: a statement and a round trip for all the turns of a batch, on
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
	if err := t.take(ctx, s.unlockSessionsSQL, unlocks, func(x *turnStep) []any { return x.unlock(t) }); err != nil {
		return fmt.Errorf("unlock %d sessions: %w", len(unlocks), err)
	}
	locks = slices.DeleteFunc(locks, func(x *turnStep) bool { // after what unlocks it, which is applied in its turn
		return slices.ContainsFunc(unlocks, func(u *turnStep) bool { return u.session == x.session })
	})
	if err := t.take(ctx, s.lockSessionsSQL, locks, func(x *turnStep) []any { return x.lock(t) }); err != nil {
		return fmt.Errorf("lock %d sessions: %w", len(locks), err)
	}
	return nil
}

func (t *tx) take(ctx context.Context, b *bulk, steps []*turnStep, row func(*turnStep) []any) error {
	slices.SortStableFunc(steps, func(x, y *turnStep) int { return cmp.Compare(x.session, y.session) })
	steps = slices.CompactFunc(steps, func(x, y *turnStep) bool { return x.session == y.session })
	if len(steps) == 0 {
		return nil
	}
	of := make(map[string]*turnStep, len(steps))
	for _, x := range steps {
		of[x.session] = x
	}
	_, err := t.run(ctx, b, len(steps), func(i int) ([]any, error) { return row(steps[i]), nil }, func(scan func(...any) error) error {
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
	return err
}
