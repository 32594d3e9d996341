package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	fanoutPace  = 100 * time.Millisecond // between events, where latency is measured
	fanoutAhead = 32                     // events that the slowest subscriber may be behind, where throughput is
	fanoutChats = 4                      // clients that chat as fast as they are answered and that allows
)

// audiences are how many subscribers there are, and how many chats a second where CPU is measured: some 20,000 to 30,000 messages.
var audiences = []struct{ subscribers, chats int }{{100, 60}, {1000, 10}}

// fanout is what one side did for an audience.
type fanout struct {
	perConn float64 // KB of memory, idle
	rate    float64 // messages a second, as fast as the slowest subscriber follows
	cpu     float64 // of the server, in µs a message, then
	steady  float64 // the same at a steady rate
	allocs  float64 // a message, then
	made    float64 // executions an event, then
	spread          // from the event to the socket, at 10 events a second
}

// benchFanout compares the fan-out of events of some 500 bytes with a bare broadcast of gorilla's prepared messages of the same
// size, in a process of its own. What Parley spends on the chats that make the events it spends without subscribers too: that is
// measured at the same rate before the subscribers come, and taken off, so that what is left is the fan-out's.
func benchFanout(ctx context.Context, r *rig) error {
	for _, audience := range audiences {
		n := audience.subscribers
		figures, note, err := r.repeat(ctx, func(ctx context.Context) (string, []float64, error) {
			ours, size, err := r.fanoutParley(ctx, n, audience.chats)
			if err != nil {
				return "", nil, err
			}
			bare, err := r.fanoutBare(ctx, n, audience.chats*perTurn, size)
			line := fmt.Sprintf("%d subscribers, %d bytes: parley %v, %.2f allocations a message, %.2f executions an event   bare %v", n, size, ours, ours.allocs, ours.made, bare)
			return line, []float64{
				ours.cpu / bare.cpu, ours.steady / bare.steady, ours.rate / bare.rate, ms(ours.p99) / ms(bare.p99), ours.perConn, ours.allocs, ours.made,
			}, err
		})
		if err != nil {
			return err
		}
		fmt.Printf("fanout, %s, %d subscribers: of the bare broadcast's CPU a message %.2f flat out (gate 1.0, aim 0.3) and %.2f at a steady rate, %.1f of its messages a second, %.2f of its p99 at 10 events a second (gate 2); "+
			"%.0f KB a connection (gate 35), %.2f allocations a message (gate 3), %.2f executions an event (gate 1; %s)\n",
			r.mode, n, figures[0], figures[1], figures[2], figures[3], figures[4], figures[5], figures[6], note)
	}
	return nil
}

func (f fanout) String() string {
	return fmt.Sprintf("%.0f messages/s at %.2f µs of CPU each, %.2f µs at a steady rate, %v at 10 events/s, %.0f KB a connection", f.rate, f.cpu, f.steady, f.spread, f.perConn)
}

// fanoutParley measures Parley, and tells how large its messages are.
func (r *rig) fanoutParley(ctx context.Context, n, chats int) (f fanout, size int, err error) {
	s, err := r.start(ctx, "PARLEY_MAX_SOCKETS=10000")
	if err != nil {
		return f, 0, err
	}
	defer s.end()
	c := &chatter{server: s, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, audience: &audience{}}
	defer c.client.CloseIdleConnections()
	if err := c.flatOut(ctx, r.warmup); err != nil {
		return f, 0, err
	}
	c.events.Store(0)
	from := cpuOf(s.cmd.Process.Pid)
	if err := c.flatOut(ctx, r.measure/2); err != nil {
		return f, 0, err
	}
	eventCPU := (cpuOf(s.cmd.Process.Pid) - from) / float64(c.events.Load())
	alone, _, err := c.steady(ctx, chats, r.measure)
	if err != nil {
		return f, 0, err
	}
	if err := pause(ctx, calmDown); err != nil {
		return f, 0, err
	}
	before, _, err := memoryOf(s.cmd.Process.Pid)
	if err != nil {
		return f, 0, err
	}
	c.events.Store(0)
	for range n {
		sub, err := s.subscribe()
		if err != nil {
			return f, 0, err
		}
		c.audience.join(sub.conn)
	}
	if err := pause(ctx, calmDown); err != nil {
		return f, 0, err
	}
	after, _, err := memoryOf(s.cmd.Process.Pid)
	if err != nil {
		return f, 0, err
	}
	f.perConn = (after - before) / float64(n)

	from = cpuOf(s.cmd.Process.Pid)
	began := time.Now()
	if err := c.flatOut(ctx, r.measure/2); err != nil {
		return f, 0, err
	}
	all := float64(c.events.Load()) * float64(n)
	f.rate = all / time.Since(began).Seconds()
	f.cpu = (cpuOf(s.cmd.Process.Pid) - from - eventCPU*float64(c.events.Load())) / all * 1e6

	whole, events, err := c.steady(ctx, chats, r.measure)
	if err != nil {
		return f, 0, err
	}
	messages := float64(events * n)
	f.steady = (whole.cpu - alone.cpu) / messages * 1e6
	f.allocs = (whole.mallocs - alone.mallocs) / messages
	f.made = whole.made / float64(events)

	f.spread, err = c.audience.lags(ctx, int(r.measure/2/fanoutPace), func() error { return c.chats(ctx, 1) })
	return f, c.audience.members[0].size(), err
}

