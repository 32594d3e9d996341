package store_test

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"parley/store"
)

// TestReplayReadsLittle: of a long history a replay reads what is of its time, and few events in one reading, though there is
// almost nothing for its endpoint.
func TestReplayReadsLittle(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		const n, days = 20_000, 10
		if err := b.s.LongAgo(t.Context(), b.v.BusinessID, n, days*24*time.Hour); err != nil {
			t.Fatal(err)
		}
		finish(t, b.s, begin(t, b.s, b.v, ""))
		jobs, err := b.s.Claim(t.Context(), []store.Wanted{{EndpointID: b.p.ID, Limit: 10, UpTo: 2 * n, Hold: b.hold()}}, time.Minute)
		if err != nil || len(jobs) != 1 {
			t.Fatalf("claimed %d, %v", len(jobs), err)
		}
		b.end(store.Delivered, nil, jobs...)
		walked := regexp.MustCompile(`e\.seq > (\d+)\D+ e\.seq <= (\d+)`)
		type span struct{ after, until int }
		var spans []span
		b.s.Reads(func(query string) {
			if found := walked.FindStringSubmatch(query); found != nil {
				after, _ := strconv.Atoi(found[1])
				until, _ := strconv.Atoi(found[2])
				spans = append(spans, span{after, until})
			}
		})
		replay := func(since, until int) *store.Replay { // days ago
			t.Helper()
			spans = nil
			in := store.ReplayInput{EndpointID: b.p.ID, Since: store.Now().Add(-time.Duration(since) * 24 * time.Hour), FailedOnly: ptr(false)}
			if until > 0 {
				in.Until = ptr(store.Now().Add(-time.Duration(until) * 24 * time.Hour))
			}
			r, err := b.s.ReplayEvents(t.Context(), b.v, in)
			if err != nil || len(spans) != 1 {
				t.Fatalf("%v after %v", err, spans)
			}
			return r
		}
		const day, hour = n / days, n / days / 24
		if r := replay(7, 5); r.Total != 0 || spans[0].after < 3*day-2*hour || spans[0].until > 5*day+2*hour {
			t.Errorf("of the days 3 to 5, the events %+v were counted: %+v", spans[0], r)
		}
		if r := replay(9, 0); r.Total != 1 || spans[0].after < day-2*hour || spans[0].after > day {
			t.Errorf("since the first day, the events %+v were counted: %+v", spans[0], r)
		}
		spans = nil
		due, err := b.s.AdvanceReplays(t.Context(), []store.Hold{b.hold()}, 32)
		if err != nil || len(due[b.v.BusinessID]) != 1 || len(spans) < 4 {
			t.Errorf("due are %v, %v, after %v", due, err, spans)
		}
		for _, s := range spans {
			if s.until-s.after > 5_000 {
				t.Errorf("the events %+v were read at once", s)
			}
		}
	})
}
