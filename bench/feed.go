package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
)

const (
	idlePace    = 50 * time.Millisecond // between chats
	perTurn     = 3                     // events of a chat: two messages and the run's end
	feedClients = 8
	everything  = "subscription { events { cursor node { id type timestamp sessionId data } } }"
)

// benchFeed measures the time from an event's commit to a subscriber's socket, idle (a chat each 50 ms) and under load (8
// clients that chat as fast as they are answered). An event's timestamp is taken as its transaction begins: the median of the time
// from there, less the mean of what the server's transactions took, is the time from the commit. The ratio is that of the time
// from the transaction's begin to a bare commit of a turn's beginning, alone.
func benchFeed(ctx context.Context, r *rig) error {
	p50, note, err := r.repeat(ctx, func(ctx context.Context) (string, []float64, error) {
		bare, err := r.commitBare(ctx)
		if err != nil {
			return "", nil, err
		}
		idle, loaded, rate, err := r.feedParley(ctx)
		after := []float64{ms(idle.p50) - idle.commit, ms(loaded.p50) - loaded.commit}
		return fmt.Sprintf("transaction's begin to socket, idle %v, of it the commit %.1f ms; under load of %.0f chats a second %v, of it %.1f ms; a bare commit alone %v",
			idle.spread, idle.commit, rate, loaded.spread, loaded.commit, bare), append(after, ms(idle.p50), ms(loaded.p50), ms(idle.p50)/ms(bare.p50), ms(loaded.p50)/ms(bare.p50)), err
	})
	if err != nil {
		return err
	}
	fmt.Printf("feed, %s: commit to socket p50 %.1f ms idle (gate 2), %.1f ms under load (gate 5); from the transaction's begin %.1f and %.1f ms, which is %.1f and %.1f times a bare commit alone (%s)\n",
		r.mode, p50[0], p50[1], p50[2], p50[3], p50[4], p50[5], note)
	return nil
}

// commitBare measures a turn's first commit in the bare handler, a commit at a time, at the idle pace.
func (r *rig) commitBare(ctx context.Context) (spread, error) {
	b, err := r.startBare(ctx)
	if err != nil {
		return spread{}, err
	}
	defer b.end()
	var took []time.Duration
	for until := time.Now().Add(r.measure / 2); time.Now().Before(until); {
		began := time.Now()
		if err := b.beginTurn(ctx, uuid.NewString(), uuid.NewString(), bareQuestion); err != nil {
			return spread{}, err
		}
		took = append(took, time.Since(began))
		if err := pause(ctx, idlePace); err != nil {
			return spread{}, err
		}
	}
	return spreadOf(took), nil
}

// feedTimes are times from the transaction's begin, and the mean of what the transactions took, in milliseconds.
type feedTimes struct {
	spread
	commit float64
}

// since is the mean of what the server's transactions with events have taken since a reading.
func (s *server) since(from reading) (float64, error) {
	to, err := s.read()
	return 1000 * (to.committing - from.committing) / (to.commits - from.commits), err
}

func (r *rig) feedParley(ctx context.Context) (idle, loaded feedTimes, rate float64, err error) {
	s, err := r.start(ctx)
	if err != nil {
		return idle, loaded, 0, err
	}
	defer s.end()
	sub, err := s.subscribe()
	if err != nil {
		return idle, loaded, 0, err
	}
	go sub.read()
	client := &http.Client{}
	defer client.CloseIdleConnections()
	at, err := s.read()
	if err != nil {
		return idle, loaded, 0, err
	}
	session := ""
	var sent []time.Time
	from := time.Now().Add(r.warmup)
	for until := from.Add(r.measure); time.Now().Before(until); {
		sent = append(sent, time.Now())
		if session, err = chat(ctx, client, s.url, session); err == nil {
			err = pause(ctx, idlePace)
		}
		if err != nil {
			return idle, loaded, 0, err
		}
	}
	came, err := sub.await(ctx, perTurn*len(sent))
	if err != nil {
		return idle, loaded, 0, err
	}
	var ahead time.Duration
	if r.mode == production {
		ahead = aheadAtMost(came, sent)
	}
	if idle.spread, err = timesOf(came, ahead, from, from.Add(r.measure)); err == nil {
		idle.commit, err = s.since(at)
	}
	if err == nil {
		at, err = s.read()
	}
	if err != nil {
		return idle, loaded, 0, err
	}
	from = time.Now().Add(r.warmup)
	l, err := r.drive(ctx, s.url, feedClients)
	if err == nil {
		came, err = sub.arrivals()
	}
	if err == nil {
		loaded.spread, err = timesOf(came, ahead, from, from.Add(r.measure))
	}
	if err == nil {
		loaded.commit, err = s.since(at)
	}
	return idle, loaded, l.rate, err
}

