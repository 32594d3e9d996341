package stream

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	readCount  = 200         // entries a read
	blockTime  = time.Second // a blocked XREAD does not notice that its context ended
	retryAfter = 250 * time.Millisecond
)

// reader follows some of the streams from their present ends: all of them, but in a cluster one.
type reader struct {
	s     *Stream
	keys  []string
	at    []string    // the last id seen, by key; nil: to be found
	sound atomic.Bool // it reads
}

// run reads until ctx ends, through any outage.
func (r *reader) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := r.step(ctx)
		if err == nil {
			if !r.sound.Swap(true) {
				r.s.tellRead(nil)
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		r.sound.Store(false)
		r.s.tellRead(err)
		r.s.losses.Add(1)
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

// step finds the streams' ends, if it does not know them, and reads once.
func (r *reader) step(ctx context.Context) (err error) {
	if r.at == nil {
		if r.at, err = r.ends(ctx); err != nil {
			return err
		}
		// What was published before this moment was not read: let those who count compare.
		r.s.losses.Add(1)
		r.sound.Store(true)
		r.s.tellRead(nil)
	}
	err = r.read(ctx)
	if errors.Is(err, redis.Nil) { // nothing new
		return r.checkEnds(ctx)
	}
	return err
}

func (r *reader) read(ctx context.Context) error {
	streams, err := r.s.client.XRead(ctx, &redis.XReadArgs{Streams: append(append([]string{}, r.keys...), r.at...), Count: readCount, Block: blockTime}).Result()
	if err != nil {
		return err
	}
	var entries []Entry
	for _, stream := range streams {
		for i, key := range r.keys {
			if key == stream.Stream && len(stream.Messages) > 0 {
				if len(stream.Messages) == readCount {
					if err := r.checkStart(ctx, key, r.at[i]); err != nil {
						return err
					}
				}
				r.at[i] = stream.Messages[len(stream.Messages)-1].ID
			}
		}
		for _, m := range stream.Messages {
			entry, err := parseEntry(m.Values)
			if err != nil {
				r.s.cfg.Log.Error("read the stream", "key", stream.Stream, "id", m.ID, "error", err)
				continue
			}
			entry.Own = m.Values["o"] == r.s.origin
			entries = append(entries, entry)
		}
	}
	r.s.receive.Lock()
	defer r.s.receive.Unlock()
	r.s.cfg.Receive(entries)
	return nil
}

// ends finds the last id of each stream.
func (r *reader) ends(ctx context.Context) ([]string, error) {
	last := make([]*redis.XMessageSliceCmd, len(r.keys))
	_, err := r.s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range r.keys {
			last[i] = p.XRevRangeN(ctx, key, "+", "-", 1)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	at := make([]string, len(r.keys))
	for i, cmd := range last {
		at[i] = "0-0"
		if messages := cmd.Val(); len(messages) > 0 {
			at[i] = messages[0].ID
		}
	}
	return at, nil
}

// checkEnds notices, when nothing is new, that a stream has gone back: a flushed or restarted Redis may give ids below those
// seen, for which a reader would wait for ever.
func (r *reader) checkEnds(ctx context.Context) error {
	ends, err := r.ends(ctx)
	if err != nil {
		return err
	}
	for i := range ends {
		if idBefore(ends[i], r.at[i]) {
			r.s.losses.Add(1)
			r.at[i] = "0-0" // whatever is there by now was not read
		}
	}
	return nil
}

// checkStart notices that a reader far behind may have lost entries: those that the stream has dropped for its length.
func (r *reader) checkStart(ctx context.Context, key, at string) error {
	first, err := r.s.client.XRangeN(ctx, key, "-", "+", 1).Result()
	if err == nil && len(first) > 0 && idBefore(at, first[0].ID) {
		r.s.losses.Add(1)
	}
	return err
}

// idBefore compares two stream ids, `milliseconds-number`.
func idBefore(a, b string) bool {
	am, an := splitID(a)
	bm, bn := splitID(b)
	return am < bm || am == bm && an < bn
}

func splitID(id string) (ms, n uint64) {
	left, right, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(left, 10, 64)
	n, _ = strconv.ParseUint(right, 10, 64)
	return ms, n
}
