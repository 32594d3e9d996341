package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	few           = 10_000 // events, against as many as -events says
	rareBefore    = 10     // chats of an agent that has few, before all others
	rareAfter     = 2      // and after them: less than a page
	fewBusinesses = 1_000
	allBusinesses = 100_000
	idleFor       = 10 * time.Second
)

// growthShapes compare what is asked of a server that has much in store with the same of one that has little, and the CPU of idle
// servers with many businesses and with few.
func growthShapes(*rig) []shape {
	return []shape{
		{name: "lists", once: true, alone: true, run: func(ctx context.Context, r *rig, of side) (figures, error) {
			return grown(few, r.events, func(n int) (figures, error) { return r.lists(ctx, of, n) })
		}},
		{name: "idle", once: true, alone: true, run: func(ctx context.Context, r *rig, of side) (figures, error) {
			return grown(fewBusinesses, allBusinesses, func(n int) (figures, error) { return r.idleCPU(ctx, of, n) })
		}},
	}
}

// grown measures with little in store and with much, and divides.
func grown(little, much int, measure func(n int) (figures, error)) (all figures, err error) {
	small, err := measure(little)
	if err != nil {
		return nil, fmt.Errorf("with %d: %w", little, err)
	}
	large, err := measure(much)
	if err != nil {
		return nil, fmt.Errorf("with %d: %w", much, err)
	}
	for i, f := range small {
		all = append(all,
			figure{fmt.Sprintf("%s, %d", f.name, little), f.value}, figure{fmt.Sprintf("%s, %d", f.name, much), large[i].value},
			figure{f.name + ", times", large[i].value / max(f.value, 0.001)})
	}
	return all, nil
}

