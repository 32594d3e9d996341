package hook_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"parley/store"
	"parley/store/hook"
)

func TestDeliveriesAreMadeWithTheirEvents(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		var mu sync.Mutex // guards told
		told := map[string][]store.Recipient{}
		s, h := open(t, func(c *config) {
			c.Committed = func(events []*store.Event) {
				mu.Lock()
				defer mu.Unlock()
				for _, e := range events {
					told[e.ID] = e.Recipients
				}
			}
		})
		v, stranger := newBusiness(t, s), newBusiness(t, s)
		messages := newEndpoint(t, h, v, store.MessageCreated, store.MessageCreated)
		if len(messages.Events) != 1 {
			t.Errorf("doubles were kept: %v", messages.Events)
		}
		runs := newEndpoint(t, h, v, store.RunFinished, store.RunFailed)
		off := newEndpoint(t, h, v, store.RunFinished)
		newEndpoint(t, h, stranger, store.EventTypes...)
		if _, err := h.UpdateEndpoint(t.Context(), v, off.ID, hook.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
			t.Fatal(err)
		}
		other, err := s.CreateAgent(t.Context(), v, store.AgentInput{Name: ptr("other")})
		if err != nil {
			t.Fatal(err)
		}
		for _, agent := range []string{"demo", other.ID} {
			if _, err := s.UpdateAgent(t.Context(), v, agent, store.AgentInput{
				WebhookURL: store.OptionalString{Set: true, Value: ptr("https://example.com/agent")},
			}); err != nil {
				t.Fatal(err)
			}
		}
		own, err := h.EndpointsOfAgents(t.Context(), v.BusinessID, []string{"demo", other.ID})
		if err != nil || own["demo"] == nil || own[other.ID] == nil {
			t.Fatal(own, err)
		}
		session := turn(t, s, v, "")

		got := map[string]int{}
		for _, d := range deliveries(t, h, v, hook.DeliveryFilter{}, 100) {
			got[d.EndpointID+" "+string(d.Status)]++
			if d.Lane != session || d.Attempts != 0 || (d.NextAttemptAt() == nil) != (d.Status == store.Skipped) || d.Trigger != store.TriggerAutomatic {
				t.Errorf("a delivery is %+v", d)
			}
			bell := store.Recipient{EndpointID: d.EndpointID, Epoch: d.Epoch}
			if slices.Contains(told[d.EventID], bell) != (d.Status == store.Pending) {
				t.Errorf("the bell tells of %v, and one is %+v", told[d.EventID], d)
			}
			event, err := s.EventsByID(t.Context(), []string{d.EventID})
			if err != nil || event[d.EventID].Seq != d.Seq || event[d.EventID].Type != d.Type {
				t.Errorf("%+v is of %+v, %v", d, event[d.EventID], err)
			}
		}
		want := map[string]int{
			messages.ID + " pending": 2, runs.ID + " pending": 1, off.ID + " skipped": 1, own["demo"].ID + " pending": 2,
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("deliveries %v, want %v", got, want)
		}
		if n := len(deliveries(t, h, stranger, hook.DeliveryFilter{}, 100)); n != 0 {
			t.Errorf("a stranger got %d deliveries", n)
		}
		list, err := h.Endpoints(t.Context(), v.BusinessID)
		if err != nil || len(list) != 3 || list[0].ID != off.ID || list[2].ID != messages.ID {
			t.Errorf("the list is not the registered endpoints, newest first: %v, %v", list, err)
		}
	})
}

// TestTypesChangeForWhatComes: with other types an endpoint gets those from the next event on; what waited by then is sent all the same.
func TestTypesChangeForWhatComes(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		b.turns(1)
		if _, err := b.h.UpdateEndpoint(t.Context(), b.v, b.p.ID, hook.EndpointInput{Events: []store.EventType{store.MessageCreated}}); err != nil {
			t.Fatal(err)
		}
		b.turns(1)
		var got []string
		for _, j := range b.next(b.p.ID) {
			got = append(got, fmt.Sprint(j.Seq, " ", j.Type))
		}
		if want := []string{"3 run.finished", "4 message.created", "5 message.created"}; !slices.Equal(got, want) {
			t.Errorf("%q wait, want %q", got, want)
		}
		if err := b.h.DeleteEndpoint(t.Context(), b.v, b.p.ID); err != nil {
			t.Fatal(err)
		}
		b.turns(1)
		if n := len(b.deliveries()); n != 3 {
			t.Errorf("%d deliveries: those of a deleted endpoint stay on record, and there are no new ones", n)
		}
	})
}

// TestManyDeliveriesAtOnce: many writes at once whose events have more deliveries than one commit may add, and one write that has by
// itself: each event has one for each endpoint all the same, and no number is missing.
func TestManyDeliveriesAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		const endpoints, turns = 320, 24
		var mu sync.Mutex // guards more
		more := 0
		s, h := open(t, func(c *config) {
			c.hook.MaxEndpoints = 2 * endpoints
			c.Committed = func(events []*store.Event) {
				mu.Lock()
				defer mu.Unlock()
				for _, e := range events {
					if e.MoreRecipients && len(e.Recipients) == store.MaxRecipients {
						more++
					}
				}
			}
		})
		v := newBusiness(t, s)
		var making sync.WaitGroup
		for range endpoints {
			making.Go(func() { newEndpoint(t, h, v, store.MessageCreated) })
		}
		making.Wait()
		var writing sync.WaitGroup
		for range turns {
			writing.Go(func() {
				if _, err := s.BeginTurn(t.Context(), turnInput(v, "")); err != nil {
					t.Error(err)
				}
			})
		}
		writing.Wait()
		b := &bench{t: t, s: s, h: h, v: v}
		if n := b.rows("deliveries WHERE due = 0"); n != endpoints*turns {
			t.Errorf("%d deliveries, want %d", n, endpoints*turns)
		}
		if n := b.rows("(SELECT DISTINCT endpoint_id, event_id, seq FROM deliveries) AS each"); n != endpoints*turns {
			t.Errorf("%d deliveries that differ, want %d", n, endpoints*turns)
		}
		for i, e := range events(t, s, v) {
			if e.Seq != int64(i+1) {
				t.Fatalf("event %d has the number %d", i+1, e.Seq)
			}
		}
		if more != turns {
			t.Errorf("the bell said of %d events that there are more recipients than it names", more)
		}
	})
}
