package store_test

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"parley/store"
)

func TestTurnStoresMessagesRunAndEventsInOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		turn := begin(t, s, v, "")
		finish(t, s, turn)
		finish(t, s, begin(t, s, v, turn.SessionID))

		wantTypes := []store.EventType{
			store.MessageCreated, store.MessageCreated, store.RunFinished, store.MessageCreated, store.MessageCreated, store.RunFinished,
		}
		all := events(t, s, v)
		if len(all) != len(wantTypes) {
			t.Fatalf("%d events, want %d", len(all), len(wantTypes))
		}
		for i, e := range all {
			d, err := e.Details()
			if err != nil {
				t.Fatal(err)
			}
			if e.Type != wantTypes[i] || e.Seq != int64(i+1) || *d.Sequence != i+1 || *e.SessionID != turn.SessionID {
				t.Errorf("event %d: type %s, seq %d, sequence %d", i, e.Type, e.Seq, *d.Sequence)
			}
			if i%3 == 0 != (d.Direction == store.Inbound) {
				t.Errorf("event %d: direction %s", i, d.Direction)
			}
		}
		history, err := s.History(t.Context(), turn.SessionID, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(history) != 4 || history[0].Author != store.AuthorLead || history[3].Author != store.AuthorAgent {
			t.Errorf("history: %v", history)
		}
	})
}

func TestEventHasTheEnvelopeOfTheSpecification(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		in := turnInput(v, "")
		in.Text = `<b>"fish" & chips</b>`
		in.Metadata = ptr(store.JSONObject(`{"page":"/a"}`))
		if _, err := s.BeginTurn(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		e := events(t, s, v)[0]
		var doc map[string]any
		if err := json.Unmarshal(e.Body, &doc); err != nil {
			t.Fatal(err)
		}
		event := doc["event"].(map[string]any)
		data := event["data"].(map[string]any)
		if event["id"] != e.ID || event["channel"] != "whatsapp" || event["timestamp"].(float64) != e.Timestamp.Unix() {
			t.Errorf("event: %v", event)
		}
		if data["type"] != "message.created" || data["direction"] != "inbound" || data["text"] != in.Text || data["sequence"] != 1.0 {
			t.Errorf("data: %v", data)
		}
		if lead, ok := doc["lead_id"]; !ok || lead != nil || doc["lead_created"] != false || doc["business_id"] != v.BusinessID {
			t.Errorf("envelope: %v", doc)
		}
		contact := doc["lead_contact"].(map[string]any)
		if len(contact) != 3 || contact["number"] != "" || contact["email"] != "" || contact["name"] != "" {
			t.Errorf("lead_contact: %v", contact)
		}
		back, err := store.ParseEvent(e.Body, e.Seq)
		if err != nil {
			t.Fatal(err)
		}
		if back.ID != e.ID || back.Type != e.Type || back.Timestamp != e.Timestamp || *back.SessionID != *e.SessionID || back.Channel != e.Channel {
			t.Errorf("parsed back: %+v, want %+v", back, e)
		}
	})
}

func TestSessionRefusals(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v, stranger := newBusiness(t, s), newBusiness(t, s)
		turn := begin(t, s, v, "")
		for name, c := range map[string]struct {
			change func(*store.TurnInput)
			want   error
		}{
			"unknown":          {func(in *store.TurnInput) { in.SessionID = "ses_unknown" }, store.ErrSessionNotFound},
			"of another agent": {func(in *store.TurnInput) { in.AgentID = "other" }, store.ErrSessionNotFound},
			"of a stranger":    {func(in *store.TurnInput) { in.BusinessID = stranger.BusinessID }, store.ErrSessionNotFound},
			"another channel":  {func(in *store.TurnInput) { in.Channel = store.SMS }, store.ErrChannelMismatch},
			"busy":             {func(*store.TurnInput) {}, store.ErrSessionBusy},
		} {
			in := turnInput(v, turn.SessionID)
			c.change(&in)
			if _, err := s.BeginTurn(t.Context(), in); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
		if n := len(events(t, s, v)); n != 1 {
			t.Errorf("refused turns left %d events behind", n-1)
		}
	})
}

func TestExpiredSessionIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, func(c *store.Config) { c.SessionTTL = time.Microsecond })
		v := newBusiness(t, s)
		turn := begin(t, s, v, "")
		finish(t, s, turn)
		if _, err := s.BeginTurn(t.Context(), turnInput(v, turn.SessionID)); !errors.Is(err, store.ErrSessionExpired) {
			t.Errorf("%v, want session_expired", err)
		}
	})
}

func TestFailedTurnLeavesTheHistoryAsItWas(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		turn := begin(t, s, v, "")
		finish(t, s, turn)
		failed := begin(t, s, v, turn.SessionID)
		if err := s.FailTurn(t.Context(), failed.Run, store.RunModelFailed); err != nil {
			t.Fatal(err)
		}
		if err := s.FailTurn(t.Context(), failed.Run, store.RunModelFailed); err == nil {
			t.Error("a run ended twice")
		}
		if _, err := s.FinishTurn(t.Context(), failed, "late", store.RunStep{Model: "m", Usage: store.TokenUsage{Source: store.UsageNone}}); err == nil {
			t.Error("a failed turn was finished")
		}
		history, err := s.History(t.Context(), turn.SessionID, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(history) != 2 {
			t.Errorf("history of %d messages, want 2", len(history))
		}
		all := events(t, s, v)
		if last := all[len(all)-1]; last.Type != store.RunFailed {
			t.Errorf("the last event is %s", last.Type)
		}
		finish(t, s, begin(t, s, v, turn.SessionID)) // the session goes on
	})
}

func TestSessionIsTakenOverWhenItsLockIsOver(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		in := turnInput(v, "")
		in.Lease = -time.Second
		dead, err := s.BeginTurn(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		next := begin(t, s, v, dead.SessionID)
		if _, err := s.FinishTurn(t.Context(), dead, "late", store.RunStep{Model: "m", Usage: store.TokenUsage{Source: store.UsageNone}}); err == nil {
			t.Error("a turn whose session was taken over was finished")
		}
		abandoned, err := s.AbandonedRuns(t.Context(), 10)
		if err != nil || len(abandoned) != 1 || abandoned[0].ID != dead.Run.ID {
			t.Fatalf("abandoned: %v, %v", abandoned, err)
		}
		if err := s.FailTurn(t.Context(), abandoned[0], store.RunInterrupted); err != nil {
			t.Fatal(err)
		}
		finish(t, s, next) // the sweep did not take its lock
	})
}

// TestSequencesHaveNoGaps runs many sessions of two businesses at once: in each business the numbers are 1, 2, 3, …, the
// committed events were handed on in that order, and every session's own sequence is whole.
func TestSequencesHaveNoGaps(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		var mu sync.Mutex
		told := map[string][]int64{}
		s := open(t, func(c *store.Config) {
			c.Committed = func(events []*store.Event) {
				mu.Lock()
				defer mu.Unlock()
				for _, e := range events {
					told[e.BusinessID] = append(told[e.BusinessID], e.Seq)
				}
			}
		})
		const writers, turns = 16, 10
		businesses := []*store.Viewer{newBusiness(t, s), newBusiness(t, s)}
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				v := businesses[w%2]
				session := ""
				for range turns {
					turn, err := s.BeginTurn(t.Context(), turnInput(v, session))
					if err != nil {
						t.Error(err)
						return
					}
					session = turn.SessionID
					if _, err := s.FinishTurn(t.Context(), turn, "Hi", store.RunStep{Model: "m", Usage: store.TokenUsage{Source: store.UsageNone}}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		for _, v := range businesses {
			all := events(t, s, v)
			if want := writers / 2 * turns * 3; len(all) != want || len(told[v.BusinessID]) != want {
				t.Fatalf("%d events, %d handed on, want %d", len(all), len(told[v.BusinessID]), want)
			}
			sessions := map[string]int{}
			for i, e := range all {
				if e.Seq != int64(i+1) || told[v.BusinessID][i] != e.Seq {
					t.Fatalf("event %d has the number %d, and %d was handed on", i+1, e.Seq, told[v.BusinessID][i])
				}
				d, err := e.Details()
				if err != nil {
					t.Fatal(err)
				}
				if sessions[*e.SessionID]++; sessions[*e.SessionID] != *d.Sequence {
					t.Fatalf("session %s: sequence %d where %d is next", *e.SessionID, *d.Sequence, sessions[*e.SessionID])
				}
			}
		}
	})
}
