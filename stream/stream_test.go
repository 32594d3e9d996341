package stream_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"parley/e2e/servers"
	"parley/store"
	"parley/stream"
)

func TestMain(m *testing.M) {
	code := m.Run()
	servers.StopShared()
	os.Exit(code)
}

// redises are the kinds of Redis that the stream must work alike on.
var redises = map[string]func(t *testing.T) (url string){
	"embedded": func(*testing.T) string { return "" },
	"real":     func(t *testing.T) string { return "redis://" + servers.Redis(t).Addr + "/0" },
	"TLS":      func(t *testing.T) string { return "rediss://" + servers.RedisTLS(t) + "/0?skip_verify=true" },
	"cluster": func(t *testing.T) string {
		addr := servers.RedisCluster(t).Addr
		return "redis://" + addr + "?addr=" + addr
	},
	"sentinel": func(t *testing.T) string {
		sentinel, _ := servers.RedisSentinel(t)
		return "redis://" + sentinel.Addr + "/0?master_name=main"
	},
}

// TestEntriesArriveInOrder publishes on every kind of Redis: what was published arrives, whole, in order within a business.
func TestEntriesArriveInOrder(t *testing.T) {
	t.Parallel()
	for name, redis := range redises {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := make(chan stream.Entry, 10_000)
			s, err := stream.Open(stream.Config{URL: redis(t), Receive: func(entries []stream.Entry) {
				for _, e := range entries {
					got <- e
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			defer func() {
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			deadline := time.After(30 * time.Second)
			for tick := time.NewTicker(5 * time.Millisecond); !s.Ringing(); {
				select {
				case <-tick.C:
				case <-deadline:
					t.Fatal("it does not ring")
				}
			}
			const businesses, each = 20, 10
			large := store.Text(strings.Repeat("x", 5000))
			for seq := int64(1); seq <= each; seq++ {
				var events []*store.Event
				for b := range businesses {
					e := &store.Event{ID: fmt.Sprint("evt_", b, "_", seq), BusinessID: fmt.Sprint("biz_", b), Seq: seq, Body: store.Text(`{"n":1}`)}
					if seq == 3 {
						e.Body = large
					}
					events = append(events, e)
				}
				s.Publish(events)
			}
			s.PublishDeliveries("biz_0", "dlv_1", "dlv_2")
			last := map[string]int64{}
			for n, rung := 0, false; n < businesses*each || !rung; {
				select {
				case e := <-got:
					if e.Seq == 0 {
						rung = true
						if e.BusinessID != "biz_0" || strings.Join(e.Deliveries, " ") != "dlv_1 dlv_2" {
							t.Errorf("the bell for deliveries: %+v", e)
						}
						continue
					}
					n++
					if e.Seq != last[e.BusinessID]+1 || !strings.HasSuffix(e.EventID, fmt.Sprint("_", e.Seq)) || (e.Body == nil) != (e.Seq == 3) {
						t.Errorf("after %d of %s came %+v", last[e.BusinessID], e.BusinessID, e)
					}
					last[e.BusinessID] = e.Seq
				case <-deadline:
					t.Fatalf("%d entries arrived", n)
				}
			}
		})
	}
}

func TestFaultyURLs(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://x", "redis://", "localhost:6379", "redis://x:1/nonsense"} {
		if err := stream.CheckURL(url); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
