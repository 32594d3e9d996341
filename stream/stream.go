package stream

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"parley/store"
)

// Entry is one stroke of the bell: an event that was committed, or deliveries that changed.
type Entry struct {
	BusinessID string
	Seq        int64    // of the event; 0 for changed deliveries
	EventID    string   // the event's
	Body       []byte   // its document; nil where it is too large for the stream, and is read from SQL
	Deliveries []string // ids of those that changed; none, with Seq 0: look which
}

// Config is what a Stream is opened with.
type Config struct {
	URL string // `redis://…` or `rediss://…`; empty: the embedded Redis
	// Receive gets what the reader has read, in order, in the reader's goroutine: it must not block.
	Receive func([]Entry)
	// Off switches the stream off, as if its Redis were away for good: a seam for tests.
	Off bool
	Log *slog.Logger
}

const (
	inlineBody    = 4 << 10     // larger documents are read from SQL
	queuedBatches = 1024        // commits that wait to be published; beyond, they are dropped
	pipelined     = 256         // entries a round trip at most
	readCount     = 200         // entries a read
	blockTime     = time.Second // a blocked XREAD does not notice that its context ended
	retryAfter    = 250 * time.Millisecond
)

// Stream is the connection to Redis. Its methods are safe for concurrent use.
type Stream struct {
	cfg      Config
	client   redis.UniversalClient
	embedded *embedded // nil with a real Redis
	keys     []string
	maxLen   int64
	queue    chan []Entry
	sound    atomic.Bool  // the reader reads
	losses   atomic.Int64 // how often entries were, or may have been, lost
}

// Open connects to Redis. With a real one it does not wait for an answer: a Redis that is away is a degraded state.
func Open(cfg Config) (*Stream, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Stream{cfg: cfg, queue: make(chan []Entry, queuedBatches)}
	shards := store.Shards
	if cfg.URL == "" {
		e, err := startEmbedded()
		if err != nil {
			return nil, err
		}
		// One stream, and short: miniredis reads a stream from its head. A burst that outruns the reader is read from SQL.
		s.embedded, s.client, s.maxLen, shards = e, e.client(), pipelined, 1
	} else {
		options, err := redis.ParseURL(cfg.URL)
		if err != nil {
			return nil, errors.New("the Redis URL does not parse as redis://user:password@host:port/database or rediss://…")
		}
		options.MaxRetries = -1 // whoever calls knows better what to do without an answer
		options.DialTimeout, options.ReadTimeout, options.WriteTimeout = 2*time.Second, 2*time.Second, 2*time.Second
		s.client, s.maxLen = redis.NewClient(options), 10_000
	}
	for i := range shards {
		s.keys = append(s.keys, fmt.Sprintf("parley:{%d}:events", i))
	}
	return s, nil
}

// Client is the Redis itself, for what else is kept there.
func (s *Stream) Client() redis.UniversalClient { return s.client }

// Embedded says whether the Redis is inside this process.
func (s *Stream) Embedded() bool { return s.embedded != nil }

// Ringing says whether what is published is being read just now.
func (s *Stream) Ringing() bool { return s.sound.Load() }

// Losses counts the times that entries were, or may have been, lost. Who keeps count of sequences compares.
func (s *Stream) Losses() int64 { return s.losses.Load() }

// Publish rings for committed events. It never blocks.
func (s *Stream) Publish(events []*store.Event) {
	entries := make([]Entry, len(events))
	for i, e := range events {
		entries[i] = Entry{BusinessID: e.BusinessID, Seq: e.Seq, EventID: e.ID}
		if len(e.Body) <= inlineBody {
			entries[i].Body = e.Body
		}
	}
	s.enqueue(entries)
}

// PublishDeliveries rings for changed deliveries of a business; without ids, for any number of them. It never blocks.
func (s *Stream) PublishDeliveries(business string, ids ...string) {
	s.enqueue([]Entry{{BusinessID: business, Deliveries: ids}})
}

func (s *Stream) enqueue(entries []Entry) {
	if s.cfg.Off {
		return
	}
	select {
	case s.queue <- entries:
	default:
		s.losses.Add(1)
	}
}

// Run publishes and reads until ctx ends, through any outage of Redis.
func (s *Stream) Run(ctx context.Context) error {
	if s.cfg.Off {
		<-ctx.Done()
		return s.close()
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { s.publish(ctx); return nil })
	group.Go(func() error { s.read(ctx); return nil })
	if s.embedded != nil {
		group.Go(func() error { s.embedded.tick(ctx); return nil })
	}
	<-ctx.Done()
	return errors.Join(s.close(), group.Wait()) // closing ends a blocked read
}

