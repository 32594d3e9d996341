package store

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// SQLite's log begins anew once all of it stands in the database and nobody reads from it. With lists that follow one another
// without a pause that never happens, and the log grows with each chat. So when it has grown large, lists wait for a moment.

const (
	logAllowed  = 32 << 20    // bytes of the log; SQLite itself copies it after 16 MB
	logLook     = time.Second // how often it is looked at
	logPatience = time.Second // how long lists are kept waiting for those before them to end
)

// pause holds up who reads for a viewer.
type pause struct {
	mu      sync.Mutex // guards what follows
	readers int
	ended   chan struct{} // closed when there are none; nil while nobody waits for that
	open    chan struct{} // closed when lists may go on; nil while they may
}

// enter counts a reader in, once there is no pause. It returns false where ctx ends before.
func (p *pause) enter(ctx context.Context) bool {
	for {
		p.mu.Lock()
		open := p.open
		if open == nil {
			p.readers++
			p.mu.Unlock()
			return true
		}
		p.mu.Unlock()
		select {
		case <-open:
		case <-ctx.Done():
			return false
		}
	}
}

func (p *pause) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readers--; p.readers == 0 && p.ended != nil {
		close(p.ended)
		p.ended = nil
	}
}

// during keeps new readers waiting while do runs, which begins when those before them have ended, or not at all.
func (p *pause) during(ctx context.Context, patience time.Duration, do func() error) error {
	open, ended := make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	p.open = open
	if p.readers == 0 {
		close(ended)
	} else {
		p.ended = ended
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.open, p.ended = nil, nil
		p.mu.Unlock()
		close(open)
	}()
	select {
	case <-ended:
		return do()
	case <-time.After(patience):
		return nil
	case <-ctx.Done():
		return nil
	}
}

// RunCheckpoints keeps SQLite's log from growing without a bound, until ctx ends. PostgreSQL sees to its own.
func (s *Store) RunCheckpoints(ctx context.Context) error {
	if s.remote() {
		return nil
	}
	ticker := time.NewTicker(logLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		info, err := os.Stat(SQLitePath(s.cfg.URL) + "-wal")
		if err != nil || info.Size() < logAllowed {
			continue
		}
		err = s.fair.pause.during(ctx, logPatience, func() error {
			var busy, pages, copied int // a reader by key that comes in between is waited for, for a moment: else the next look tries again
			return s.checkpoints.NewRaw("PRAGMA wal_checkpoint(TRUNCATE)").Scan(ctx, &busy, &pages, &copied)
		})
		if err != nil && ctx.Err() == nil {
			s.log.Log(ctx, s.Level(err), "let SQLite's log begin anew", "error", fmt.Errorf("checkpoint: %w", err))
		}
	}
}
