package hook_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"parley/store"
)

func newEndpoint(t *testing.T, s *store.Store, v *store.Viewer, types ...store.EventType) *store.Endpoint {
	t.Helper()
	p, secret, err := s.CreateEndpoint(t.Context(), v, store.EndpointInput{URL: ptr("https://example.com/hook"), Events: types})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.SigningSecrets(p.ID, p.Secrets, store.Now()); err != nil || len(got) != 1 || got[0] != secret {
		t.Fatalf("secrets: %v, %v", got, err)
	}
	return p
}

func deliveries(t *testing.T, s *store.Store, v *store.Viewer) []*store.Delivery {
	t.Helper()
	c, err := s.Deliveries(t.Context(), v.BusinessID, store.DeliveryFilter{}, store.PageInput{First: 100})
	if err != nil {
		t.Fatal(err)
	}
	return c.Nodes()
}

func TestDeliveriesAreMadeWithTheirEvents(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v, stranger := newBusiness(t, s), newBusiness(t, s)
		messages := newEndpoint(t, s, v, store.MessageCreated, store.MessageCreated)
		if len(messages.Events) != 1 {
			t.Errorf("doubles were kept: %v", messages.Events)
		}
		runs := newEndpoint(t, s, v, store.RunFinished, store.RunFailed)
		off := newEndpoint(t, s, v, store.RunFinished)
		newEndpoint(t, s, stranger, store.EventTypes...)
		if _, err := s.UpdateEndpoint(t.Context(), v, off.ID, store.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.UpdateAgent(t.Context(), v, "demo", store.AgentInput{
			WebhookURL: store.OptionalString{Set: true, Value: ptr("https://example.com/agent")},
		}); err != nil {
			t.Fatal(err)
		}
		own, err := s.EndpointsOfAgents(t.Context(), v.BusinessID, []string{"demo"})
		if err != nil || own["demo"] == nil {
			t.Fatal(own, err)
		}
		finish(t, s, begin(t, s, v, ""))

		got := map[string]int{}
		for _, d := range deliveries(t, s, v) {
			got[d.EndpointID+" "+string(d.Status)]++
		}
		want := map[string]int{
			messages.ID + " pending": 2, runs.ID + " pending": 1, off.ID + " skipped": 1, own["demo"].ID + " pending": 2,
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("deliveries %v, want %v", got, want)
		}
		if n := len(deliveries(t, s, stranger)); n != 0 {
			t.Errorf("a stranger got %d deliveries", n)
		}
		list, err := s.Endpoints(t.Context(), v.BusinessID)
		if err != nil || len(list) != 3 || list[0].ID != off.ID || list[2].ID != messages.ID {
			t.Errorf("the list is not the registered endpoints, newest first: %v, %v", list, err)
		}
	})
}

func TestClaimRecordAndLease(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil) // not ringing: deliveries are due at once
		v := newBusiness(t, s)
		p := newEndpoint(t, s, v, store.EventTypes...)
		finish(t, s, begin(t, s, v, ""))
		holds := takeAll(t, s, "replica")
		want := []store.Wanted{{EndpointID: p.ID, Limit: 2, UpTo: 100, Hold: holds[store.ShardOf(v.BusinessID)]}}
		due, err := s.DueEndpoints(t.Context(), []int{store.ShardOf(v.BusinessID)})
		if err != nil || len(due) != 1 || due[0] != (store.Due{EndpointID: p.ID, BusinessID: v.BusinessID, Shard: store.ShardOf(v.BusinessID)}) {
			t.Fatalf("due: %v, %v", due, err)
		}
		first, err := s.Claim(t.Context(), want, time.Minute)
		if err != nil || len(first) != 2 || first[0].Seq != 1 || first[1].Seq != 2 {
			t.Fatalf("claimed %v, %v", first, err)
		}
		second, err := s.Claim(t.Context(), want, time.Minute)
		if err != nil || len(second) != 1 || second[0].Seq != 3 {
			t.Fatalf("claimed %v, %v", second, err)
		}
		if err := s.Release(t.Context(), second); err != nil {
			t.Fatal(err)
		}
		if again, err := s.Claim(t.Context(), want, time.Minute); err != nil || len(again) != 1 || again[0].DeliveryID != second[0].DeliveryID {
			t.Fatalf("claimed %v, %v after a release", again, err)
		}

		outcome := func(j *store.Job, status store.DeliveryStatus, next *store.Time) *store.Outcome {
			return &store.Outcome{Job: j, Status: status, Next: next, Attempt: &store.Attempt{
				DeliveryID: j.DeliveryID, Number: j.Attempts + 1, Trigger: store.TriggerAutomatic, StartedAt: store.Now(), StatusCode: ptr(200),
			}}
		}
		past := store.Now().Add(-time.Second)
		done, _, err := s.Record(t.Context(), []*store.Outcome{outcome(first[0], store.Delivered, nil), outcome(first[1], store.Retrying, &past)})
		if err != nil || len(done) != 2 {
			t.Fatalf("recorded %v, %v", done, err)
		}
		// A late worker, which saw the rows before, changes nothing.
		if done, _, err := s.Record(t.Context(), []*store.Outcome{outcome(first[0], store.Failed, nil), outcome(first[1], store.Failed, nil)}); err != nil || len(done) != 0 {
			t.Fatalf("a late worker changed %v, %v", done, err)
		}
		retry, err := s.Claim(t.Context(), want, time.Minute)
		if err != nil || len(retry) != 1 || retry[0].DeliveryID != first[1].DeliveryID || retry[0].Attempts != 1 {
			t.Fatalf("claimed %v, %v", retry, err)
		}
		// Disabling ends what waits, and a retry that comes back later is not revived.
		if _, err := s.UpdateEndpoint(t.Context(), v, p.ID, store.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Record(t.Context(), []*store.Outcome{outcome(retry[0], store.Retrying, &past)}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range deliveries(t, s, v) {
			got = append(got, fmt.Sprintln(d.Seq, d.Status, d.Attempts, d.NextAttemptAt == nil))
		}
		if want := []string{"3 skipped 0 true\n", "2 failed 2 true\n", "1 delivered 1 true\n"}; !slices.Equal(got, want) {
			t.Errorf("deliveries %q, want %q", got, want)
		}
		attempts, err := s.AttemptsOf(t.Context(), []string{first[0].DeliveryID, first[1].DeliveryID})
		if err != nil || len(attempts[first[0].DeliveryID]) != 1 || len(attempts[first[1].DeliveryID]) != 2 {
			t.Errorf("attempts %v, %v", attempts, err)
		}
	})
}

