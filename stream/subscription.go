package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"parley/store"
)

// Subscription is one reader's way through a feed. It pulls: its position is its own, so a slow reader delays nobody and
// nothing is ever dropped for it; what the hub no longer remembers it reads from SQL.
type Subscription struct {
	hub    *Hub
	feed   *feed
	filter *store.EventFilter
	at     int64
	told   int64       // its reader knows that it has got there
	tell   *time.Timer // runs while at is further
	end    *int64
}

// Subscribe begins after the event with the number after; or, if that is nil, with what comes from now on. Close it after use.
func (h *Hub) Subscribe(ctx context.Context, business string, after *int64, filter *store.EventFilter) (*Subscription, error) {
	h.mu.Lock()
	f := h.feeds[business]
	if f == nil {
		f = newFeed(business)
		h.feeds[business] = f
	}
	f.subs++
	h.mu.Unlock()
	s := &Subscription{hub: h, feed: f, filter: filter.Distinct()}
	// Whoever subscribes now is owed what is committed from now on, wherever the feed has got to in its reading.
	extent, err := h.cfg.Store.Extent(ctx, business)
	if err != nil {
		s.Close()
		return nil, err
	}
	f.begin(extent.Last)
	s.at = extent.Last
	if after != nil {
		s.at = *after
	}
	s.told = s.at
	if f.behind(extent.Last) {
		h.missing(f)
	}
	return s, nil
}

// At is the number of the last event that was looked at.
func (s *Subscription) At() int64 { return s.at }

// EndAt has Next end with io.EOF once every event up to the number seq has been looked at. It returns none after it.
func (s *Subscription) EndAt(seq int64) { s.end = &seq }

// Next waits for the next events of the filter, and returns them in order; or none, when it has looked on for a while and found
// none: At tells how far. It ends with ctx's error, with store.ErrShuttingDown when the hub ends, with store.ErrCursorExpired if
// retention overtook the reader or the database has lost what it was given, or as EndAt says.
func (s *Subscription) Next(ctx context.Context) (events []*store.Event, err error) {
	defer func() {
		if s.told = s.at; len(events) > 0 {
			s.told = events[len(events)-1].Seq
		}
	}()
	for {
		if s.end != nil && s.at >= *s.end {
			return nil, io.EOF
		}
		events, last, changed, lost := s.feed.after(s.at)
		switch {
		case lost:
			return nil, store.ErrCursorExpired
		case len(events) > 0:
			if s.end != nil && last > *s.end {
				events, last = events[:*s.end-s.at], *s.end
			}
			s.at = last
			if events = s.selected(events); len(events) > 0 {
				return events, nil
			}
		case s.at < last:
			if s.end != nil {
				last = min(last, *s.end)
			}
			events, err := s.catchUp(ctx, last)
			if err != nil || len(events) > 0 {
				return events, err
			}
		default:
			select {
			case <-changed:
			case <-s.lookedOn():
				s.tell = nil
				return nil, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-s.hub.closed:
				return nil, store.ErrShuttingDown
			}
		}
	}
}

// lookedOn fires a while after the subscription has got further than its reader knows.
func (s *Subscription) lookedOn() <-chan time.Time {
	if s.tell == nil {
		if s.at == s.told {
			return nil
		}
		s.tell = time.NewTimer(s.hub.cfg.TellEvery)
	}
	return s.tell.C
}

func (s *Subscription) selected(events []*store.Event) []*store.Event {
	if s.filter == nil {
		return events
	}
	var out []*store.Event
	for _, e := range events {
		if s.filter.Match(e) {
			out = append(out, e)
		}
	}
	return out
}

// catchUp reads the next page from SQL.
func (s *Subscription) catchUp(ctx context.Context, last int64) (events []*store.Event, err error) {
	var through int64
	err = s.hub.insist(ctx, func() (err error) {
		events, through, err = s.hub.cfg.Pages.after(ctx, s.feed.business, s.at, last, s.filter)
		return err
	})
	switch {
	case errors.Is(err, store.ErrCursorExpired):
		return nil, store.ErrCursorExpired
	case err != nil:
		return nil, fmt.Errorf("catch up: %w", err)
	case through == s.at: // the hub finds out why
		return nil, s.hub.pause(ctx)
	}
	s.at = through
	return events, nil
}

// Close ends the subscription; a feed without any is forgotten.
func (s *Subscription) Close() {
	if s.tell != nil {
		s.tell.Stop()
	}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.feed.subs--
	if s.feed.subs == 0 && s.hub.feeds[s.feed.business] == s.feed {
		delete(s.hub.feeds, s.feed.business)
	}
}
