package hook_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"parley/store"
	"parley/store/hook"
)

func TestEndpointsAreLimited(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s, h := open(t, func(c *config) { c.hook.MaxEndpoints = 2 })
		v := newBusiness(t, s)
		in := hook.EndpointInput{URL: ptr("https://example.com"), Events: store.EventTypes}
		first := newEndpoint(t, h, v, store.EventTypes...)
		newEndpoint(t, h, v, store.EventTypes...)
		_, _, err := h.CreateEndpoint(t.Context(), v, in)
		if e, ok := store.AsError(err); !ok || e.Reason != "limit_reached" {
			t.Errorf("the third of two endpoints: %v", err)
		}
		if err := h.DeleteEndpoint(t.Context(), v, first.ID); err != nil {
			t.Fatal(err)
		}
		newEndpoint(t, h, v, store.EventTypes...)

		// As many again may be disabled: their list has no pages.
		disable := func() {
			t.Helper()
			all, err := h.Endpoints(t.Context(), v.BusinessID)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range all {
				if _, err := h.UpdateEndpoint(t.Context(), v, p.ID, hook.EndpointInput{Status: ptr(store.Disabled)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		disable()
		last := newEndpoint(t, h, v, store.EventTypes...)
		newEndpoint(t, h, v, store.EventTypes...)
		disable()
		_, _, err = h.CreateEndpoint(t.Context(), v, in)
		if e, ok := store.AsError(err); !ok || e.Reason != "limit_reached" || !strings.Contains(e.Message, "may have 4 ") {
			t.Errorf("the fifth of four endpoints: %v", err)
		}
		if err := h.DeleteEndpoint(t.Context(), v, last.ID); err != nil {
			t.Fatal(err)
		}
		newEndpoint(t, h, v, store.EventTypes...)
	})
}

// TestAgentsEndpointsCountToo: an agent's own webhook takes the place of an endpoint, whoever came first.
func TestAgentsEndpointsCountToo(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s, h := open(t, func(c *config) { c.hook.MaxEndpoints = 2 })
		v := newBusiness(t, s)
		own := func(url *string) error {
			_, err := s.UpdateAgent(t.Context(), v, "demo", store.AgentInput{WebhookURL: store.OptionalString{Set: true, Value: url}})
			return err
		}
		first := newEndpoint(t, h, v, store.RunFinished)
		if err := own(ptr("https://example.com/1")); err != nil {
			t.Fatal(err)
		}
		_, _, err := h.CreateEndpoint(t.Context(), v, hook.EndpointInput{URL: ptr("https://example.com"), Events: store.EventTypes})
		refused(t, "a third", err, "limit_reached")
		if err := own(nil); err != nil {
			t.Fatal(err)
		}
		newEndpoint(t, h, v, store.RunFinished)
		refused(t, "an agent's as the third", own(ptr("https://example.com/2")), "limit_reached")
		if err := h.DeleteEndpoint(t.Context(), v, first.ID); err != nil {
			t.Fatal(err)
		}
		if err := own(ptr("https://example.com/2")); err != nil {
			t.Error(err)
		}
	})
}

// TestAnotherURLOfAnAgent enables its endpoint where that was disabled because the old one failed, and not where the business
// disabled it.
func TestAnotherURLOfAnAgent(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		set := func(url string) *hook.Endpoint {
			t.Helper()
			_, err := b.s.UpdateAgent(t.Context(), b.v, "demo", store.AgentInput{WebhookURL: store.OptionalString{Set: true, Value: &url}})
			if err != nil {
				t.Fatal(err)
			}
			of, err := b.h.EndpointsOfAgents(t.Context(), b.v.BusinessID, []string{"demo"})
			if err != nil || of["demo"] == nil || of["demo"].URL != url {
				t.Fatalf("%+v, %v", of["demo"], err)
			}
			return of["demo"]
		}
		p := set("https://example.com/1")
		b.set(p.ID, store.Disabled)
		if p = set("https://example.com/2"); p.Status != store.Disabled || p.DisabledReason == nil {
			t.Errorf("disabled by the business, and with another URL: %+v", p)
		}
		b.set(p.ID, store.Enabled)
		b.turns(1)
		jobs := b.next(p.ID)
		if len(jobs) != 2 {
			t.Fatalf("%d wait", len(jobs))
		}
		gone := b.outcome(jobs[0], store.Failed, nil)
		gone.URL, gone.Disable, gone.Attempt.StatusCode = "https://example.com/2", "it is gone", ptr(http.StatusGone)
		if recorded := b.record(gone); len(recorded.Disabled) != 1 {
			t.Fatalf("recorded %+v", recorded)
		}
		if p = set("https://example.com/2"); p.Status != store.Disabled {
			t.Errorf("gone, and with the same URL: %+v", p)
		}
		if p = set("https://example.com/3"); p.Status != store.Enabled || p.DisabledReason != nil || p.FailingSince != nil {
			t.Errorf("gone, and with another URL: %+v", p)
		}
	})
}

