package webhook

import (
	"net/http"
	"testing"
	"time"

	"parley/store"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	p := Policy{Retries: 2, Backoff: 5 * time.Second}
	for name, c := range map[string]struct {
		number int
		answer answer
		chance float64
		want   verdict
	}{
		"200":                     {1, answer{status: 200}, 0.5, verdict{status: store.Delivered}},
		"299 at last":             {3, answer{status: 299}, 0.5, verdict{status: store.Delivered}},
		"redirect":                {1, answer{status: 302}, 0.5, verdict{store.Retrying, 5 * time.Second, "http_302", ""}},
		"400":                     {1, answer{status: 400}, 0.5, verdict{store.Retrying, 5 * time.Second, "http_400", ""}},
		"408":                     {1, answer{status: 408}, 0.5, verdict{store.Retrying, 5 * time.Second, "http_408", ""}},
		"425":                     {1, answer{status: 425}, 0.5, verdict{store.Retrying, 5 * time.Second, "http_425", ""}},
		"429":                     {1, answer{status: 429}, 0.5, verdict{store.Retrying, 5 * time.Second, "http_429", ""}},
		"a reset":                 {2, answer{class: "connection_reset"}, 0.5, verdict{store.Retrying, 25 * time.Second, "connection_reset", ""}},
		"an interim as the last":  {1, answer{status: 101}, 0.5, verdict{store.Retrying, 5 * time.Second, "http_101", ""}},
		"second is 5 times later": {2, answer{status: 500}, 0.5, verdict{store.Retrying, 25 * time.Second, "http_500", ""}},
		"the last":                {3, answer{status: 500}, 0.5, verdict{store.Failed, 0, "http_500", ""}},
		"410 disables":            {1, answer{status: 410}, 0.5, verdict{store.Failed, 0, "http_410", "the receiver answered 410 Gone"}},
		"no answer":               {1, answer{class: "timeout"}, 0.5, verdict{store.Retrying, 5 * time.Second, "timeout", ""}},
		"least jitter":            {1, answer{class: "timeout"}, 0, verdict{store.Retrying, 4 * time.Second, "timeout", ""}},
		"Retry-After lengthens":   {1, answer{status: 429, retryAfter: time.Minute}, 0.5, verdict{store.Retrying, time.Minute, "http_429", ""}},
		"but never shortens":      {2, answer{status: 503, retryAfter: time.Second}, 0.5, verdict{store.Retrying, 25 * time.Second, "http_503", ""}},
		"up to 10 minutes":        {1, answer{status: 503, retryAfter: time.Hour}, 0.5, verdict{store.Retrying, 10 * time.Minute, "http_503", ""}},
		"on 429 and 503 alone":    {1, answer{status: 500, retryAfter: time.Hour}, 0.5, verdict{store.Retrying, 5 * time.Second, "http_500", ""}},
	} {
		if got := p.decide(c.number, c.answer, c.chance); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-7": 0, "7.5": 0, "soon": 0,
		"4294967295": maxRetryAfter, "99999999999999999999": maxRetryAfter, "-99999999999999999999": 0, "99999999999999999999s": 0,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute,
		now.Add(-time.Hour).Format(http.TimeFormat):  0,
	} {
		if got := retryAfter(header, now); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}
