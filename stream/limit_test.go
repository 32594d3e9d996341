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
	// Nil, or closed when nobody waits for the answer any more.
	var slow atomic.Pointer[chan struct{}]
	relay := (&servers.Relay{To: servers.Redis(t).Addr, Judge: func(said []byte) servers.Fate {
		if given := slow.Load(); given != nil && bytes.Contains(bytes.ToLower(said), []byte("eval")) {
			select {
			case <-*given:
			// Whoever waits longer than the limit may gets its answer: go-redis has two seconds.
			case <-time.After(1900 * time.Millisecond):
			}
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
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Log(err) // closing a connection that is in use
		}
	})
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
	for range 2 {
		given := make(chan struct{})
		slow.Store(&given)
		if wait := limit.Allow(t.Context(), "a"); wait > 0 {
			t.Errorf("refused for %v by a Redis that was waited for too long", wait)
		}
		close(given)
	}
	if !s.Ringing() {
		t.Error("the stream has ended")
	}
}
