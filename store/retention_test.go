package store_test

import (
	"errors"
	"testing"
	"time"

	"parley/store"
)

// TestRetention removes what is old, but nothing that is still due, and moves the mark below which cursors have expired.
func TestRetention(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v, other := newBusiness(t, s), newBusiness(t, s)
		turn := begin(t, s, v, "")
		finish(t, s, turn)
		first := events(t, s, v)
		p := newEndpoint(t, s, v, store.RunFinished)
		finish(t, s, begin(t, s, v, turn.SessionID)) // its run.finished, the sixth event, is due
		finish(t, s, begin(t, s, v, turn.SessionID))
		finish(t, s, begin(t, s, other, ""))
		if more, err := s.Prune(t.Context(), store.Now().Add(-time.Hour)); err != nil || more || len(events(t, s, v)) != 9 {
			t.Errorf("what is not old was removed: %v, %v", more, err)
		}
		later := store.Now().Add(time.Second)
		for more := true; more; {
			var err error
			if more, err = s.Prune(t.Context(), later); err != nil {
				t.Fatal(err)
			}
		}
		extent, err := s.Extent(t.Context(), v.BusinessID)
		if err != nil || extent.Pruned != 5 || extent.Last != 9 {
			t.Errorf("the feed is %+v, %v: what is due must stay, and what comes after it", extent, err)
		}
		if left := events(t, s, v); len(left) != 4 || left[0].Seq != 6 {
			t.Errorf("%d events are left", len(left))
		}
		if left := events(t, s, other); len(left) != 0 {
			t.Errorf("%d events of the other business are left", len(left))
		}
		if _, err := s.ResumeAt(t.Context(), v.BusinessID, first[1].FeedEdge().Cursor); !errors.Is(err, store.ErrCursorExpired) {
			t.Errorf("a cursor below the mark: %v", err)
		}
		if seq, err := s.ResumeAt(t.Context(), v.BusinessID, store.Cursor{BusinessID: v.BusinessID, Seq: 5}.String()); err != nil || seq != 5 {
			t.Errorf("a cursor at the mark: %d, %v", seq, err)
		}
		if n := len(deliveries(t, s, v)); n != 2 {
			t.Errorf("%d deliveries are left", n)
		}
		if history, err := s.History(t.Context(), turn.SessionID, 100); err != nil || len(history) != 0 {
			t.Errorf("%d messages are left, %v", len(history), err)
		}
		finish(t, s, begin(t, s, v, turn.SessionID)) // a session that has not expired goes on
		if err := s.DeleteEndpoint(t.Context(), v, p.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Prune(t.Context(), later); err != nil {
			t.Fatal(err)
		}
		if left := events(t, s, v); len(left) != 0 {
			t.Errorf("%d events are left once nothing is due", len(left))
		}
	})
}
