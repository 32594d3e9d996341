package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

const clients = 16

// benchChat compares chats a second, embedded model, 16 clients, one webhook endpoint registered, with a bare handler that
// makes the same two durable commits on the same database and nothing else.
func benchChat(ctx context.Context, r *rig) error {
	ratio, note, err := r.repeat(ctx, func(ctx context.Context) (string, []float64, error) {
		ours, err := r.chatParley(ctx)
		if err != nil {
			return "", nil, err
		}
		theirs, err := r.chatBare(ctx)
		x := ours.rate / theirs.rate
		return fmt.Sprintf("parley %v   bare handler %v   ratio %.2f", ours, theirs, x), []float64{x}, err
	})
	if err != nil {
		return err
	}
	fmt.Printf("chat, %s: ratio %.2f (%s; %s)\n", r.mode, ratio[0], r.gates("gate 1.0, aim 1.3", "gate 0.6, aim 0.9"), note)
	return nil
}

// gates are a bench's in this mode.
func (r *rig) gates(ofEmbedded, ofProduction string) string {
	if r.mode == production {
		return ofProduction
	}
	return ofEmbedded
}

// load is what a load has measured.
type load struct {
	rate float64 // a second
	spread
}

func (l load) String() string { return fmt.Sprintf("%.0f/s (%v)", l.rate, l.spread) }

// spread is how long something took.
type spread struct{ p50, p99 time.Duration }

func spreadOf(took []time.Duration) spread {
	slices.Sort(took)
	return spread{took[len(took)/2], took[len(took)*99/100]}
}

func (s spread) String() string { return fmt.Sprintf("p50 %.1f ms, p99 %.1f ms", ms(s.p50), ms(s.p99)) }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (r *rig) chatParley(ctx context.Context) (load, error) {
	s, err := r.start(ctx)
	if err != nil {
		return load{}, err
	}
	defer s.end()
	sink, err := listen(s.stage, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	if err != nil {
		return load{}, err
	}
	if err := s.register(sink, "message.created", "run.finished"); err != nil {
		return load{}, err
	}
	return r.drive(ctx, s.url, clients)
}

func (r *rig) chatBare(ctx context.Context) (load, error) {
	b, err := r.startBare(ctx)
	if err != nil {
		return load{}, err
	}
	defer b.end()
	return r.drive(ctx, b.url, clients)
}

// drive has clients chat as fast as they are answered, each in a session of its own.
func (r *rig) drive(ctx context.Context, url string, clients int) (load, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var wg sync.WaitGroup
	from := time.Now().Add(r.warmup)
	until := from.Add(r.measure)
	for range clients {
		wg.Go(func() {
			var mine []time.Duration
			session := ""
			for time.Now().Before(until) {
				began := time.Now()
				var err error
				if session, err = chat(ctx, client, url, session); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				if ended := time.Now(); ended.After(from) && ended.Before(until) {
					mine = append(mine, ended.Sub(began))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
		})
	}
	wg.Wait()
	if failed == nil && len(took) == 0 {
		failed = errors.New("nothing was answered in time")
	}
	if failed != nil {
		return load{}, fmt.Errorf("load %s: %w", url, failed)
	}
	return load{float64(len(took)) / r.measure.Seconds(), spreadOf(took)}, nil
}

func chat(ctx context.Context, client *http.Client, url, session string) (string, error) {
	return say(ctx, client, url, session, "When are you open on Saturday?")
}

// say is a chat with a message of one's own.
func say(ctx context.Context, client *http.Client, url, session, message string) (string, error) {
	return demo.say(ctx, client, url, session, message)
}

func (b business) say(ctx context.Context, client *http.Client, url, session, message string) (string, error) {
	body := map[string]string{"message": message, "channel": "whatsapp"}
	if session != "" {
		body["session_id"] = session
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/agents/"+b.agent+"/chat", bytes.NewReader(raw))
	if err != nil {
		return "", err
	}
	req.Header = http.Header{"X-Api-Key": {b.key}, "Content-Type": {"application/json"}}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("chat: %w", errors.Join(err, fmt.Errorf("%d %.200s", res.StatusCode, answer)))
	}
	var in struct {
		SessionID string `json:"session_id"`
	}
	return in.SessionID, json.Unmarshal(answer, &in)
}
