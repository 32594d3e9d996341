package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	talkers     = 64    // clients that chat: enough that what bounds them is not how long one waits
	outstanding = 6_000 // deliveries made and not arrived, at most, at endpoints that answer
	settled     = time.Minute
	calmRate    = 200 // deliveries a second where latency is measured
)

// events that an endpoint gets of each chat, by how many those are.
var typesOf = map[int][]string{1: {"RUN_FINISHED"}, 2: {"MESSAGE_CREATED"}, 3: {"MESSAGE_CREATED", "RUN_FINISHED"}}

// audience are the endpoints of each of so many businesses.
type audience struct {
	businesses, endpoints, types int
	hanging                      int // of the endpoints of each: the first ones take each request and never answer
}

func deliverShapes(*rig) (all []shape) {
	for _, a := range []audience{
		{1, 1, 1, 0}, {1, 1, 3, 0}, {1, 3, 1, 0}, {1, 20, 1, 0}, {1, 100, 1, 0}, {20, 1, 1, 0}, {20, 1, 3, 0}, {20, 20, 1, 0},
	} {
		all = append(all, shape{
			name: fmt.Sprintf("%d businesses, %d endpoints, %d a chat", a.businesses, a.endpoints, a.types),
			run:  func(ctx context.Context, r *rig, of side) (figures, error) { return r.throughput(ctx, of, a) },
		})
	}
	return append(all, shape{name: fmt.Sprintf("latency at %d a second", calmRate), run: latency})
}

// deliveries are a server with endpoints, and their receiver.
type deliveries struct {
	*server
	audience
	as   []business
	to   *receiver
	made atomic.Int64 // for endpoints that answer
}

