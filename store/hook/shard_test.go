package hook_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/store"
	"parley/store/hook"
)

// TestShardsHaveOneHolder: a shard is taken by one replica at a time, and whoever has it renews it; given back, it is taken at once.
// Replicas that live share them evenly.
func TestShardsHaveOneHolder(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		first := maps.Clone(b.holds)
		if b.h.Shared() {
			if taken, err := b.h.TakeShards(t.Context(), "second", 1); err != nil || len(taken) != 0 {
				t.Fatalf("took what is held: %v, %v", taken, err)
			}
			if held, share, err := b.h.RenewShards(t.Context(), "second"); err != nil || len(held) != 0 || share != hook.Shards {
				t.Errorf("the only live replica holds %v of %d, %v", held, share, err)
			}
			held, share, err := b.h.RenewShards(t.Context(), "first")
			if err != nil || len(held) != 0 || share != hook.Shards/2 {
				t.Errorf("one of two holds %d, its share is %d, %v", len(held), share, err)
			}
			held, share, err = b.h.RenewShards(t.Context(), "replica")
			if err != nil || len(held) != hook.Shards || share != (hook.Shards+2)/3 {
				t.Errorf("the holder, of three, holds %d, its share is %d, %v", len(held), share, err)
			}
			for _, x := range held {
				if first[x.Shard] != x {
					t.Errorf("renewed %+v, held %+v", x, first[x.Shard])
				}
			}
			if err := b.h.Leave(t.Context(), "first"); err != nil {
				t.Fatal(err)
			}
			if _, share, err := b.h.RenewShards(t.Context(), "replica"); err != nil || share != hook.Shards/2 {
				t.Errorf("when one has left, its share is %d, %v", share, err)
			}
			lost := b.hold()
			lost.Token--
			if err := b.h.GiveShards(t.Context(), []hook.Hold{lost}); err != nil { // an older hold's
				t.Fatal(err)
			}
			if taken, err := b.h.TakeShards(t.Context(), "second", 1); err != nil || len(taken) != 0 {
				t.Fatalf("took what is held: %v, %v", taken, err)
			}
			if err := b.h.GiveShards(t.Context(), []hook.Hold{b.hold()}); err != nil {
				t.Fatal(err)
			}
			taken, err := b.h.TakeShards(t.Context(), "second", hook.Shards)
			if err != nil || len(taken) != 1 || taken[0].Shard != b.shard() || taken[0].Token <= b.hold().Token {
				t.Fatalf("took %+v, %v", taken, err)
			}
			if err := b.h.KeepShards(t.Context(), []hook.Hold{b.hold(), taken[0]}); err != nil {
				t.Fatal(err)
			}
			b.holds[b.shard()] = taken[0]
		}
		b.takenOver("third")
		for shard, x := range b.holds {
			if x.Token <= first[shard].Token {
				t.Errorf("the third has %+v, the first had %+v", x, first[shard])
			}
		}
	})
}

// TestALeaseThatIsOver is renewed by its holder, under the same token, unless somebody has taken
// it; then its holder has it no more.
func TestALeaseThatIsOver(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	b := newBench(t, func(t *testing.T, change func(*config)) (*store.Store, *hook.Hooks) { return open(t, url, change) }, nil)
	execute(t, b.s, "UPDATE shards SET held_until = 1")
	held, _, err := b.h.RenewShards(t.Context(), "replica")
	if err != nil || len(held) != hook.Shards {
		t.Errorf("renewed %d of what was over, %v", len(held), err)
	}
	for _, x := range held {
		if b.holds[x.Shard] != x {
			t.Errorf("renewed %+v, held %+v", x, b.holds[x.Shard])
		}
	}
	if taken, err := b.h.TakeShards(t.Context(), "another", hook.Shards); err != nil || len(taken) != 0 {
		t.Errorf("took %d that were renewed, %v", len(taken), err)
	}
	execute(t, b.s, "UPDATE shards SET held_until = 1")
	if err := b.h.KeepShards(t.Context(), []hook.Hold{b.hold()}); err != nil {
		t.Fatal(err)
	}
	if taken, err := b.h.TakeShards(t.Context(), "another", hook.Shards); err != nil || len(taken) != hook.Shards {
		t.Errorf("took %d, %v", len(taken), err)
	}
	if held, _, err := b.h.RenewShards(t.Context(), "replica"); err != nil || len(held) != 0 {
		t.Errorf("renewed what another has: %v, %v", held, err)
	}
}

// TestALeaseWaitsForNobody: a replica's shards are renewed while all of its other connections wait, and while it hands one of them
// back that somebody else is at.
func TestALeaseWaitsForNobody(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	b := newBench(t, func(t *testing.T, change func(*config)) (*store.Store, *hook.Hooks) { return open(t, url, change) }, nil)
	renewed := func(want int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if held, _, err := b.h.RenewShards(ctx, "replica"); err != nil || len(held) != want {
			t.Errorf("renewed %d of %d, %v", len(held), want, err)
		}
	}
	blocking, waiting := blocked(t, url)
	var others sync.WaitGroup
	defer others.Wait()
	defer blocking("ROLLBACK")
	blocking("SELECT 1 FROM shards WHERE token >= 0 ORDER BY shard LIMIT 1 FOR KEY SHARE") // as an outcome that is being written
	others.Go(func() { _ = b.h.GiveShards(context.Background(), []hook.Hold{b.holds[0]}) })
	waiting(1)
	renewed(hook.Shards)
	blocking("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
	for range 20 {
		others.Go(func() { _, _ = b.s.Run(context.Background(), b.v.BusinessID, "run_none") })
	}
	waiting(10)
	renewed(hook.Shards)
}
