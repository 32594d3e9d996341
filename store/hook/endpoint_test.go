package hook_test

import (
	"net/http"
	"testing"

	"parley/store"
)

// TestAnotherURLOfAnAgent enables its endpoint where that was disabled because the old one failed, and not where the business
// disabled it.
func TestAnotherURLOfAnAgent(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		set := func(url string) *store.Endpoint {
			t.Helper()
			_, err := b.s.UpdateAgent(t.Context(), b.v, "demo", store.AgentInput{WebhookURL: store.OptionalString{Set: true, Value: &url}})
			if err != nil {
				t.Fatal(err)
			}
			of, err := b.s.EndpointsOfAgents(t.Context(), b.v.BusinessID, []string{"demo"})
			if err != nil || of["demo"] == nil || of["demo"].URL != url {
				t.Fatalf("%+v, %v", of["demo"], err)
			}
			return of["demo"]
		}
		p := set("https://example.com/1")
		if _, err := b.s.UpdateEndpoint(t.Context(), b.v, p.ID, store.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
			t.Fatal(err)
		}
		if p = set("https://example.com/2"); p.Status != store.Disabled || p.DisabledReason == nil {
			t.Errorf("disabled by the business, and with another URL: %+v", p)
		}
		if _, err := b.s.UpdateEndpoint(t.Context(), b.v, p.ID, store.EndpointInput{Status: ptr(store.Enabled)}); err != nil {
			t.Fatal(err)
		}
		finish(t, b.s, begin(t, b.s, b.v, ""))
		jobs, err := b.s.Claim(t.Context(), []store.Wanted{{EndpointID: p.ID, Limit: 1, UpTo: 1000, Hold: b.hold()}}, store.ShardLease)
		if err != nil || len(jobs) != 1 {
			t.Fatalf("claimed %d, %v", len(jobs), err)
		}
		gone := &store.Outcome{Job: jobs[0], Status: store.Failed, Disable: "it is gone", Attempt: &store.Attempt{
			DeliveryID: jobs[0].DeliveryID, Number: 1, Trigger: jobs[0].Trigger, StartedAt: store.Now(), StatusCode: ptr(http.StatusGone), Error: ptr("http_410"),
		}}
		if _, disabled, err := b.s.Record(t.Context(), []*store.Outcome{gone}); err != nil || len(disabled) != 1 {
			t.Fatalf("disabled %v, %v", disabled, err)
		}
		if p = set("https://example.com/2"); p.Status != store.Disabled {
			t.Errorf("gone, and with the same URL: %+v", p)
		}
		if p = set("https://example.com/3"); p.Status != store.Enabled || p.DisabledReason != nil || p.FailingSince != nil {
			t.Errorf("gone, and with another URL: %+v", p)
		}
	})
}
