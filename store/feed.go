package store

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
)

// Cursor is a place in a business's feed: after the event with this number. It is opaque to clients: a version, the
// business, the number. Never a stream id: those start again when a Redis is flushed.
type Cursor struct {
	BusinessID string
	Seq        int64
}

const cursorVersion = 1

func (c Cursor) String() string {
	b := append(make([]byte, 0, 64), cursorVersion)
	b = binary.AppendUvarint(b, uint64(c.Seq))
	return base64.RawURLEncoding.EncodeToString(append(b, c.BusinessID...))
}

// ParseCursor reads a cursor of a business's feed. One that is garbled, or another business's, is a fault of the argument.
func ParseCursor(business, argument, raw string) (Cursor, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(raw)
	if err == nil && len(b) > 2 && b[0] == cursorVersion {
		seq, n := binary.Uvarint(b[1:])
		c := Cursor{Seq: int64(seq)}
		if n > 0 && seq <= math.MaxInt64 {
			c.BusinessID = string(b[1+n:])
			switch {
			case c.String() != raw:
			case c.BusinessID == business:
				return c, nil
			default:
				return Cursor{}, valueError("this cursor belongs to another feed").Under(argument).Err()
			}
		}
	}
	return Cursor{}, valueError("this is not a cursor of the feed").Under(argument).Err()
}

// ResumeAt reads where to go on after a cursor, and refuses with ErrCursorExpired where the events after it are no longer
// kept, or the cursor tells of events that this database never had.
func (s *Store) ResumeAt(ctx context.Context, business, raw string) (int64, error) {
	c, err := ParseCursor(business, "after", raw)
	if err != nil {
		return 0, err
	}
	extent, err := s.Extent(ctx, business)
	if err != nil {
		return 0, err
	}
	if c.Seq < extent.Pruned || c.Seq > extent.Last {
		return 0, ErrCursorExpired
	}
	return c.Seq, nil
}

// FeedEdge is an event with its cursor in the feed.
func (e *Event) FeedEdge() *EventEdge {
	return &EventEdge{Cursor: Cursor{e.BusinessID, e.Seq}.String(), Node: e}
}

// EventPage asks for a page of a feed: the first First after After, or the last Last before Before.
type EventPage struct {
	First, Last   *int
	After, Before *string
}

// Events reads a page of a business's feed, oldest first.
func (s *Store) Events(ctx context.Context, business string, filter *EventFilter, page EventPage) (*EventConnection, error) {
	filter = filter.Distinct()
	var faults Faults
	for _, n := range []struct {
		name  string
		value *int
	}{{"first", page.First}, {"last", page.Last}} {
		if n.value != nil && (*n.value < 0 || *n.value > MaxPage) {
			faults = append(faults, valueError(fmt.Sprintf("%s must be between 0 and %d", n.name, MaxPage)).Under(n.name)...)
		}
	}
	if page.First != nil && page.Last != nil {
		faults = append(faults, valueError("give first or last, not both").Under("last")...)
	}
	if err := faults.Err(); err != nil {
		return nil, err
	}
	extent, err := s.Extent(ctx, business)
	if err != nil {
		return nil, err
	}
	after, before := extent.Pruned, extent.Last+1
	if page.After != nil {
		c, err := ParseCursor(business, "after", *page.After)
		if err != nil {
			return nil, err
		}
		after = c.Seq
	}
	if page.Before != nil {
		c, err := ParseCursor(business, "before", *page.Before)
		if err != nil {
			return nil, err
		}
		before = min(before, c.Seq)
	}
	var events *EventConnection
	if page.Last != nil {
		events, err = s.lastEvents(ctx, business, after, before, filter, *page.Last, page.Before != nil)
	} else {
		events, err = s.firstEvents(ctx, business, after, before, filter, page)
	}
	if err == nil && page.After != nil { // last: what was removed while the page was read would else be missing from it in silence
		_, err = s.ResumeAt(ctx, business, *page.After)
	}
	return events, err
}

func (s *Store) firstEvents(ctx context.Context, business string, after, before int64, filter *EventFilter, page EventPage) (*EventConnection, error) {
	first := DefaultPage
	set(&first, page.First)
	events, err := s.EventsAfter(ctx, business, after, before-1, filter, first+1)
	if err != nil {
		return nil, err
	}
	more := len(events) > first
	return eventConnection(events[:min(len(events), first)], more, page.After != nil), nil
}

func (s *Store) lastEvents(ctx context.Context, business string, after, before int64, filter *EventFilter, last int, next bool) (*EventConnection, error) {
	events, err := s.EventsBefore(ctx, business, after, before, filter, last+1)
	if err != nil {
		return nil, err
	}
	more := len(events) > last
	events = events[:min(len(events), last)]
	for i, j := 0, len(events)-1; i < j; i, j = i+1, j-1 {
		events[i], events[j] = events[j], events[i]
	}
	return eventConnection(events, next, more), nil
}

func eventConnection(events []*Event, next, previous bool) *EventConnection {
	edges := make([]EventEdge, len(events))
	for i, e := range events {
		edges[i] = *e.FeedEdge()
	}
	return &EventConnection{Edges: edges, PageInfo: pageInfo(edges, next, previous)}
}

// FeedCursor is the feed's end as it is now: whoever subscribes after it misses nothing.
func (s *Store) FeedCursor(ctx context.Context, business string) (string, error) {
	extent, err := s.Extent(ctx, business)
	if err != nil {
		return "", err
	}
	return Cursor{business, extent.Last}.String(), nil
}
