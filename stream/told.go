package stream

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// told is what the log was told of Redis: that it is away and back, and that it refuses and takes
// what is published, each once.
type told struct {
	sync.Mutex // guards what follows
	away       bool
	since      time.Time
	refusing   bool
}

// tellRead tells of what came of a reading.
func (s *Stream) tellRead(err error) {
	t := &s.told
	t.Lock()
	defer t.Unlock()
	switch {
	case err != nil && !t.away:
		t.away, t.since = true, time.Now()
		s.cfg.Log.Error("Redis is away: going on from SQL", "error", err)
	case err == nil && t.away && s.Ringing():
		t.away = false
		s.cfg.Log.Info("Redis is back", "after_ms", time.Since(t.since).Milliseconds())
	}
}

// tellPublished tells of what came of a publication. Of a Redis that cannot be reached its readers
// tell; one that answers and takes nothing, as when its memory is full, they do not notice.
func (s *Stream) tellPublished(err error) {
	t := &s.told
	t.Lock()
	defer t.Unlock()
	var refusal redis.Error
	refused := errors.As(err, &refusal)
	switch {
	case refused && !t.away && !t.refusing:
		t.refusing = true
		s.cfg.Log.Error("Redis refuses what is published: going on from SQL", "error", err)
	case err == nil && t.refusing:
		t.refusing = false
		s.cfg.Log.Info("Redis takes what is published again")
	}
}
