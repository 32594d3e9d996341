package hook_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/store"
	"parley/store/hook"
)

// TestReplicasDoNotDeadlock has two replicas do at once, again and again, whatever takes locks on several rows: PostgreSQL
// counts no deadlock.
func TestReplicasDoNotDeadlock(t *testing.T) {
	t.Parallel()
	url := servers.Database(t)
	db := dial(t, url)
	t.Run("two replicas", func(t *testing.T) { // a test of its own, so that its stores are closed when it has ended
		type replica struct {
			s *store.Store
			h *hook.Hooks
		}
		var replicas []replica
		for range 2 {
			s, h := open(t, url, func(c *config) { c.Retention = time.Hour })
			replicas = append(replicas, replica{s, h})
		}
		var businesses []*store.Viewer
		endpoints := map[string][]string{} // by business
		for range 8 {
			v := newBusiness(t, replicas[0].s)
			businesses = append(businesses, v)
			for range 2 {
				endpoints[v.BusinessID] = append(endpoints[v.BusinessID], newEndpoint(t, replicas[0].h, v, store.EventTypes...).ID)
			}
		}
		const rounds = 12
		var wg sync.WaitGroup
		for i, r := range replicas {
			s, h, ctx := r.s, r.h, t.Context()
			name := fmt.Sprint("replica ", i)
			var mu sync.Mutex // guards holds
			holds := map[int]hook.Hold{}
			held := func() (all []hook.Hold) {
				mu.Lock()
				defer mu.Unlock()
				for _, x := range holds {
					all = append(all, x)
				}
				return all
			}
			again := func(what string, reasons []string, do func() error) {
				wg.Go(func() {
					for range rounds {
						err := do()
						if e, ok := store.AsError(err); ok && slices.Contains(reasons, e.Reason) {
							continue
						}
						if err != nil {
							t.Errorf("%s: %s: %v", name, what, err)
							return
						}
					}
				})
			}
			some := func() (*store.Viewer, string) {
				v := businesses[rand.IntN(len(businesses))]
				return v, endpoints[v.BusinessID][rand.IntN(2)]
			}
			again("take and give shards", nil, func() error {
				taken, err := h.TakeShards(ctx, name, hook.Shards/2)
				if err != nil {
					return err
				}
				mu.Lock()
				for _, x := range taken {
					holds[x.Shard] = x
				}
				mu.Unlock()
				if _, _, err := h.RenewShards(ctx, name); err != nil {
					return err
				}
				if rand.IntN(2) == 0 {
					return nil
				}
				rand.Shuffle(len(taken), func(i, j int) { taken[i], taken[j] = taken[j], taken[i] })
				return h.GiveShards(ctx, taken)
			})
			again("renew", nil, func() error {
				if _, err := db.ExecContext(ctx, "UPDATE replicas SET alive_until = 0 WHERE id = $1", name); err != nil {
					return err
				}
				if err := h.KeepShards(ctx, held()); err != nil {
					return err
				}
				_, _, err := h.RenewShards(ctx, name)
				return err
			})
			again("prune", nil, func() error {
				_, err := s.Prune(ctx, s.Now().Add([]time.Duration{0, time.Hour, 3 * time.Hour}[rand.IntN(3)]))
				return err
			})
			again("sweep", nil, func() error { return h.Sweep(ctx) })
			for _, v := range businesses {
				session := ""
				again("turn", []string{"session_busy", "session_not_found"}, func() error {
					turn, err := s.BeginTurn(ctx, turnInput(v, session))
					if err != nil {
						return err
					}
					session = turn.SessionID
					if err := s.KeepTurns(ctx, []string{turn.Run.ID}, time.Minute); err != nil {
						return err
					}
					if rand.IntN(3) == 0 {
						return s.FailTurn(ctx, turn.Run, store.RunInterrupted)
					}
					_, err = s.FinishTurn(ctx, turn, "Hi")
					return err
				})
			}
			for range 2 {
				again("disable and enable", nil, func() error {
					v, p := some()
					_, err := h.UpdateEndpoint(ctx, v, p, hook.EndpointInput{Status: ptr(store.Disabled)})
					if err == nil {
						_, err = h.UpdateEndpoint(ctx, v, p, hook.EndpointInput{Status: ptr(store.Enabled)})
					}
					return err
				})
				again("test", nil, func() error {
					v, p := some()
					_, err := h.SendTest(ctx, v, p, store.RunFinished)
					return err
				})
				again("send again", []string{"delivery_busy", "endpoint_disabled", "test_delivery", "delivery_not_found"}, func() error {
					v, _ := some()
					c, err := h.Deliveries(ctx, v.BusinessID, hook.DeliveryFilter{}, store.PageInput{First: 30})
					if err != nil || len(c.Edges) == 0 {
						return err
					}
					_, err = h.Redeliver(ctx, v, c.Edges[rand.IntN(len(c.Edges))].Node.ID())
					return err
				})
				again("replay", []string{"replay_running", "endpoint_disabled"}, func() error {
					v, p := some()
					_, err := h.ReplayEvents(ctx, v, hook.ReplayInput{EndpointID: p, Since: s.Now().Add(-time.Hour), FailedOnly: ptr(rand.IntN(2) == 0)})
					return err
				})
				again("go on with replays", nil, func() error {
					_, err := h.AdvanceReplays(ctx, held(), 10)
					return err
				})
			}
			for range 6 { // together they make batches that lock shards in any order
				again("send", nil, func() error {
					var outcomes []*hook.Outcome
					for _, x := range held() {
						lanes, err := h.Lanes(ctx, []int{x.Shard})
						if err != nil {
							return err
						}
						for _, l := range lanes {
							jobs, err := h.Next(ctx, l.Shard, l.EndpointID, 0, 3)
							if err != nil {
								return err
							}
							due, err := h.Due(ctx, l.Shard, l.EndpointID, s.Now(), 3)
							if err != nil {
								return err
							}
							for _, j := range append(jobs, due...) {
								o := &hook.Outcome{Job: j, Hold: x, Status: store.Delivered, Attempt: &hook.Attempt{Number: j.Attempts + 1, Trigger: j.Trigger, StartedAt: s.Now()}}
								if rand.IntN(2) == 0 {
									o.Status, o.Attempt.Error = store.Failed, ptr("http_500")
								}
								outcomes = append(outcomes, o)
							}
						}
					}
					rand.Shuffle(len(outcomes), func(i, j int) { outcomes[i], outcomes[j] = outcomes[j], outcomes[i] })
					_, err := h.Record(ctx, outcomes[:min(len(outcomes), 30)])
					return err
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