func TestRotatedSecretsSignUntilTheyExpire(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		p, old, err := s.CreateEndpoint(t.Context(), v, store.EndpointInput{URL: ptr("https://example.com"), Events: store.EventTypes})
		if err != nil {
			t.Fatal(err)
		}
		rotated, err := s.RotateSecret(t.Context(), v, p.ID, 24)
		if err != nil {
			t.Fatal(err)
		}
		secrets := func(at store.Time) []string {
			got, err := s.SigningSecrets(p.ID, rotated.Endpoint.Secrets, at)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		if got := secrets(store.Now()); !slices.Equal(got, []string{rotated.Secret, old}) {
			t.Errorf("signing secrets now: %v", got)
		}
		if got := secrets(store.Now().Add(25 * time.Hour)); !slices.Equal(got, []string{rotated.Secret}) {
			t.Errorf("signing secrets tomorrow: %v", got)
		}
		for range 3 {
			if rotated, err = s.RotateSecret(t.Context(), v, p.ID, 24); err != nil {
				t.Fatal(err)
			}
		}
		if got := secrets(store.Now()); len(got) != 3 || got[0] != rotated.Secret {
			t.Errorf("signing secrets after four rotations: %d", len(got))
		}
	})
}

func TestEndpointsAreLimited(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, func(c *store.Config) { c.MaxEndpoints = 2 })
		v := newBusiness(t, s)
		in := store.EndpointInput{URL: ptr("https://example.com"), Events: store.EventTypes}
		first := newEndpoint(t, s, v, store.EventTypes...)
		newEndpoint(t, s, v, store.EventTypes...)
		_, _, err := s.CreateEndpoint(t.Context(), v, in)
		if e, ok := store.AsError(err); !ok || e.Reason != "limit_reached" {
			t.Errorf("the third of two endpoints: %v", err)
		}
		if err := s.DeleteEndpoint(t.Context(), v, first.ID); err != nil {
			t.Fatal(err)
		}
		newEndpoint(t, s, v, store.EventTypes...)

		// As many again may be disabled: their list has no pages.
		disable := func() {
			t.Helper()
			all, err := s.Endpoints(t.Context(), v.BusinessID)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range all {
				if _, err := s.UpdateEndpoint(t.Context(), v, p.ID, store.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		disable()
		last := newEndpoint(t, s, v, store.EventTypes...)
		newEndpoint(t, s, v, store.EventTypes...)
		disable()
		_, _, err = s.CreateEndpoint(t.Context(), v, in)
		if e, ok := store.AsError(err); !ok || e.Reason != "limit_reached" || !strings.Contains(e.Message, "may have 4 ") {
			t.Errorf("the fifth of four endpoints: %v", err)
		}
		if err := s.DeleteEndpoint(t.Context(), v, last.ID); err != nil {
			t.Fatal(err)
		}
		newEndpoint(t, s, v, store.EventTypes...)
	})
}

// takeAll takes all shards, and returns the holds by shard.
func takeAll(t *testing.T, s *store.Store, replica string) map[int]store.Hold {
	t.Helper()
	taken, err := s.TakeShards(t.Context(), replica, store.Shards)
	if err != nil || len(taken) != store.Shards {
		t.Fatalf("took %d shards, %v", len(taken), err)
	}
	of := map[int]store.Hold{}
	for _, h := range taken {
		of[h.Shard] = h
	}
	return of
}
