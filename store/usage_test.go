package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/store"
)

func step(model string, in, out int) store.RunStep {
	return store.RunStep{Model: model, ToolCalls: []store.ToolCall{}, Usage: store.TokenUsage{InputTokens: in, OutputTokens: out, Source: store.UsageProvider}}
}

// TestUsage sums up runs at the prices of their time, and counts apart from them what went over channels.
func TestUsage(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		prices := map[string]store.Price{"openai/a": {Input: 400_000, Output: 1_600_000}}
		var url string
		s := open(t, func(c *store.Config) {
			url = c.URL
			c.Price = func(model string) (store.Price, bool) { p, ok := prices[model]; return p, ok }
		})
		v, other := newBusiness(t, s), newBusiness(t, s)
		before := s.Now()
		run := func(v *store.Viewer, steps ...store.RunStep) store.Time {
			t.Helper()
			turn := begin(t, s, v, "")
			if _, err := s.FinishTurn(t.Context(), turn, "Hi", steps...); err != nil {
				t.Fatal(err)
			}
			return turn.Run.StartedAt
		}
		first := run(v, step("openai/a", 1000, 100)) // 0.00056
		run(other, step("openai/a", 1, 1))
		run(v, step("free/b", 7, 3), step("openai/a", 1, 0)) // 0.0000004
		run(v, step("free/b", 5, 2))
		prices["openai/a"] = store.Price{Input: 1, Output: 1}
		last := run(v, step("openai/a", 3, 1)) // 0.000000000004
		failed := begin(t, s, v, "")
		if err := s.FailTurn(t.Context(), failed.Run, store.RunModelFailed, step("free/b", 11, 0)); err != nil {
			t.Fatal(err)
		}
		running := begin(t, s, v, "") // runs on

		now := s.Now()
		for i, m := range []struct {
			business, channel, direction string
			at                           store.Time
		}{
			{v.BusinessID, "sms", "inbound", now},
			{v.BusinessID, "sms", "inbound", now},
			{v.BusinessID, "sms", "outbound", now},
			{v.BusinessID, "gmail", "inbound", now},
			{other.BusinessID, "voice", "inbound", now},
			{v.BusinessID, "voice", "inbound", now.Add(time.Minute)},
		} {
			execute(t, url, fmt.Sprintf(`INSERT INTO messages (id, business_id, conversation_id, channel, direction, author, text, sequence, created_at)
				VALUES ('%sz%d', '%s', 'cnv_1', '%s', '%s', 'lead', 'Hi', 1, %d)`, failed.Message.ID[:38], i, m.business, m.channel, m.direction, m.at))
		}
		usage := func(from, to store.Time) *store.Usage {
			t.Helper()
			u, err := s.Usage(t.Context(), v.BusinessID, from, to)
			if err != nil {
				t.Fatal(err)
			}
			return u
		}
		want := &store.Usage{
			LLM: []store.LLMUsage{
				{Model: "embedded", Runs: 1},
				{Model: "free/b", Runs: 2, InputTokens: 16, OutputTokens: 2},
				{Model: "openai/a", Runs: 3, InputTokens: 1011, OutputTokens: 104, Cost: ptr(0.000560400004)},
			},
			ChannelMessages: []store.ChannelMessageUsage{
				{Channel: store.Gmail, Direction: store.Inbound, Count: 1},
				{Channel: store.SMS, Direction: store.Inbound, Count: 2},
				{Channel: store.SMS, Direction: store.Outbound, Count: 1},
			},
		}
		if diff := cmp.Diff(want, usage(before, now+1)); diff != "" {
			t.Error(diff)
		}
		if got := usage(first, last).LLM; len(got) != 2 || got[1].Runs != 2 { // to is exclusive
			t.Errorf("up to the last priced run: %+v", got)
		}
		if got := usage(first+1, last+1).LLM; len(got) != 2 || got[1].Runs != 2 { // from is inclusive
			t.Errorf("after the first: %+v", got)
		}
		if got := usage(now+1, now.Add(time.Hour)); len(got.LLM) != 0 || len(got.ChannelMessages) != 1 {
			t.Errorf("afterwards: %+v", got)
		}

		// What retention removes is known by the hour: those of before and now, and none before or after.
		if err := s.FailTurn(t.Context(), running.Run, store.RunInterrupted); err != nil {
			t.Fatal(err)
		}
		const hour = store.Time(3600 * 1_000_000)
		for range 2 { // removed once, added once
			if _, err := s.Prune(t.Context(), now.Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		if runs, err := s.Runs(t.Context(), v.BusinessID, store.RunFilter{}, store.PageInput{First: 1}); err != nil || len(runs.Edges) != 0 {
			t.Errorf("after retention: %v, %v", runs, err)
		}
		want.ChannelMessages = append(want.ChannelMessages, store.ChannelMessageUsage{Channel: store.Voice, Direction: store.Inbound, Count: 1})
		if diff := cmp.Diff(want, usage(before-before%hour, now+2*hour)); diff != "" {
			t.Errorf("after retention: %s", diff)
		}
		if got := usage(before-before%hour-10*hour, before-before%hour); len(got.LLM) != 0 || len(got.ChannelMessages) != 0 {
			t.Errorf("the hours before: %+v", got)
		}
		prices["free/b"] = store.Price{Input: 1_000_000}
		run(v, step("free/b", 1, 0)) // beside the sums, and then added to them
		want.LLM[1] = store.LLMUsage{Model: "free/b", Runs: 3, InputTokens: 17, OutputTokens: 2, Cost: ptr(0.000001)}
		for _, when := range []string{"before", "after"} {
			if diff := cmp.Diff(want, usage(before-before%hour, now+2*hour)); diff != "" {
				t.Errorf("another run, %s retention: %s", when, diff)
			}
			if _, err := s.Prune(t.Context(), now.Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestUsageIsTheSameSummedUp asks for spans of all kinds before and after rows are summed up by the hour, and when retention has
// removed them: the answers are the same, but that retention leaves whole hours.
func TestUsageIsTheSameSummedUp(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		var url string
		s := open(t, func(c *store.Config) {
			url, c.Retention = c.URL, 24*time.Hour
			c.Price = func(string) (store.Price, bool) { return store.Price{Input: 3, Output: 7}, true }
		})
		v := newBusiness(t, s)
		const hour = store.Time(3600 * 1_000_000)
		now := s.Now()
		noon := now - now%hour
		const n = 40 // one each 13 minutes, back from 20 minutes ago
		instant := func(i int) store.Time { return now.Add(-20*time.Minute - time.Duration(i)*13*time.Minute) }
		age := func(turn *store.Turn, at store.Time) string {
			id := store.FirstID("run", at)
			execute(t, url, fmt.Sprintf("UPDATE runs SET id = '%s', started_at = %d WHERE id = '%s'", id, at, turn.Run.ID))
			execute(t, url, fmt.Sprintf(`INSERT INTO messages (id, business_id, conversation_id, channel, direction, author, text, sequence, created_at)
				VALUES ('%s', '%s', 'cnv_1', 'sms', 'inbound', 'lead', 'Hi', 1, %d)`, store.FirstID("msg", at), v.BusinessID, at))
			return id
		}
		for i := range n {
			turn := begin(t, s, v, "")
			if _, err := s.FinishTurn(t.Context(), turn, "Hi", step([]string{"a", "b"}[i%2], i+1, 1)); err != nil {
				t.Fatal(err)
			}
			age(turn, instant(i))
		}
		open5 := begin(t, s, v, "") // runs, and began between two of them
		running := age(open5, instant(5)+1000)
		finish(t, s, begin(t, s, v, "")) // too young to be summed up
		spans := [][2]store.Time{
			{noon - 9*hour, noon},
			{noon - 9*hour, now + 1},
			{noon - 9*hour, now.Add(time.Minute)},
			{instant(n - 1), instant(2)},
			{instant(30), instant(30) + 1},
			{instant(30) + 1, instant(29) + 1},
			{noon - 4*hour + 7, noon - 2*hour - 7},
			{noon - 5*hour, noon - 5*hour + 1},
		}
		ask := func() (all []*store.Usage) {
			t.Helper()
			for _, span := range spans {
				u, err := s.Usage(t.Context(), v.BusinessID, span[0], span[1])
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, u)
			}
			return all
		}
		want := ask()
		sum := func() string {
			t.Helper()
			for more := true; more; {
				var err error
				if more, err = s.SumUsage(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			mark, err := s.UsageMark(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return mark
		}
		if mark := sum(); mark != store.FirstID("run", instant(5)) {
			t.Errorf("summed up to %s, before a run of %s", mark, running)
		}
		if diff := cmp.Diff(want, ask()); diff != "" {
			t.Errorf("up to the one that runs: %s", diff)
		}
		execute(t, url, fmt.Sprintf("UPDATE runs SET status = 'finished', model = 'a', input_tokens = 5 WHERE id = '%s'", running))
		want = ask()
		if mark := sum(); mark != store.FirstID("run", instant(0)) {
			t.Errorf("summed up to %s", mark)
		}
		if diff := cmp.Diff(want, ask()); diff != "" {
			t.Errorf("all: %s", diff)
		}
		if _, err := s.Prune(t.Context(), noon-3*hour); err != nil {
			t.Fatal(err)
		}
		got := ask()
		for _, i := range []int{0, 1, 2} { // whole hours
			if diff := cmp.Diff(want[i], got[i]); diff != "" {
				t.Errorf("after retention: %s", diff)
			}
		}
	})
}

func TestUsageHasItsBounds(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		now := s.Now()
		for _, c := range []struct {
			span time.Duration
			ok   bool
		}{{0, false}, {-time.Second, false}, {time.Microsecond, true}, {366 * 24 * time.Hour, true}, {366*24*time.Hour + time.Microsecond, false}} {
			usage, err := s.Usage(t.Context(), v.BusinessID, now, now.Add(c.span))
			if c.ok && (err != nil || usage.LLM == nil || usage.ChannelMessages == nil) {
				t.Errorf("%v: %+v, %v", c.span, usage, err)
			}
			if e, _ := store.AsError(err); !c.ok && (e == nil || len(e.Faults) != 1 || e.Faults[0].Loc[0] != "to") {
				t.Errorf("%v: %v", c.span, err)
			}
		}
	})
}

func TestRunsArePagedAndTheBusinessesOwn(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v, stranger := newBusiness(t, s), newBusiness(t, s)
		var ids []string
		for i := range 5 {
			turn := begin(t, s, v, "")
			ids = append([]string{turn.Run.ID}, ids...)
			if i == 3 {
				continue // runs on
			}
			reply := finish(t, s, turn)
			messages, err := s.MessagesByID(t.Context(), v.BusinessID, []string{reply.ID})
			if err != nil || messages[reply.ID].Text != "Hi" {
				t.Fatalf("the reply: %v, %v", messages, err)
			}
			if messages, err := s.MessagesByID(t.Context(), stranger.BusinessID, []string{reply.ID}); err != nil || len(messages) != 0 {
				t.Errorf("a stranger reads %v, %v", messages, err)
			}
		}
		page := func(filter store.RunFilter, first int, after *string) (*store.RunConnection, []string) {
			t.Helper()
			c, err := s.Runs(t.Context(), v.BusinessID, filter, store.PageInput{First: first, After: after})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range c.Nodes() {
				got = append(got, r.ID)
			}
			return c, got
		}
		one, got := page(store.RunFilter{}, 2, nil)
		_, rest := page(store.RunFilter{}, 100, one.PageInfo.EndCursor)
		if diff := cmp.Diff(ids, append(got, rest...)); diff != "" || len(got) != 2 || !one.PageInfo.HasNextPage {
			t.Errorf("pages: %s", diff)
		}
		if _, got := page(store.RunFilter{Status: ptr(store.RunRunning)}, 20, nil); len(got) != 1 || got[0] != ids[1] {
			t.Errorf("running: %v", got)
		}
		if _, got := page(store.RunFilter{AgentID: ptr("nobody")}, 20, nil); len(got) != 0 {
			t.Errorf("of no agent: %v", got)
		}
		if r, err := s.Run(t.Context(), v.BusinessID, ids[0]); err != nil || r.Status != store.RunStatusFinished || r.ReplyID == nil {
			t.Errorf("%+v, %v", r, err)
		}
		if _, err := s.Run(t.Context(), stranger.BusinessID, ids[0]); err == nil {
			t.Error("a stranger reads a run")
		}
		if c, err := s.Runs(t.Context(), stranger.BusinessID, store.RunFilter{}, store.PageInput{First: 20}); err != nil || len(c.Edges) != 0 {
			t.Errorf("a stranger lists %v, %v", c, err)
		}
	})
}
