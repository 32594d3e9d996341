package hook_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"


	"parley/e2e/servers"
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
		later := store.Now().Add(30 * time.Minute)
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
		if _, err := s.Events(t.Context(), v.BusinessID, nil, store.EventPage{After: ptr(first[1].FeedEdge().Cursor)}); !errors.Is(err, store.ErrCursorExpired) {
			t.Errorf("a page after a cursor below the mark: %v", err)
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

// TestRetentionIsBoundedByDeliveries: events go in small commits, counted by their deliveries, and in the end all of them are gone.
func TestRetentionIsBoundedByDeliveries(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		finish(t, s, begin(t, s, v, ""))
		for _, e := range events(t, s, v) {
			if err := s.Copy(t.Context(), e.ID, 600); err != nil {
				t.Fatal(err)
			}
		}
		later := store.Now().Add(time.Second)
		for left := 2; left >= 0; left-- { // two events have more than a commit takes
			more, err := s.Prune(t.Context(), later)
			if n := len(events(t, s, v)); err != nil || n != left || more != (left > 0) {
				t.Fatalf("%d events are left, more: %v, %v", n, more, err)
			}
		}
		if n := len(deliveries(t, s, v)); n != 0 {
			t.Errorf("%d deliveries are left", n)
		}
	})
}

// TestRetentionMeetsARedelivery: a delivery that is sent again at the very moment when retention would remove it stays, and is
// not waited for.
func TestRetentionMeetsARedelivery(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	s := open(t, func(c *store.Config) { c.URL = url })
	v := newBusiness(t, s)
	newEndpoint(t, s, v, store.RunFinished)
	finish(t, s, begin(t, s, v, ""))
	if err := s.Copy(t.Context(), events(t, s, v)[1].ID, 1); err != nil {
		t.Fatal(err)
	}
	d := deliveries(t, s, v)
	db := sql.OpenDB(pgdriver.NewConnector(pgdriver.WithDSN(url)))
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), "UPDATE deliveries SET next_attempt_at = NULL"); err != nil {
		t.Fatal(err)
	}
	again, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Rollback() }()
	if _, err := again.ExecContext(t.Context(), "UPDATE deliveries SET next_attempt_at = 1 WHERE id = $1", d[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(t.Context(), store.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := again.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Delivery(t.Context(), v.BusinessID, d[0].ID); err != nil {
		t.Errorf("the delivery that is sent again: %v", err)
	}
	if events, err := s.EventsByID(t.Context(), []string{d[0].EventID}); err != nil || events[d[0].EventID] == nil {
		t.Errorf("its event: %v, %v", events, err)
	}
}

