package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"
)

// Readers of events go by numbers: of a span of a feed all there are, or those that a filter's index names.

// EventsAt reads the events with these numbers, oldest first. What retention has removed is missing.
func (s *Store) EventsAt(ctx context.Context, business string, seqs []int64) ([]*Event, error) {
	if len(seqs) == 0 {
		return nil, nil
	}
	var events []*Event
	err := s.read.NewSelect().Model(&events).Where("event.business_id = ? AND event.seq IN (?)", business, bun.List(seqs)).Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %d events of %s: %w", len(seqs), business, err)
	}
	slices.SortFunc(events, func(a, b *Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return events, nil
}

// EventsAfter reads up to limit events of a business after a number and up to another, oldest first.
func (s *Store) EventsAfter(ctx context.Context, business string, after, upTo int64, filter *EventFilter, limit int) ([]*Event, error) {
	if filter.All() {
		return s.eventsBetween(ctx, business, after, upTo, oldestFirst, limit)
	}
	seqs, err := s.Matching(ctx, business, after, upTo, filter, limit)
	if err != nil {
		return nil, err
	}
	return s.EventsAt(ctx, business, seqs)
}

// EventsBefore reads up to limit events of a business with numbers below before and above after, newest first.
func (s *Store) EventsBefore(ctx context.Context, business string, after, before int64, filter *EventFilter, limit int) ([]*Event, error) {
	if filter.All() {
		return s.eventsBetween(ctx, business, after, before-1, newestFirst, limit)
	}
	seqs, err := s.matching(ctx, business, after, before-1, filter, newestFirst, limit)
	if err != nil {
		return nil, err
	}
	events, err := s.EventsAt(ctx, business, seqs)
	slices.Reverse(events)
	return events, err
}

func (s *Store) eventsBetween(ctx context.Context, business string, after, upTo int64, o order, limit int) ([]*Event, error) {
	var events []*Event
	err := s.read.NewSelect().Model(&events).Where("event.business_id = ? AND event.seq > ? AND event.seq <= ?", business, after, upTo).
		Order("event.seq" + string(o)).Limit(int64(limit)).Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read events of %s between %d and %d: %w", business, after, upTo, err)
	}
	return events, nil
}

// Matching reads the first up to limit numbers after one and up to another whose events the filter selects, in order.
func (s *Store) Matching(ctx context.Context, business string, after, upTo int64, filter *EventFilter, limit int) ([]int64, error) {
	return s.matching(ctx, business, after, upTo, filter, oldestFirst, limit)
}

func (s *Store) matching(ctx context.Context, business string, after, upTo int64, filter *EventFilter, o order, limit int) ([]int64, error) {
	var parts []*bun.SelectQuery
	part := func(where string, args ...any) *bun.SelectQuery {
		q := s.read.NewSelect().TableExpr("events").Column("seq").Where("business_id = ? AND seq > ? AND seq <= ?", business, after, upTo).
			Where(where, args...).Order("seq" + string(o)).Limit(int64(limit))
		parts = append(parts, q)
		return q
	}
	types, channels := known(filter.Types, EventTypes), known(filter.Channels, Channels)
	switch {
	case filter.SessionID != nil || filter.ConversationID != nil:
		var q *bun.SelectQuery
		if filter.SessionID != nil {
			q = part("session_id = ?", *filter.SessionID)
		} else {
			q = part("conversation_id = ?", *filter.ConversationID)
		}
		filter.narrow(q)
	case filter.AgentID != nil:
		for _, kind := range types {
			filter.onChannels(part("agent_id = ? AND type = ?", *filter.AgentID, kind))
		}
	default:
		for _, channel := range channels {
			for _, kind := range types {
				part("channel = ? AND type = ?", channel, kind)
			}
		}
	}
	if len(parts) == 0 {
		return nil, nil
	}
	var seqs []int64
	if err := s.atOnce(parts...).Scan(ctx, &seqs); err != nil {
		return nil, fmt.Errorf("find events of %s between %d and %d: %w", business, after, upTo, err)
	}
	slices.Sort(seqs)
	if n := len(seqs) - limit; n > 0 && o == newestFirst {
		seqs = seqs[n:]
	}
	return seqs[:min(len(seqs), limit)], nil
}