// TestEndpointHealth: an endpoint whose deliveries fail for good is disabled once that has gone on for long enough without one
// success. Retries say nothing, a success begins anew, and so does enabling.
func TestEndpointHealth(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		const grace = time.Hour
		b := newBench(t, open, func(c *config) { c.hook.EndpointGrace = grace })
		health := func() *hook.Endpoint {
			t.Helper()
			return b.endpoint(b.p.ID)
		}
		pass := func() {
			t.Helper()
			execute(t, b.s, "UPDATE endpoints SET failing_since = failing_since - ?", grace.Microseconds())
		}
		later := store.Now().Add(time.Hour)
		b.end(store.Retrying, &later, b.event())
		if p := health(); p.FailingSince != nil {
			t.Errorf("a retry is to come: %+v", p)
		}
		b.end(store.Failed, nil, b.event())
		first := health()
		if first.FailingSince == nil || first.Status != store.Enabled {
			t.Fatalf("after the first failure: %+v", first)
		}
		b.end(store.Failed, nil, b.event())
		if p := health(); *p.FailingSince != *first.FailingSince || p.Status != store.Enabled {
			t.Errorf("the second failure: %+v", p)
		}
		pass()
		b.end(store.Delivered, nil, b.event())
		if p := health(); p.FailingSince != nil {
			t.Errorf("after a success: %+v", p)
		}
		b.end(store.Failed, nil, b.event())
		pass()
		last := b.event()
		b.turns(1)
		b.end(store.Failed, nil, last)
		p := health()
		if p.Status != store.Disabled || p.DisabledReason == nil || !strings.Contains(*p.DisabledReason, "http_500") {
			t.Errorf("after the grace: %+v", p)
		}
		for _, d := range b.deliveries() {
			if d.NextAttemptAt() != nil {
				t.Errorf("something waits for a disabled endpoint: %+v", d)
			}
		}
		b.set(b.p.ID, store.Enabled)
		b.end(store.Failed, nil, b.event())
		if p := health(); p.Status != store.Enabled || p.DisabledReason != nil || p.FailingSince == nil {
			t.Errorf("enabled again, and failed once: %+v", p)
		}
	})
}

// TestANewAddressBeginsAnew: what the old address of an endpoint did, or still answers, does not disable it at its new one.
func TestANewAddressBeginsAnew(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		const grace = time.Hour
		b := newBench(t, open, func(c *config) { c.hook.EndpointGrace = grace })
		b.end(store.Failed, nil, b.event())
		execute(t, b.s, "UPDATE endpoints SET failing_since = failing_since - ?", grace.Microseconds())
		old := b.event()
		p, err := b.h.UpdateEndpoint(t.Context(), b.v, b.p.ID, hook.EndpointInput{URL: ptr("https://example.com/new")})
		if err != nil || p.FailingSince != nil {
			t.Errorf("moved: %+v, %v", p, err)
		}
		gone := func(job *hook.Job, url string) *hook.Endpoint {
			t.Helper()
			o := b.outcome(job, store.Failed, nil)
			o.URL, o.Disable, o.Attempt.Error = url, "gone", ptr("http_410")
			b.record(o)
			return b.endpoint(b.p.ID)
		}
		waits := b.event()
		if p := gone(old, "https://example.com/hook"); p.Status != store.Enabled {
			t.Errorf("the old address is gone: %+v", p)
		}
		b.status(waits.ID(), store.Pending, 0)
		if p := gone(waits, "https://example.com/new"); p.Status != store.Disabled || *p.DisabledReason != "gone" {
			t.Errorf("the new address is gone: %+v", p)
		}
	})
}
