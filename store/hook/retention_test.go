package hook_test

import (
	"errors"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/store"
	"parley/store/hook"
)

func (b *bench) prune(before store.Time) (more bool) {
	b.t.Helper()
	more, err := b.s.Prune(b.t.Context(), before)
	if err != nil {
		b.t.Fatal(err)
	}
	return more
}

func (b *bench) pruneAll(before store.Time) {
	b.t.Helper()
	for b.prune(before) {
		continue
	}
}

// TestRetention removes what is old, but nothing that is still due, and moves the mark below which cursors have expired.
func TestRetention(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, func(c *config) { c.Retention = time.Hour })
		s, v, other := b.s, b.v, newBusiness(t, b.s)
		b.set(b.p.ID, store.Disabled)
		session := turn(t, s, v, "")
		first := events(t, s, v)
		b.set(b.p.ID, store.Enabled)
		turn(t, s, v, session) // its run.finished, the sixth event, waits
		turn(t, s, v, session)
		turn(t, s, other, "")
		if b.prune(s.Now().Add(-time.Hour)) || len(events(t, s, v)) != 9 {
			t.Error("what is not old was removed")
		}
		later := s.Now().Add(30 * time.Minute)
		b.pruneAll(later)
		extent, err := s.Extent(t.Context(), v.BusinessID)
		if err != nil || extent.Pruned != 5 || extent.Last != 9 {
			t.Errorf("the feed is %+v, %v: what waits must stay, and what comes after it", extent, err)
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
		if n := len(b.deliveries()); n != 2 {
			t.Errorf("%d deliveries are left", n)
		}
		if history, err := s.History(t.Context(), session, 100); err != nil || len(history) != 0 {
			t.Errorf("%d messages are left, %v", len(history), err)
		}
		turn(t, s, v, session) // a session that has not expired goes on
		jobs := b.next(b.p.ID)
		b.end(store.Delivered, nil, jobs[0])
		past := s.Now().Add(-time.Second)
		b.end(store.Retrying, &past, jobs[1:]...)
		b.pruneAll(later)
		if left := events(t, s, v); len(left) != 4 || left[0].Seq != 9 {
			t.Errorf("%d events are left where a retry waits", len(left))
		}
		if err := b.h.DeleteEndpoint(t.Context(), v, b.p.ID); err != nil {
			t.Fatal(err)
		}
		if err := b.h.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.pruneAll(later)
		if left := events(t, s, v); len(left) != 0 || b.rows("deliveries")+b.rows("attempts") != 0 {
			t.Errorf("%d events, %d deliveries and %d attempts are left once nothing waits", len(left), b.rows("deliveries"), b.rows("attempts"))
		}
	})
}

// TestWhatWaitsTwiceAsLongIsGivenUp: what is older than twice the retention goes with its event, though it waits.
func TestWhatWaitsTwiceAsLongIsGivenUp(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, func(c *config) { c.Retention = time.Hour })
		b.turns(2)
		now := b.s.Now()
		b.pruneAll(now.Add(time.Hour - time.Minute)) // of nearly an hour after its retention
		if left := events(t, b.s, b.v); len(left) != 4 || left[0].Seq != 3 {
			t.Errorf("%d events are left", len(left))
		}
		b.pruneAll(now.Add(time.Hour + time.Minute))
		if left := events(t, b.s, b.v); len(left) != 0 || b.rows("deliveries") != 0 || len(b.waits()) != 0 {
			t.Errorf("%d events and %d deliveries are left", len(left), b.rows("deliveries"))
		}
	})
}

// copies gives each event so many more deliveries, to endpoints that there are none of. They have ended.
func (b *bench) copies(n int) {
	b.t.Helper()
	execute(b.t, b.s, `INSERT INTO deliveries (endpoint_id, seq, event_id, business_id, shard, type, lane, status, epoch, attempts, created_at, updated_at)
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		SELECT 'whe_' || i, seq, id, business_id, 0, type, 'ses_1', 'delivered', 0, 1, 0, 0 FROM n CROSS JOIN events`, n)
}

// TestRetentionIsBoundedByDeliveries: events go in small commits, counted by their deliveries, and in the end all of them are gone.
func TestRetentionIsBoundedByDeliveries(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		b.set(b.p.ID, store.Disabled)
		b.turns(1)
		b.copies(600)
		later := b.s.Now().Add(time.Second)
		for left := 2; left >= 0; left-- { // two events have more than a commit takes
			more := b.prune(later)
			if n := len(events(t, b.s, b.v)); n != left || more != (left > 0) {
				t.Fatalf("%d events are left, more: %v", n, more)
			}
		}
		if n := b.rows("deliveries"); n != 0 {
			t.Errorf("%d deliveries are left", n)
		}
		b.turns(1)
		b.copies(3000) // and one may have more by itself
		for range 4 {
			b.prune(b.s.Now().Add(time.Second))
		}
		if n := len(events(t, b.s, b.v)); n != 0 || b.rows("deliveries") != 0 {
			t.Errorf("%d events and %d deliveries are left", n, b.rows("deliveries"))
		}
	})
}

// TestRetentionMeetsARedelivery: a delivery that is sent again at the very moment when retention would remove it stays, and is
// not waited for. So does an event that a replay is about to send.
func TestRetentionMeetsARedelivery(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"sent again": "UPDATE deliveries SET due = 1 WHERE seq = 3", "replayed": "SELECT 1 FROM events WHERE seq = 3 FOR KEY SHARE",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := servers.Database(t)
			b := newBench(t, func(t *testing.T, change func(*config)) (*store.Store, *hook.Hooks) { return open(t, url, change) }, nil)
			b.turns(1)
			job := b.next(b.p.ID)[0]
			b.end(store.Failed, nil, job)
			blocking, _ := blocked(t, url)
			blocking(statement)
			b.prune(b.s.Now().Add(time.Second))
			blocking("COMMIT")
			if d := b.delivery(job.ID()); d.EventID != job.EventID {
				t.Errorf("%+v", d)
			}
			if left := events(t, b.s, b.v); len(left) != 1 || left[0].ID != job.EventID {
				t.Errorf("%d events are left", len(left))
			}
			execute(t, b.s, "UPDATE deliveries SET due = NULL")
			b.pruneAll(b.s.Now().Add(time.Second))
			if left := events(t, b.s, b.v); len(left) != 0 {
				t.Errorf("%d events are left in the end", len(left))
			}
		})
	}
}
