package store

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Reach is what is known of how the database can be reached.
type Reach int

// The states: it answers and takes what is written; it has no room left, mostly on its disk; it
// does not answer, or nobody can use what it answers.
const (
	Reached Reach = iota
	Full
	Away
)

// reach keeps the state. A loss is told once, by whoever finds it out first, and the return once;
// what fails meanwhile, everywhere in the server, is so explained.
type reach struct {
	log *slog.Logger

	mu    sync.Mutex // guards what follows
	state Reach
	since time.Time
	looks int // that went well, since the last loss
}

// lost notes that the database is away, or full.
func (r *reach) lost(cause error) {
	state, words := Away, "the database is away: callers are told to come back, and everything waits for it"
	if diskFull(cause) {
		state, words = Full, "the database has no room left: callers are told to come back, and everything waits for it"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.looks = 0; r.state == state {
		return
	}
	if r.state == Reached {
		r.since = time.Now()
	}
	r.state = state
	r.log.Error(words, "error", cause)
}

// roomLooks is how many looks in a row find a full database with room again: the little that one of
// them writes may fit where a chat's commit does not.
const roomLooks = 3

// regained notes that it answers, and takes what is written.
func (r *reach) regained() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.looks++; r.state == Reached || r.state == Full && r.looks < roomLooks {
		return
	}
	r.state = Reached
	r.log.Info("the database is back", "after_ms", time.Since(r.since).Milliseconds())
}

// Reach says how the database could be reached when anybody last tried.
func (s *Store) Reach() Reach {
	s.reach.mu.Lock()
	defer s.reach.mu.Unlock()
	return s.reach.state
}

const (
	watchEvery    = time.Second
	watchPatience = 2 * time.Second
)

// Watch looks each second whether the database is there, until ctx ends: so its loss is told where
// nobody calls, and its return.
func (s *Store) Watch(ctx context.Context) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		switch err := s.look(ctx); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.reach.lost(err)
		default:
			s.reach.regained()
		}
	}
}

// look asks the database for an answer, and one that was away for a commit, too: what it lacked may
// be room on its disk.
func (s *Store) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchPatience)
	defer cancel()
	err := s.pingOver(ctx, s.keyed) // which lists do not hold up
	if err != nil || s.Reach() == Reached {
		return err
	}
	return s.InTx(ctx, func(ctx context.Context, t *Tx) error {
		_, err := t.NewRaw("INSERT INTO batches (id, created_at) VALUES (?, ?)", NewID("bat"), t.Now).Exec(ctx)
		return err
	})
}

// Level is at which level a part that goes on by itself tells of a failure: what the absence of
// the database explains, which is told once, is of no interest beside that, and neither is what a
// stop has cut short. What merely took too long is told: the database is there.
func (s *Store) Level(err error) slog.Level {
	switch _, unavailable := AsError(err); {
	case errors.Is(err, context.Canceled), s.Reach() != Reached:
		return slog.LevelDebug
	case errors.Is(err, context.DeadlineExceeded), !unavailable:
		return slog.LevelWarn
	}
	return slog.LevelDebug // a lost connection: Watch is about to look
}
