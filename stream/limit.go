package stream

import (
	"context"
	"time"

	"github.com/go-redis/redis_rate/v10"
)

// Limiter counts requests by key, in Redis, so that all replicas count together.
type Limiter struct {
	stream  *Stream
	limiter *redis_rate.Limiter
	limit   redis_rate.Limit
}

// NewLimiter allows so many requests a minute and key, evenly spread, with bursts of as many.
func (s *Stream) NewLimiter(perMinute int) *Limiter {
	return &Limiter{s, redis_rate.NewLimiter(s.client), redis_rate.PerMinute(perMinute)}
}

// Allow counts a request, and says how long to wait if it is one too many; 0 lets it through. With Redis away it lets
// everything through: a limit is not worth an outage.
func (l *Limiter) Allow(ctx context.Context, key string) time.Duration {
	if !l.stream.Embedded() && !l.stream.Ringing() {
		return 0 // a Redis that hangs would hold up every request
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	res, err := l.limiter.Allow(ctx, "parley:{limit:"+key+"}", l.limit)
	if err != nil || res.Allowed > 0 {
		return 0
	}
	return res.RetryAfter
}
