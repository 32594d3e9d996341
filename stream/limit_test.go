package stream_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/stream"
)

// TestLimitOfASlowRedis: a Redis that takes longer for the limit than the second that it has lets everything pass, though go-redis
// itself would wait for it, and the stream goes on.
func TestLimitOfASlowRedis(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	relay := (&servers.Relay{To: servers.Redis(t).Addr, Judge: func(said []byte) servers.Fate {
		if slow.Load() && bytes.Contains(bytes.ToLower(said), []byte("eval")) {
			time.Sleep(1600 * time.Millisecond) // and go-redis has two seconds
		}
		return servers.Passed
	}}).Start(t)
	s, err := stream.Open(stream.Config{URL: "redis://" + relay.Addr, Receive: func([]stream.Entry) {}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() { stop(); _ = <-ended })
	for !s.Ringing() {
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	limit := s.NewLimiter(1)
	if wait := limit.Allow(t.Context(), "a"); wait > 0 {
		t.Fatalf("the first is refused for %v", wait)
	}
	if wait := limit.Allow(t.Context(), "a"); wait == 0 {
		t.Fatal("the second is let in by a quick Redis")
	}
	slow.Store(true)
	for range 2 {
		if wait := limit.Allow(t.Context(), "a"); wait > 0 {
			t.Errorf("refused for %v by a Redis that was waited for too long", wait)
		}
	}
	if !s.Ringing() {
		t.Error("the stream has ended")
	}
}
