package transport_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"parley/graph/transport"
)

func TestWebSocketClosesASlowConsumerAndNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{WriteTimeout: time.Second, QueueBytes: 256 << 10}, transport.HTTP{})
	slow, other := w.connect(t), w.connect(t)
	other.subscribe("1", `subscription{feed}`)
	feed := wait(t, "the feed", w.feeds)
	slow.subscribe("1", `subscription{flood}`) // and nothing is read

	served := 0
	for closed := false; !closed; served++ {
		feed.items <- "news"
		other.expect(`{"id":"1","type":"next","payload":{"data":{"feed":"news"}}}`)
		select {
		case got := <-w.closed:
			if got != (closure{1013, "slow consumer"}) {
				t.Fatalf("closed with %v", got)
			}
			closed = true
		default:
		}
	}
	feed.items <- "afterwards"
	other.expect(`{"id":"1","type":"next","payload":{"data":{"feed":"afterwards"}}}`)
	t.Logf("the other had %d messages meanwhile", served)

	// It comes back, and learns why.
	for {
		got, err := slow.receive()
		if err != nil {
			checkClose(t, err, 1013, "slow consumer")
			return
		}
		_ = got
	}
}

func TestWebSocketCutsASlowConsumerThatNeverComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{WriteTimeout: 50 * time.Millisecond, QueueBytes: 64 << 10}, transport.HTTP{})
	w.connect(t).subscribe("1", `subscription{flood}`)
	wait(t, "the close", w.closed)
	// Shutdown waits for it no longer than for any other, although a slow consumer would have had more time.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := w.live.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

func TestWebSocketTakesAMessageLargerThanItsQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{QueueBytes: 1000}, transport.HTTP{})
	client := w.connect(t)
	client.subscribe("1", `subscription{flood}`)
	for range 10 {
		if got, err := client.receive(); err != nil || len(got) < 16<<10 {
			t.Fatal(got, err)
		}
	}
}

func TestWebSocketShutdownEndsOperationsAndWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{})
	client := w.connect(t)
	client.subscribe("1", `subscription{feed}`)
	feed := wait(t, "the feed", w.feeds)
	client.subscribe("2", `{waits}`) // does not heed its context
	wait(t, "the operation", w.begun)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.live.Shutdown(ctx) }()
	wait(t, "the end of the operation", feed.ctx.Done())
	client.expectClose(1001, "going away") // and no `complete`: the client subscribes again elsewhere
	cancel()
	if err := wait(t, "Shutdown", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown with an operation left: %v", err)
	}
	close(w.waits)
	if err := w.live.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
