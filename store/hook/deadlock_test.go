package hook_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/uptrace/bun/driver/pgdriver"

	"parley/e2e/servers"
	"parley/store"
)

// TestReplicasDoNotDeadlock has two replicas do at once, again and again, whatever takes locks on several rows: PostgreSQL
// counts no deadlock.
func TestReplicasDoNotDeadlock(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	db := sql.OpenDB(pgdriver.NewConnector(pgdriver.WithDSN(url)))
	defer func() { _ = db.Close() }()
	t.Run("two replicas", func(t *testing.T) { // a test of its own, so that its stores are closed when it has ended
		var replicas []*store.Store
		for range 2 {
			replicas = append(replicas, open(t, func(c *store.Config) {
				c.URL, c.Ringing = url, func() bool { return rand.IntN(2) == 0 } // some deliveries are born with rows
			}))
		}
		var businesses []*store.Viewer
		var wanted []store.Wanted
		for range 12 {
			v := newBusiness(t, replicas[0])
			p := newEndpoint(t, replicas[0], v, store.EventTypes...)
			businesses = append(businesses, v)
			wanted = append(wanted, store.Wanted{EndpointID: p.ID, Limit: 10, UpTo: 1 << 40, Hold: store.Hold{Shard: p.Shard}})
		}
		const rounds = 8
		var wg sync.WaitGroup
		for i, s := range replicas {
			name := fmt.Sprint("replica ", i)
			var mu sync.Mutex // guards holds
			holds := map[int]store.Hold{}
			again := func(what string, do func() error) {
				wg.Go(func() {
					for range rounds {
						if err := do(); err != nil {
							t.Errorf("%s: %s: %v", name, what, err)
							return
						}
					}
				})
			}
			again("take and give shards", func() error {
				taken, err := s.TakeShards(t.Context(), name, store.Shards)
				if err != nil {
					return err
				}
				mu.Lock()
				for _, h := range taken {
					holds[h.Shard] = h
				}
				mu.Unlock()
				if _, _, err := s.RenewShards(t.Context(), name); err != nil {
					return err
				}
				rand.Shuffle(len(taken), func(i, j int) { taken[i], taken[j] = taken[j], taken[i] })
				return s.GiveShards(t.Context(), taken)
			})
			again("renew", func() error {
				if _, err := db.ExecContext(t.Context(), "UPDATE replicas SET alive_until = 0 WHERE id = $1", name); err != nil {
					return err
				}
				_, _, err := s.RenewShards(t.Context(), name)
				return err
			})
			again("prune", func() error {
				_, err := s.Prune(t.Context(), store.Now().Add(time.Hour))
				return err
			})
			for _, v := range businesses {
				again("turn", func() error {
					turn, err := s.BeginTurn(t.Context(), turnInput(v, ""))
					if err != nil {
						return err
					}
					return s.FailTurn(t.Context(), turn.Run, store.RunInterrupted)
				})
			}
			again("unfold", func() error { return s.UnfoldAll(t.Context()) })
			again("end", func() error { return s.EndWaiting(t.Context()) })
			again("disable and enable", func() error {
				i := rand.IntN(len(wanted))
				_, err := s.UpdateEndpoint(t.Context(), businesses[i], wanted[i].EndpointID, store.EndpointInput{Status: ptr(store.Disabled)})
				if err == nil {
					_, err = s.UpdateEndpoint(t.Context(), businesses[i], wanted[i].EndpointID, store.EndpointInput{Status: ptr(store.Enabled)})
				}
				if e, ok := store.AsError(err); ok && e.Reason == "endpoint_ending" {
					return nil
				}
				return err
			})
			for range 4 {
				again("send what is fresh", func() error {
					v := businesses[rand.IntN(len(businesses))]
					mu.Lock()
					hold, held := holds[store.ShardOf(v.BusinessID)]
					mu.Unlock()
					extent, err := s.Extent(t.Context(), v.BusinessID)
					if err != nil || !held {
						return err
					}
					var ids []string
					last, err := s.EventsAfter(t.Context(), v.BusinessID, max(extent.Pruned, extent.Last-5), extent.Last, nil, 5)
					for _, e := range last {
						ids = append(ids, e.ID)
					}
					if err != nil || len(ids) == 0 {
						return err
					}
					jobs, _, err := s.FreshJobs(t.Context(), []store.Hold{hold}, ids)
					if err != nil {
						return err
					}
					_, _, err = s.Record(t.Context(), delivered(jobs))
					return err
				})
			}
			for range 8 { // together they make batches that lock shards in any order
				again("claim and release", func() error {
					mu.Lock()
					var some []store.Wanted
					for _, i := range rand.Perm(len(wanted))[:3] {
						w := wanted[i]
						if h, ok := holds[w.Hold.Shard]; ok {
							w.Hold = h
							some = append(some, w)
						}
					}
					mu.Unlock()
					jobs, err := s.Claim(t.Context(), some, time.Minute)
					if err != nil {
						return err
					}
					return s.Release(t.Context(), jobs)
				})
			}
		}
		wg.Wait()
	})
	var deadlocks int
	if err := db.QueryRowContext(t.Context(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&deadlocks); err != nil {
		t.Fatal(err)
	}
	if deadlocks > 0 {
		t.Errorf("%d deadlocks", deadlocks)
	}
}