func (s *Stream) close() error {
	err := s.client.Close()
	if s.embedded != nil {
		s.embedded.server.Close()
	}
	return err
}

// publish writes what is queued, as much as waits in one round trip.
func (s *Stream) publish(ctx context.Context) {
	for {
		var batch []Entry
		select {
		case <-ctx.Done():
			return
		case batch = <-s.queue:
		}
	fill:
		for len(batch) < pipelined {
			select {
			case more := <-s.queue:
				batch = append(batch, more...)
			default:
				break fill
			}
		}
		_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, e := range batch {
				p.XAdd(ctx, &redis.XAddArgs{Stream: s.keyOf(e.BusinessID), MaxLen: s.maxLen, Approx: s.embedded == nil, Values: e.values()})
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			// They are in SQL, and are found missing by their sequence.
			s.losses.Add(1)
			s.sound.Store(false)
			s.cfg.Log.Warn("publish to the stream", "entries", len(batch), "error", err)
		}
	}
}

func (s *Stream) keyOf(business string) string {
	return s.keys[int(crc32.ChecksumIEEE([]byte(business)))%store.Shards%len(s.keys)]
}

func (e Entry) values() []string {
	if e.Seq == 0 {
		return []string{"b", e.BusinessID, "d", strings.Join(e.Deliveries, ",")}
	}
	v := []string{"b", e.BusinessID, "s", strconv.FormatInt(e.Seq, 10), "i", e.EventID}
	if e.Body != nil {
		v = append(v, "e", string(e.Body))
	}
	return v
}

func parseEntry(values map[string]any) (Entry, error) {
	get := func(k string) string { s, _ := values[k].(string); return s }
	e := Entry{BusinessID: get("b"), EventID: get("i")}
	if e.BusinessID == "" {
		return e, errors.New("an entry of the stream has no business")
	}
	if raw := get("s"); raw != "" {
		seq, err := strconv.ParseInt(raw, 10, 64)
		if err != nil || seq < 1 {
			return e, fmt.Errorf("an entry of the stream has the sequence %q", raw)
		}
		e.Seq = seq
		if body := get("e"); body != "" {
			e.Body = []byte(body)
		}
		return e, nil
	}
	if ids := get("d"); ids != "" {
		e.Deliveries = strings.Split(ids, ",")
	}
	return e, nil
}

// read follows every shard's stream from its present end.
func (s *Stream) read(ctx context.Context) {
	var at []string // the last id seen, by key; nil: to be found
	for ctx.Err() == nil {
		err := func() (err error) {
			if at == nil {
				if at, err = s.ends(ctx); err != nil {
					return err
				}
				// What was published before this moment was not read: let the readers compare.
				s.losses.Add(1)
				s.sound.Store(true)
			}
			return s.readOnce(ctx, at)
		}()
		switch {
		case errors.Is(err, redis.Nil): // nothing new
			if err := s.checkEnds(ctx, &at); err == nil {
				s.sound.Store(true)
				continue
			}
		case err == nil:
			s.sound.Store(true)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if s.sound.Swap(false) {
			s.cfg.Log.Warn("the stream is away: going on from SQL", "error", err)
		}
		s.losses.Add(1)
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

func (s *Stream) readOnce(ctx context.Context, at []string) error {
	streams, err := s.client.XRead(ctx, &redis.XReadArgs{Streams: append(append([]string{}, s.keys...), at...), Count: readCount, Block: blockTime}).Result()
	if err != nil {
		return err
	}
	var entries []Entry
	for _, stream := range streams {
		for i, key := range s.keys {
			if key == stream.Stream && len(stream.Messages) > 0 {
				at[i] = stream.Messages[len(stream.Messages)-1].ID
			}
		}
		for _, m := range stream.Messages {
			entry, err := parseEntry(m.Values)
			if err != nil {
				s.cfg.Log.Error("read the stream", "key", stream.Stream, "id", m.ID, "error", err)
				continue
			}
			entries = append(entries, entry)
		}
	}
	s.cfg.Receive(entries)
	return nil
}

// ends finds the last id of each stream.
func (s *Stream) ends(ctx context.Context) ([]string, error) {
	last := make([]*redis.XMessageSliceCmd, len(s.keys))
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range s.keys {
			last[i] = p.XRevRangeN(ctx, key, "+", "-", 1)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	at := make([]string, len(s.keys))
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
func (s *Stream) checkEnds(ctx context.Context, at *[]string) error {
	ends, err := s.ends(ctx)
	if err != nil {
		return err
	}
	for i := range ends {
		if idBefore(ends[i], (*at)[i]) {
			s.losses.Add(1)
			(*at)[i] = "0-0" // whatever is there by now was not read
		}
	}
	return nil
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
