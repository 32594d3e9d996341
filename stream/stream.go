package stream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"parley/store"
	"parley/store/hook"
)

// Entry is one stroke of the bell: an event that was committed, or deliveries that changed.
type Entry struct {
	BusinessID string
	Seq        int64  // of the event; 0 for changed deliveries
	EventID    string // the event's
	Type       store.EventType
	Lane       string            // its conversation or session
	Body       []byte            // its document; nil where it is too large for the stream, and is read from SQL
	Recipients []store.Recipient // the endpoints for which there is a delivery of it
	More       bool              // there are others
	Deliveries []string          // ids of those that changed; none, with Seq 0: endpoints, or what is due, changed
	Own        bool              // it was published here
}

// Config is what a Stream is opened with.
type Config struct {
	URL string // of Redis, in one of the forms of connect; empty: the embedded Redis
	// Receive gets what was read, in order within a business, one call at a time. It must neither block nor change it.
	Receive func([]Entry)
	// Own gets what is published here, at once, whatever becomes of it; nil: nobody wants it. It must neither block nor change it.
	Own func([]Entry)
	// Off switches the stream off, as if its Redis were away for good: a seam for tests.
	Off bool
	Log *slog.Logger
}

const (
	inlineBody    = 4 << 10 // larger documents are read from SQL
	queuedBatches = 1024    // commits that wait to be published; beyond, they are dropped
	pipelined     = 256     // entries a round trip at most
)

// Stream is the connection to Redis. Its methods are safe for concurrent use.
type Stream struct {
	cfg      Config
	client   redis.UniversalClient
	embedded *embedded // nil with a real Redis
	keys     []string
	maxLen   int64
	origin   string // what is published here bears it
	queue    chan []Entry
	readers  []*reader
	receive  sync.Mutex // held while Config.Receive runs
	told     told
	losses   atomic.Int64 // how often entries were, or may have been, lost
}

// Open connects to Redis. With a real one it does not wait for an answer: a Redis that is away is a degraded state.
func Open(cfg Config) (*Stream, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Stream{cfg: cfg, origin: rand.Text()[:10], queue: make(chan []Entry, queuedBatches)}
	shards := hook.Shards
	if cfg.URL == "" {
		e, err := startEmbedded()
		if err != nil {
			return nil, err
		}
		// One stream, and short: miniredis reads a stream from its head. A burst that outruns the reader is read from SQL.
		s.embedded, s.client, s.maxLen, shards = e, e.client(), pipelined, 1
	} else {
		client, err := connect(cfg.URL)
		if err != nil {
			return nil, err
		}
		s.client, s.maxLen = client, 10_000
	}
	for i := range shards {
		s.keys = append(s.keys, fmt.Sprintf("parley:{%d}:events", i))
	}
	s.readers = []*reader{{s: s, keys: s.keys}}
	if _, cluster := s.client.(*redis.ClusterClient); cluster {
		s.readers = nil // a command's keys must be in one slot there
		for _, key := range s.keys {
			s.readers = append(s.readers, &reader{s: s, keys: []string{key}})
		}
	}
	return s, nil
}

// Client is the Redis itself, for what else is kept there.
func (s *Stream) Client() redis.UniversalClient { return s.client }

// Embedded says whether the Redis is inside this process.
func (s *Stream) Embedded() bool { return s.embedded != nil }

// Ringing says whether what is published is being read just now.
func (s *Stream) Ringing() bool {
	for _, r := range s.readers {
		if !r.sound.Load() {
			return false
		}
	}
	return true
}

// Losses counts the times that entries were, or may have been, lost. Who keeps count of sequences compares.
func (s *Stream) Losses() int64 { return s.losses.Load() }

// Publish rings for committed events. It never blocks.
func (s *Stream) Publish(events []*store.Event) {
	entries := make([]Entry, len(events))
	for i, e := range events {
		entries[i] = Entry{
			BusinessID: e.BusinessID, Seq: e.Seq, EventID: e.ID, Type: e.Type, Lane: e.Lane(), Recipients: e.Recipients, More: e.MoreRecipients,
		}
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
	if s.cfg.Own != nil {
		s.cfg.Own(entries)
	}
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
	for _, r := range s.readers {
		group.Go(func() error { r.run(ctx); return nil })
	}
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
		_, err := s.together()(ctx, func(p redis.Pipeliner) error {
			for _, e := range batch {
				p.XAdd(ctx, &redis.XAddArgs{Stream: s.keyOf(e.BusinessID), MaxLen: s.maxLen, Approx: s.embedded == nil, Values: append(e.values(), "o", s.origin)})
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			// They are in SQL, and are found missing by their sequence.
			s.losses.Add(1)
			for _, r := range s.readers {
				r.sound.Store(false) // until it has read again
			}
		}
		if ctx.Err() == nil {
			s.tellPublished(err)
		}
	}
}

// together sends commands in one round trip and, where that can be, as one: so a reader has the events of a commit at once, and each
// subscriber one write. A transaction of a cluster may have keys of one slot alone.
func (s *Stream) together() func(context.Context, func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	if _, cluster := s.client.(*redis.ClusterClient); cluster {
		return s.client.Pipelined
	}
	return s.client.TxPipelined
}

func (s *Stream) keyOf(business string) string {
	return s.keys[int(crc32.ChecksumIEEE([]byte(business)))%hook.Shards%len(s.keys)]
}

func (e Entry) values() []string {
	if e.Seq == 0 {
		return []string{"b", e.BusinessID, "d", strings.Join(e.Deliveries, ",")}
	}
	v := []string{"b", e.BusinessID, "s", strconv.FormatInt(e.Seq, 10), "i", e.EventID, "t", string(e.Type), "l", e.Lane}
	if len(e.Recipients) > 0 {
		v = append(v, "r", formatRecipients(e.Recipients, e.More))
	}
	if e.Body != nil {
		v = append(v, "e", string(e.Body))
	}
	return v
}

func parseEntry(values map[string]any) (Entry, error) {
	get := func(k string) string { s, _ := values[k].(string); return s }
	e := Entry{BusinessID: get("b"), EventID: get("i"), Type: store.EventType(get("t")), Lane: get("l")}
	if e.BusinessID == "" {
		return e, errors.New("an entry of the stream has no business")
	}
	if raw := get("s"); raw != "" {
		seq, err := strconv.ParseInt(raw, 10, 64)
		if err != nil || seq < 1 {
			return e, fmt.Errorf("an entry of the stream has the sequence %q", raw)
		}
		e.Seq = seq
		if e.Recipients, e.More, err = parseRecipients(get("r")); err != nil {
			return e, err
		}
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

// formatRecipients writes `endpoint:epoch,…`, with a `+` at the end if there are others.
func formatRecipients(of []store.Recipient, more bool) string {
	var b strings.Builder
	for i, r := range of {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(r.EndpointID)
		b.WriteByte(':')
		b.WriteString(strconv.FormatInt(r.Epoch, 10))
	}
	if more {
		b.WriteByte('+')
	}
	return b.String()
}

func parseRecipients(text string) (of []store.Recipient, more bool, err error) {
	text, more = strings.CutSuffix(text, "+")
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		endpoint, raw, _ := strings.Cut(part, ":")
		epoch, err := strconv.ParseInt(raw, 10, 64)
		if err != nil {
			return nil, false, fmt.Errorf("an entry of the stream has the recipient %q", part)
		}
		of = append(of, store.Recipient{EndpointID: endpoint, Epoch: epoch})
	}
	return of, more, nil
}