// lists measures the lists of a business with so many events. One agent has had a few chats before all others and after them, and its
// own webhook, which is down: what is asked for by agent, session, endpoint or status is rare, and far from where a list begins.
func (r *rig) lists(ctx context.Context, of side, events int) (f figures, err error) {
	s, err := r.start(ctx, of, "PARLEY_DELIVERY_RETRIES=0")
	if err != nil {
		return nil, err
	}
	defer s.end()
	to, err := receive(s.stage)
	if err != nil {
		return nil, err
	}
	start, err := s.query(demo, "{ feedCursor }")
	if err != nil {
		return nil, err
	}
	whole, err := s.register(demo, to.url, "MESSAGE_CREATED", "RUN_FINISHED")
	if err != nil {
		return nil, err
	}
	made, err := s.query(demo, fmt.Sprintf(`mutation { createAgent(input: {name: "rare", webhookUrl: %q}) { id webhookEndpoint { id } } }`, to.url+"/down"))
	if err != nil {
		return nil, err
	}
	rare := business{demo.key, demo.token, idOf(made["createAgent"])}
	down := idOf(made["createAgent"].(map[string]any)["webhookEndpoint"])
	if err := repeat(ctx, s.url, rare, 1, rareBefore); err != nil {
		return nil, err
	}
	template, err := say(ctx, s.url, demo, "", question)
	if err != nil {
		return nil, err
	}
	if err := s.allEnded(ctx); err != nil {
		return nil, err
	}
	if err := s.restart(func() error { return s.fillEvents(ctx, template, events/perChat) }); err != nil {
		return nil, err
	}
	if err := s.summed(ctx, template, events); err != nil {
		return nil, err
	}
	if err := repeat(ctx, s.url, rare, 1, rareAfter); err != nil {
		return nil, err
	}
	session, err := say(ctx, s.url, rare, "", question)
	if err != nil {
		return nil, err
	}
	if err := s.allEnded(ctx); err != nil {
		return nil, err
	}
	const delivery, event = "nodes { id status event { id } attempts { number } }", "nodes { id timestamp data }"
	now := time.Now().UTC()
	usage := func(from time.Time) string {
		return fmt.Sprintf("usage(from: %q, to: %q) { llm { model runs totalTokens } }", from.Format(time.RFC3339), now.Add(time.Hour).Format(time.RFC3339))
	}
	for _, q := range []struct{ name, query string }{
		{"deliveries", "deliveries { " + delivery + " }"},
		{"deliveries by status, FAILED", "deliveries(status: FAILED) { " + delivery + " }"},
		{"deliveries by status, PENDING", "deliveries(status: PENDING) { " + delivery + " }"},
		{"deliveries by endpoint, a rare one", fmt.Sprintf("deliveries(endpointId: %q) { %s }", down, delivery)},
		{"deliveries by endpoint and status", fmt.Sprintf("deliveries(endpointId: %q, status: FAILED) { %s }", whole, delivery)},
		{"events", "events(last: 20) { " + event + " }"},
		{"events by session", fmt.Sprintf("events(filter: {sessionId: %q}) { %s }", session, event)},
		{"events by agent, a rare one", fmt.Sprintf("events(filter: {agentId: %q}, first: 60) { %s }", rare.agent, event)},
		{"events by type, a rare one", "events(filter: {types: [CALL_ENDED]}) { " + event + " }"},
		{"events by type, a frequent one", "events(filter: {types: [RUN_FINISHED]}, last: 20) { " + event + " }"},
		{"runs by agent, a rare one", fmt.Sprintf("runs(agentId: %q) { nodes { id status } }", rare.agent)},
		{"runs by status, FAILED", "runs(status: FAILED) { nodes { id status } }"},
		{"usage of 25 days", usage(now.AddDate(0, 0, -25))},
		{"usage of a day", usage(now.AddDate(0, 0, -1))},
	} {
		took, err := several(func() error { _, err := s.query(demo, "{ "+q.query+" }"); return err })
		if err != nil {
			return nil, err
		}
		f = append(f, figure{q.name + ", ms", took})
	}
	for _, q := range []struct {
		name, filter string
		wanted       int64
	}{
		{"resume by agent, a rare one", fmt.Sprintf("agentId: %q", rare.agent), (rareBefore + rareAfter + 1) * perChat},
		{"resume by session", fmt.Sprintf("sessionId: %q", session), perChat},
	} {
		took, err := several(func() error {
			vs, err := s.connect(1)
			if err != nil {
				return err
			}
			return errors.Join(vs.subscribe(feedOf(fmt.Sprintf("(after: %q, filter: {%s})", start["feedCursor"], q.filter))), vs.await(ctx, q.wanted))
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", q.name, err)
		}
		f = append(f, figure{q.name + ", ms", took})
	}
	return f, nil
}

// summed waits until the server has summed up the usage that it was filled with, as it would have
// by and by.
func (s *server) summed(ctx context.Context, template string, n int) error {
	f, err := s.filler(ctx, template, n, false)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.ExecContext(ctx, "SELECT id FROM usage_marks WHERE 1 = 0"); err != nil {
		return nil //nolint:nilerr // of a version that sums up nothing
	}
	old := time.Now().Add(-time.Hour).UnixMilli()
	query := fmt.Sprintf(`SELECT COUNT(*) FROM (SELECT 1 FROM runs WHERE id > (SELECT id FROM usage_marks WHERE kind = 'run') AND id < 'run_%08x-%04x' LIMIT 1) AS left_over`, old>>16, old&0xffff)
	return until(ctx, 10*settled, "usage is summed up", func() (done bool, err error) {
		left := 0
		err = f.QueryRowContext(ctx, query).Scan(&left)
		return left == 0, err
	})
}

// allEnded waits until nothing is left to deliver.
func (s *server) allEnded(ctx context.Context) error {
	return until(ctx, settled, "all deliveries end", func() (bool, error) {
		left, err := s.some(demo, "PENDING", "RETRYING")
		return !left["PENDING"] && !left["RETRYING"], err
	})
}

// several is the median time of some calls, in milliseconds.
func several(call func() error) (float64, error) {
	var took []float64
	for began := time.Now(); len(took) < 5 || len(took) < 50 && time.Since(began) < time.Second; {
		at := time.Now()
		if err := call(); err != nil {
			return 0, err
		}
		took = append(took, ms(time.Since(at)))
	}
	return median(took), nil
}

// idleCPU measures a server with so many businesses, of which nobody asks anything.
func (r *rig) idleCPU(ctx context.Context, of side, businesses int) (figures, error) {
	s, err := r.start(ctx, of)
	if err != nil {
		return nil, err
	}
	defer s.end()
	to, err := receive(s.stage)
	if err != nil {
		return nil, err
	}
	if _, err := s.register(demo, to.url, "MESSAGE_CREATED", "RUN_FINISHED"); err != nil {
		return nil, err
	}
	template, err := say(ctx, s.url, demo, "", question)
	if err != nil {
		return nil, err
	}
	if err := s.allEnded(ctx); err != nil {
		return nil, err
	}
	if err := s.restart(func() error { return s.fillBusinesses(ctx, template, businesses) }); err != nil {
		return nil, err
	}
	if err := pause(ctx, 2*calmDown); err != nil {
		return nil, err
	}
	cpu, began := r.stack(), time.Now()
	if err := pause(ctx, idleFor); err != nil {
		return nil, err
	}
	return figures{{"CPU of the stack, idle, ms a second", (r.stack() - cpu) / time.Since(began).Seconds() * 1000}}, nil
}