// known are those of all that are wanted, each once: all, if none is named.
func known[T comparable](wanted, all []T) []T {
	if len(wanted) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(v T) bool { return !slices.Contains(wanted, v) })
}

// All says whether the filter selects everything.
func (f *EventFilter) All() bool {
	return f == nil || f.AgentID == nil && f.ConversationID == nil && f.SessionID == nil &&
		len(known(f.Types, EventTypes)) == len(EventTypes) && len(known(f.Channels, Channels)) == len(Channels)
}

// narrow adds all that the filter asks for.
func (f *EventFilter) narrow(q *bun.SelectQuery) {
	if len(f.Types) > 0 {
		q.Where("type IN (?)", bun.List(known(f.Types, EventTypes)))
	}
	if f.AgentID != nil {
		q.Where("agent_id = ?", *f.AgentID)
	}
	if f.ConversationID != nil {
		q.Where("conversation_id = ?", *f.ConversationID)
	}
	f.onChannels(q)
}

func (f *EventFilter) onChannels(q *bun.SelectQuery) {
	if len(f.Channels) > 0 {
		q.Where("channel IN (?)", bun.List(known(f.Channels, Channels)))
	}
}

// EventsByID reads events by their ids, in no order, those of tests too.
func (s *Store) EventsByID(ctx context.Context, ids []string) (map[string]*Event, error) {
	var events []*Event
	if err := s.read.NewSelect().Model(&events).Where("event.id IN (?)", bun.List(ids)).Scan(ctx); err != nil {
		return nil, fmt.Errorf("read %d events: %w", len(ids), err)
	}
	of := make(map[string]*Event, len(events))
	for _, e := range events {
		of[e.ID] = e
	}
	return of, s.testEvents(ctx, ids, of)
}

// Extent is what a business's feed holds: events with Pruned < seq <= Last.
type Extent struct {
	BusinessID string `bun:"id"`
	Last       int64  `bun:"seq"`
	Pruned     int64  `bun:"pruned_seq"`
}

// Extents reads the feeds' extents of some businesses, a few hundred at a time.
func (s *Store) Extents(ctx context.Context, businesses ...string) (extents []Extent, err error) {
	for some := range slices.Chunk(businesses, 500) {
		var read []Extent
		err := s.read.NewRaw("SELECT id, seq, pruned_seq FROM businesses WHERE id IN (?)", bun.List(some)).Scan(ctx, &read)
		if err != nil {
			return nil, fmt.Errorf("read the extents of %d feeds: %w", len(businesses), err)
		}
		extents = append(extents, read...)
	}
	return extents, nil
}

// Extent reads the extent of one business's feed.
func (s *Store) Extent(ctx context.Context, business string) (Extent, error) {
	extents, err := s.Extents(ctx, business)
	if err != nil {
		return Extent{}, err
	}
	if len(extents) == 0 {
		return Extent{}, fmt.Errorf("read the extent of %s: no such business", business)
	}
	return extents[0], nil
}

// testEvents reads events of tests by their ids, into of. They are kept beside the feed, of which they are no part.
func (s *Store) testEvents(ctx context.Context, ids []string, of map[string]*Event) error {
	var missing []string
	for _, id := range ids {
		if of[id] == nil {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var events []*Event
	if err := s.read.NewSelect().Model(&events).ModelTableExpr("test_events AS event").Where("event.id IN (?)", bun.List(missing)).Scan(ctx); err != nil {
		return fmt.Errorf("read %d events of tests: %w", len(missing), err)
	}
	for _, e := range events {
		of[e.ID] = e
	}
	return nil
}