// aheadAtMost says how far the clock of the timestamps is ahead of ours at most. In production it is the database's as the
// server has estimated it, which on one machine differs from the machine's by up to some milliseconds. No transaction begins
// before its chat was sent, so the least time between the two is the bound; what is counted from timestamps corrected by it
// is counted from a little before the transaction's begin, never after.
func aheadAtMost(came []arrival, sent []time.Time) time.Duration {
	least := came[0].stamp.Sub(sent[0])
	for i, at := range sent {
		least = min(least, came[i*perTurn].stamp.Sub(at))
	}
	return least
}

// timesOf says how long the events of a time took.
func timesOf(came []arrival, ahead time.Duration, from, until time.Time) (spread, error) {
	var took []time.Duration
	for _, a := range came {
		if began := a.stamp.Add(-ahead); began.After(from) && began.Before(until) {
			took = append(took, a.at.Sub(began))
		}
	}
	if len(took) == 0 {
		return spread{}, errors.New("no event came")
	}
	return spreadOf(took), nil
}

// subscriber is a viewer with one subscription, of all events.
type subscriber struct {
	conn *websocket.Conn

	mu   sync.Mutex // guards what follows
	came []frame
	err  error
}

// frame is what came, and when. It is read later: reading costs the next one time.
type frame struct {
	at  time.Time
	raw []byte
}

func (s *server) subscribe() (*subscriber, error) {
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
	conn, res, err := dialer.DialContext(s.ctx, "ws"+strings.TrimPrefix(s.url, "http")+"/graphql", nil)
	if err != nil {
		return nil, err
	}
	_ = res.Body.Close()
	s.Cleanup(func() { _ = conn.Close() })
	var ack struct{ Type string }
	err = errors.Join(
		conn.WriteJSON(map[string]any{"type": "connection_init", "payload": map[string]string{"Authorization": "Bearer " + token}}),
		conn.ReadJSON(&ack),
		conn.WriteJSON(map[string]any{"id": "1", "type": "subscribe", "payload": map[string]string{"query": everything}}),
	)
	if err == nil && ack.Type != "connection_ack" {
		err = fmt.Errorf("subscribe: %q for an acknowledgement", ack.Type)
	}
	return &subscriber{conn: conn}, err
}

// read reads until the connection ends.
func (sub *subscriber) read() {
	for {
		_, raw, err := sub.conn.ReadMessage()
		at := time.Now()
		sub.mu.Lock()
		sub.came = append(sub.came, frame{at, raw})
		sub.err = err
		sub.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// arrival is an event that came.
type arrival struct {
	at    time.Time
	stamp time.Time // its timestamp
}

// await waits until so many events have come, the last of which a busy machine may keep for a while.
func (sub *subscriber) await(ctx context.Context, n int) ([]arrival, error) {
	for late := time.Now().Add(10 * time.Second); ; {
		came, err := sub.arrivals()
		switch {
		case err != nil || len(came) == n:
			return came, err
		case len(came) > n || time.Now().After(late):
			return nil, fmt.Errorf("%d events came, not %d", len(came), n)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// arrivals are the events that have come so far.
func (sub *subscriber) arrivals() ([]arrival, error) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if sub.err != nil {
		return nil, sub.err
	}
	var came []arrival
	for _, f := range sub.came {
		var m struct {
			Type    string
			Payload struct {
				Data struct {
					Events struct{ Node struct{ Timestamp time.Time } }
				}
			}
		}
		if err := json.Unmarshal(f.raw, &m); err != nil {
			return nil, err
		}
		switch m.Type {
		case "next":
			came = append(came, arrival{f.at, m.Payload.Data.Events.Node.Timestamp})
		case "ping":
		default:
			return nil, fmt.Errorf("the subscriber was told: %.200s", f.raw)
		}
	}
	return came, nil
}
