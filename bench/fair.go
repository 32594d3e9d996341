package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	probeRate = 20 // of B, chats a second
	ofReplay  = 300
)

// attack is what business A does while B's chats and deliveries are measured. What the server refuses to A it does not do.
type attack struct {
	name    string
	rate    int           // A's chats a second, over its agents in turn
	lead    time.Duration // how long A chats before B is measured: what hangs has then filled whatever it fills
	prepare func(a *attacker) error
	begin   func(a *attacker) error // what it does besides chatting, if anything
}

var attacks = []attack{
	{
		name: "560 agents with a webhook that hangs, 250 chats a second", rate: 250, lead: 10 * time.Second,
		prepare: func(a *attacker) error { return a.employ(560, a.to.url+"/hang") },
	},
	{
		name: "100 endpoints that hang, 43 chats a second", rate: 43, lead: 10 * time.Second,
		prepare: func(a *attacker) error { return a.endpoints(100, a.to.url+"/hang") },
	},
	{
		name: "replay to 100 endpoints", rate: 1, lead: time.Second,
		prepare: func(a *attacker) error {
			return errors.Join(repeat(a.ctx, a.url, demo, clients, ofReplay), a.endpoints(100, a.to.url+"/replayed"))
		},
		begin: (*attacker).replay,
	},
	{
		name: "4,000 agents with a webhook, 50 chats a second", rate: 50, lead: 2 * time.Second,
		prepare: func(a *attacker) error { return a.employ(4000, a.to.url+"/agent") },
	},
}

// fairShapes measure what B gets alone and while A attacks, and the throughput of all endpoints that answer while others hang.
func fairShapes(*rig) (all []shape) {
	for _, hanging := range []int{0, 50} {
		all = append(all, shape{
			name: fmt.Sprintf("throughput, %d of 100 endpoints hang", hanging),
			run: func(ctx context.Context, r *rig, of side) (figures, error) {
				d, err := r.startDeliveries(ctx, of, audience{1, 100, 1, hanging})
				if err != nil {
					return nil, err
				}
				defer d.end()
				if err := d.load(ctx, r.warmup); err != nil {
					return nil, err
				}
				before, began := d.to.arrived.Load(), time.Now()
				if err := d.load(ctx, r.measure); err != nil {
					return nil, err
				}
				return figures{{"deliveries a second, at those that answer", float64(d.to.arrived.Load()-before) / time.Since(began).Seconds()}}, nil
			},
		})
	}
	for _, k := range attacks {
		all = append(all, shape{name: k.name, run: func(ctx context.Context, r *rig, of side) (figures, error) { return r.attacked(ctx, of, k) }})
	}
	return all
}

// attacker is the business A.
type attacker struct {
	*server
	to     *receiver
	agents []string
	hooks  []string
}

func (r *rig) attacked(ctx context.Context, of side, k attack) (figures, error) {
	s, err := r.start(ctx, of)
	if err != nil {
		return nil, err
	}
	defer s.end()
	to, err := receive(s.stage)
	if err != nil {
		return nil, err
	}
	b, err := s.business("B")
	if err != nil {
		return nil, err
	}
	if _, err := s.register(b, to.url+"/probe", "RUN_FINISHED"); err != nil {
		return nil, err
	}
	a := &attacker{server: s, to: to, agents: []string{demo.agent}}
	if _, err := steady(ctx, s.url, b, probeRate, r.warmup, nil); err != nil {
		return nil, err
	}
	alone, attacked := &probe{server: s, as: b, to: to}, &probe{server: s, as: b, to: to}
	if err := alone.run(ctx, probeRate, r.measure); err != nil {
		return nil, err
	}
	if err := k.prepare(a); err != nil {
		return nil, err
	}
	if k.begin != nil {
		if err := k.begin(a); err != nil {
			return nil, err
		}
	}
	attacking, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var done atomic.Int64
	wg.Go(func() {
		_, _ = open(attacking, k.rate, k.lead+3*r.measure/2, func(n int) error {
			if _, err := say(attacking, s.url, business{demo.key, demo.token, a.agents[n%len(a.agents)]}, "", question); err == nil {
				done.Add(1) // the others were refused, or are not answered in time: that is A's affair
			}
			return nil
		})
	})
	err = pause(ctx, k.lead)
	if err == nil {
		err = attacked.run(ctx, probeRate, 3*r.measure/2)
	}
	stop()
	wg.Wait()
	if err != nil {
		return nil, err
	}
	var f figures
	under := attacked.figures(50, 90)
	for i, quiet := range alone.figures(50, 90) {
		if !strings.HasPrefix(quiet.name, "event's") { // the answer's is nearer to what B feels
			f = append(f, figure{"B alone: " + quiet.name, quiet.value}, figure{"B beside A: " + quiet.name, under[i].value})
			if strings.HasSuffix(quiet.name, "ms") {
				f = append(f, figure{"B beside A: " + strings.TrimSuffix(quiet.name, "ms") + "times", under[i].value / max(quiet.value, 0.1)})
			}
		}
	}
	return append(f, figure{"A's agents and endpoints", float64(len(a.agents) - 1 + len(a.hooks))}, figure{"A's chats", float64(done.Load())}), nil
}

// employ makes so many agents with a webhook each, or as many as may be, and A chats with those alone.
func (a *attacker) employ(n int, url string) error {
	var made []string
	for len(made) < n {
		var mutation strings.Builder
		for i := range min(20, n-len(made)) {
			fmt.Fprintf(&mutation, ` a%d: createAgent(input: {name: "A", webhookUrl: "%s/%d"}) { id }`, i, url, len(made)+i)
		}
		data, err := a.query(demo, "mutation {"+mutation.String()+" }")
		for _, agent := range data {
			if id := idOf(agent); id != "" {
				made = append(made, id)
			}
		}
		if errors.Is(err, errRefused) {
			break
		}
		if err != nil {
			return err
		}
	}
	if len(made) > 0 {
		a.agents = append(a.agents[:1], made...)
	}
	return nil
}

// endpoints registers so many endpoints.
func (a *attacker) endpoints(n int, url string) error {
	for i := range n {
		id, err := a.register(demo, fmt.Sprintf("%s/%d", url, i), "MESSAGE_CREATED", "RUN_FINISHED")
		if err != nil {
			return err
		}
		a.hooks = append(a.hooks, id)
	}
	return nil
}

// replay sends all of A's endpoints all that ever happened.
func (a *attacker) replay() error {
	for _, id := range a.hooks {
		if _, err := a.query(demo, fmt.Sprintf(`mutation { replayEvents(endpointId: %q, since: "2000-01-01T00:00:00Z", failedOnly: false) { id } }`, id)); err != nil {
			return err
		}
	}
	return nil
}
