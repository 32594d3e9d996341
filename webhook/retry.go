package webhook

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"parley/store"
)

// Policy says when a failed delivery is tried again.
type Policy struct {
	Retries int           // automatic retries after the first attempt
	Backoff time.Duration // before the first retry; each next one is 5 times longer
}

const (
	backoffFactor = 5
	jitter        = 0.2 // of the backoff, either way
	maxRetryAfter = 10 * time.Minute
	maxBackoff    = 24 * time.Hour
)

// of is the policy for attempts made for a reason: those by hand, and tests, are one attempt each.
func (p Policy) of(why store.AttemptTrigger) Policy {
	if why == store.TriggerManual || why == store.TriggerTest {
		p.Retries = 0
	}
	return p
}

// answer is how an attempt ended: with a status, or without one for the reason in class.
type answer struct {
	status     int           // 0: none in time
	class      string        // why not
	retryAfter time.Duration // what the receiver asked for; 0: nothing
}

// verdict is what an answer means.
type verdict struct {
	status  store.DeliveryStatus
	delay   time.Duration // until the next attempt, when retrying
	failure string        // what the attempt's record says; empty for a success
	disable string        // why the endpoint is to be disabled; empty: it is not
}

// decide says what follows from the answer to a delivery's attempt with this number, counted from 1. chance, in [0, 1),
// spreads the retries of many deliveries.
func (p Policy) decide(number int, a answer, chance float64) verdict {
	if a.status >= 200 && a.status < 300 {
		return verdict{status: store.Delivered}
	}
	v := verdict{status: store.Failed, failure: a.class}
	if a.status != 0 {
		v.failure = fmt.Sprintf("http_%d", a.status)
	}
	switch {
	case a.status == http.StatusGone:
		v.disable = "the receiver answered 410 Gone"
		return v
	case number > p.Retries:
		return v
	}
	v.status = store.Retrying
	backoff := min(float64(p.Backoff)*math.Pow(backoffFactor, float64(number-1)), float64(maxBackoff))
	v.delay = time.Duration(backoff * (1 - jitter + 2*jitter*chance))
	if a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable {
		v.delay = max(v.delay, min(a.retryAfter, maxRetryAfter))
	}
	return v
}

// retryAfter reads the header Retry-After (RFC 9110, section 10.2.3), seconds or a date; 0 for none, or for nonsense. More seconds
// than can be counted are as long as may be asked for.
func retryAfter(header string, now time.Time) time.Duration {
	if header == "" {
		return 0
	}
	switch seconds, err := strconv.ParseUint(header, 10, 31); {
	case err == nil:
		return time.Duration(seconds) * time.Second
	case errors.Is(err, strconv.ErrRange) && strings.Trim(header, "0123456789") == "":
		return maxRetryAfter
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