// chatter chats, and waits for its audience.
type chatter struct {
	*server
	client   *http.Client
	audience *audience
	events   atomic.Int64 // that its chats have made since the audience came
}

// chats chats so many times, one after the other, and waits until everyone has what came of it.
func (c *chatter) chats(ctx context.Context, n int) error {
	for range n {
		if _, err := chat(ctx, c.client, c.url, ""); err != nil {
			return err
		}
		c.events.Add(perTurn)
	}
	return c.audience.await(ctx, c.events.Load())
}

// flatOut has several clients chat as fast as they are answered, and no faster than the slowest of the audience follows.
func (c *chatter) flatOut(ctx context.Context, d time.Duration) error {
	var group errgroup.Group
	until := time.Now().Add(d)
	for range fanoutChats {
		group.Go(func() error {
			for time.Now().Before(until) {
				if err := c.audience.await(ctx, c.events.Load()-fanoutAhead); err != nil {
					return err
				}
				if _, err := chat(ctx, c.client, c.url, ""); err != nil {
					return err
				}
				c.events.Add(perTurn)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return c.audience.await(ctx, c.events.Load())
}

// steady chats so many times a second, and returns what that took and how many events it made.
func (c *chatter) steady(ctx context.Context, rate int, d time.Duration) (reading, int, error) {
	from, err := c.read()
	if err != nil {
		return reading{}, 0, err
	}
	n := int(d.Seconds() * float64(rate))
	tick := time.NewTicker(d / time.Duration(n))
	defer tick.Stop()
	var group errgroup.Group
	for range n {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return reading{}, 0, ctx.Err()
		}
		group.Go(func() error {
			_, err := chat(ctx, c.client, c.url, "")
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return reading{}, 0, err
	}
	c.events.Add(int64(n * perTurn))
	if err := c.audience.await(ctx, c.events.Load()); err != nil {
		return reading{}, 0, err
	}
	to, err := c.read()
	return reading{cpu: to.cpu - from.cpu, mallocs: to.mallocs - from.mallocs, made: to.made - from.made}, n * perTurn, err
}

// reading is what a server's process has come to.
type reading struct {
	cpu     float64 // seconds
	mallocs float64 // allocations
	made    float64 // results of subscriptions

	commits, committing float64 // transactions with events, and the seconds they took, from the instant that their events bear
}

func (s *server) read() (reading, error) {
	res, err := http.Get(s.url + "/metrics")
	if err != nil {
		return reading{}, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return reading{}, err
	}
	r := reading{cpu: cpuOf(s.cmd.Process.Pid)}
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		for want, field := range map[string]*float64{
			"go_memstats_mallocs_total": &r.mallocs, "parley_live_results_made_total": &r.made,
			"parley_commits_total": &r.commits, "parley_commit_seconds_total": &r.committing,
		} {
			if name == want {
				*field, err = strconv.ParseFloat(value, 64)
			}
		}
	}
	return r, err
}