func (r *rig) startDeliveries(ctx context.Context, of side, a audience, env ...string) (d *deliveries, err error) {
	s, err := r.start(ctx, of, env...)
	if err != nil {
		return nil, err
	}
	d = &deliveries{server: s, audience: a, as: []business{demo}}
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	if d.to, err = receive(s.stage); err != nil {
		return nil, err
	}
	for i := range a.businesses {
		if i > 0 {
			b, err := s.business(fmt.Sprint("bench ", i))
			if err != nil {
				return nil, err
			}
			d.as = append(d.as, b)
		}
		for n := range a.endpoints {
			path := fmt.Sprintf("/%d/%d", i, n)
			if n < a.hanging {
				path = "/hang" + path
			}
			if _, err := s.register(d.as[i], d.to.url+path, typesOf[a.types]...); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

// throughput is the rate of deliveries from the first chat until all are recorded, at full speed, and what they cost.
func (r *rig) throughput(ctx context.Context, of side, a audience) (figures, error) {
	d, err := r.startDeliveries(ctx, of, a)
	if err != nil {
		return nil, err
	}
	defer d.end()
	if err := d.load(ctx, r.warmup); err != nil {
		return nil, err
	}
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	cpu, before, began := r.stack(), d.made.Load(), time.Now()
	if err := d.load(ctx, r.measure); err != nil {
		return nil, err
	}
	if err := d.settle(ctx); err != nil {
		return nil, err
	}
	n, took := float64(d.made.Load()-before), time.Since(began).Seconds()
	return figures{
		{"deliveries a second", n / took},
		{"CPU of the stack for 1,000 deliveries, s", (r.stack() - cpu) / n * 1000},
		{"chats a second", n / float64(a.types*(a.endpoints-a.hanging)) / took},
		{"sent twice", float64(d.to.arrived.Load() - d.made.Load())},
	}, nil
}

// load chats at full speed, as long as not too much waits.
func (d *deliveries) load(ctx context.Context, during time.Duration) error {
	each := int64(d.types * (d.endpoints - d.hanging))
	_, err := flatOut(ctx, d.url, d.as, talkers, during, func() error {
		for d.made.Load()-d.to.arrived.Load() > max(outstanding, 2*each) {
			if err := pause(ctx, time.Millisecond); err != nil {
				return err
			}
		}
		d.made.Add(each)
		return nil
	})
	return err
}

// settle waits until everything has arrived and is recorded as delivered: else the rate would be borrowed from later.
func (d *deliveries) settle(ctx context.Context) error {
	err := until(ctx, settled, "all deliveries arrive", func() (bool, error) { return d.to.arrived.Load() >= d.made.Load(), nil })
	if err != nil {
		return fmt.Errorf("%d of %d: %w", d.to.arrived.Load(), d.made.Load(), err)
	}
	for _, b := range d.as {
		err := until(ctx, settled, "all deliveries are recorded", func() (bool, error) {
			left, err := d.some(b, "PENDING", "RETRYING", "FAILED", "SKIPPED")
			if err == nil && (left["FAILED"] || left["SKIPPED"]) {
				err = errors.New("a delivery has failed")
			}
			return !left["PENDING"] && !left["RETRYING"], err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// some says whether a business has deliveries in each of these states.
func (s *server) some(b business, states ...string) (map[string]bool, error) {
	query := "{"
	for _, state := range states {
		query += fmt.Sprintf(" %s: deliveries(status: %s, first: 1) { nodes { id } }", state, state)
	}
	data, err := s.query(b, query+" }")
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, state := range states {
		nodes, _ := data[state].(map[string]any)["nodes"].([]any)
		found[state] = len(nodes) > 0
	}
	return found, nil
}

// latency is how long deliveries take to one endpoint, one a chat, with 200 chats a second.
func latency(ctx context.Context, r *rig, of side) (figures, error) {
	d, err := r.startDeliveries(ctx, of, audience{businesses: 1})
	if err != nil {
		return nil, err
	}
	defer d.end()
	if _, err := d.register(demo, d.to.url+"/probe", "RUN_FINISHED"); err != nil {
		return nil, err
	}
	if _, err := steady(ctx, d.url, demo, calmRate, r.warmup, nil); err != nil {
		return nil, err
	}
	p := &probe{server: d.server, as: demo, to: d.to}
	if err := p.run(ctx, calmRate, r.measure); err != nil {
		return nil, err
	}
	return p.figures(50, 99), nil
}

// probe chats at a steady rate, and sees when each chat's delivery comes, of the one at its end.
type probe struct {
	*server
	as     business
	to     *receiver
	chats  []time.Duration
	begun  []time.Duration // from each event's timestamp to its delivery
	after  []time.Duration // from each chat's answer to its delivery
	missed int             // deliveries that have not come in time; counted as long as they were waited for
}

const patience = 10 * time.Second // for what was not delivered while the load ran

func (p *probe) run(ctx context.Context, rate int, d time.Duration) (err error) {
	var mu sync.Mutex // guards answered
	answered := map[string]time.Time{}
	p.chats, err = steady(ctx, p.url, p.as, rate, d, func(session string, at time.Time) {
		mu.Lock()
		defer mu.Unlock()
		answered[session] = at
	})
	if err != nil {
		return err
	}
	p.missed = len(p.to.without(answered))
	_ = until(ctx, patience, "", func() (bool, error) {
		p.missed = len(p.to.without(answered))
		return p.missed == 0, nil
	})
	for session, at := range answered {
		came, ok := p.to.of(session)
		if !ok {
			p.after, p.begun = append(p.after, time.Since(at)), append(p.begun, time.Since(at))
			continue
		}
		p.after, p.begun = append(p.after, max(0, came.at.Sub(at))), append(p.begun, came.at.Sub(came.stamp))
	}
	return ctx.Err()
}

func (p *probe) figures(percentiles ...int) figures {
	f := append(timesOf("chat", p.chats, percentiles...), timesOf("event's timestamp to receiver", p.begun, percentiles...)...)
	f = append(f, timesOf("chat's answer to receiver", p.after, percentiles...)...)
	return append(f, figure{"not delivered in time", float64(p.missed)})
}

// receiver is the customers' server. What begins with /hang is taken and never answered, /down is refused with 500, and what
// comes to /probe is remembered.
type receiver struct {
	url     string
	arrived atomic.Int64 // at those that answer

	mu   sync.Mutex // guards ends
	ends map[string]arrival
}

// arrival is when the end of a session's chat was delivered, and the event's timestamp.
type arrival struct{ at, stamp time.Time }

func receive(on *stage) (to *receiver, err error) {
	to = &receiver{ends: map[string]arrival{}}
	to.url, err = listen(on, to)
	return to, err
}

func (to *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	at := time.Now()
	switch {
	case err != nil:
		return
	case len(r.URL.Path) > 5 && r.URL.Path[:5] == "/hang":
		<-r.Context().Done()
		return
	case len(r.URL.Path) >= 5 && r.URL.Path[:5] == "/down":
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	to.arrived.Add(1)
	if r.URL.Path != "/probe" {
		return
	}
	var doc struct {
		Event struct {
			Timestamp json.Number
			Data      struct {
				Type    string
				Session string `json:"session_id"`
			}
		}
	}
	if json.Unmarshal(body, &doc) != nil || doc.Event.Data.Type != "run.finished" {
		return
	}
	seconds, _ := strconv.ParseFloat(doc.Event.Timestamp.String(), 64)
	to.mu.Lock()
	defer to.mu.Unlock()
	if _, again := to.ends[doc.Event.Data.Session]; !again {
		to.ends[doc.Event.Data.Session] = arrival{at, time.UnixMicro(int64(seconds * 1e6))}
	}
}

// of is when a session's delivery came.
func (to *receiver) of(session string) (arrival, bool) {
	to.mu.Lock()
	defer to.mu.Unlock()
	a, ok := to.ends[session]
	return a, ok
}

// without are those of the sessions of which nothing has come.
func (to *receiver) without(sessions map[string]time.Time) (missed []string) {
	for session := range sessions {
		if _, ok := to.of(session); !ok {
			missed = append(missed, session)
		}
	}
	return missed
}
