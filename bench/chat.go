package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

const (
	clients     = 16
	chatWarmup  = time.Second
	chatMeasure = 4 * time.Second
	chatRounds  = 3
)

// benchChat compares chats a second, embedded model, 16 clients, one webhook endpoint registered, with a bare handler that
// makes the same two durable commits and nothing else: it decodes the request, commits the rows that a turn begins with, then
// those that it ends with, and encodes the answer. Rounds alternate, since the machine's pace drifts.
func benchChat(ctx context.Context, binary string) error {
	var ours, theirs []load
	for range chatRounds {
		o, err := loadParley(ctx, binary)
		if err != nil {
			return err
		}
		b, err := loadBare(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("chat: parley %v   bare handler %v   ratio %.2f\n", o, b, o.rate/b.rate)
		ours, theirs = append(ours, o), append(theirs, b)
	}
	fmt.Printf("chat: median ratio %.2f (gate: 1.0, aim: 1.3)\n", median(ours).rate/median(theirs).rate)
	return nil
}

// load is what a load has measured.
type load struct {
	rate     float64 // a second
	p50, p99 time.Duration
}

func (l load) String() string {
	return fmt.Sprintf("%.0f/s (p50 %.1f ms, p99 %.1f ms)", l.rate, float64(l.p50.Microseconds())/1000, float64(l.p99.Microseconds())/1000)
}

func median(loads []load) load {
	slices.SortFunc(loads, func(a, b load) int { return int(a.rate - b.rate) })
	return loads[len(loads)/2]
}

func loadParley(ctx context.Context, binary string) (load, error) {
	sink := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return load{}, err
	}
	go func() { _ = sink.Serve(l) }()
	defer func() { _ = sink.Close() }()
	s, err := startServer(ctx, binary, "PARLEY_ALLOW_PRIVATE_WEBHOOKS=true")
	if err != nil {
		return load{}, err
	}
	defer s.stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/webhooks",
		bytes.NewReader([]byte(`{"url":"http://`+l.Addr().String()+`","events":["message.created","run.finished"]}`)))
	if err != nil {
		return load{}, err
	}
	req.Header = http.Header{"Authorization": {"Bearer at_bench"}, "Content-Type": {"application/json"}}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return load{}, err
	}
	_ = res.Body.Close()
	return drive(ctx, s.url)
}

// drive has the clients chat as fast as they are answered, each in a session of its own.
func drive(ctx context.Context, url string) (load, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var took []time.Duration
	var failed error
	var wg sync.WaitGroup
	from := time.Now().Add(chatWarmup)
	until := from.Add(chatMeasure)
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
				if began.After(from) {
					mine = append(mine, time.Since(began))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
		})
	}
	wg.Wait()
	if failed != nil || len(took) == 0 {
		return load{}, fmt.Errorf("load %s: %w", url, failed)
	}
	slices.Sort(took)
	return load{float64(len(took)) / chatMeasure.Seconds(), took[len(took)/2], took[len(took)*99/100]}, nil
}

func chat(ctx context.Context, client *http.Client, url, session string) (string, error) {
	body := map[string]string{"message": "When are you open on Saturday?", "channel": "whatsapp"}
	if session != "" {
		body["session_id"] = session
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/agents/demo/chat", bytes.NewReader(raw))
	if err != nil {
		return "", err
	}
	req.Header = http.Header{"X-Api-Key": {apiKey}, "Content-Type": {"application/json"}}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	var answer struct {
		SessionID string `json:"session_id"`
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %w", res.StatusCode, err)
	}
	_, err = io.Copy(io.Discard, res.Body)
	return answer.SessionID, err
}

// bareSchema are the rows of a turn, with the indexes that reading them back needs.
const bareSchema = `
CREATE TABLE sessions (id TEXT PRIMARY KEY, last INTEGER NOT NULL, run TEXT);
CREATE TABLE messages (id TEXT PRIMARY KEY, session TEXT NOT NULL, text TEXT NOT NULL, seq INTEGER NOT NULL);
CREATE INDEX messages_of ON messages (session, seq);
CREATE TABLE runs (id TEXT PRIMARY KEY, session TEXT NOT NULL, status TEXT NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL);
CREATE TABLE deliveries (id TEXT PRIMARY KEY, event TEXT NOT NULL, endpoint TEXT NOT NULL, due INTEGER NOT NULL);
CREATE INDEX deliveries_due ON deliveries (endpoint, due);`

// loadBare loads the bare handler, in this process: it has no HTTP client of its own, no auth, no model, no stream and no
// sending, and its statements are prepared.
func loadBare(ctx context.Context) (load, error) {
	dir, err := os.MkdirTemp("", "parley-bench-bare")
	if err != nil {
		return load{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "bare.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		return load{}, err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, bareSchema); err != nil {
		return load{}, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return load{}, err
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := bareChat(r.Context(), db, w, r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})}
	go func() { _ = srv.Serve(l) }()
	defer func() { _ = srv.Close() }()
	return drive(ctx, "http://"+l.Addr().String())
}

func bareChat(ctx context.Context, db *sql.DB, w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Message   string `json:"message"`
		SessionID string `json:"session_id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return err
	}
	run := uuid.NewString()
	if in.SessionID == "" {
		in.SessionID = uuid.NewString()
	}
	event := func(tx *sql.Tx, kind, text string, deliver bool) error {
		id := uuid.NewString()
		doc, err := json.Marshal(map[string]any{"event": map[string]any{"id": id, "type": kind, "session_id": in.SessionID, "text": text}, "lead_id": nil})
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO events (id, body) VALUES (?, ?)", id, doc); err != nil || !deliver {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO deliveries VALUES (?, ?, 'endpoint', ?)", uuid.NewString(), id, time.Now().UnixMicro())
		return err
	}
	commit := func(steps func(tx *sql.Tx) error) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := steps(tx); err != nil {
			_ = tx.Rollback()
			return err
		}
		return tx.Commit()
	}
	const reply = "On Saturday we are open from ten to four."
	err := commit(func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO sessions VALUES (?, 1, ?) ON CONFLICT (id) DO UPDATE SET last = last + 1, run = excluded.run", in.SessionID, run)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO messages SELECT ?, id, ?, last FROM sessions WHERE id = ?", uuid.NewString(), in.Message, in.SessionID); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO runs VALUES (?, ?, 'running')", run, in.SessionID); err != nil {
			return err
		}
		return event(tx, "message.created", in.Message, true)
	})
	if err != nil {
		return err
	}
	err = commit(func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE sessions SET last = last + 2, run = NULL WHERE id = ? AND run = ?", in.SessionID, run); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO messages SELECT ?, id, ?, last FROM sessions WHERE id = ?", uuid.NewString(), reply, in.SessionID); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE runs SET status = 'finished' WHERE id = ?", run); err != nil {
			return err
		}
		if err := event(tx, "message.created", reply, true); err != nil {
			return err
		}
		return event(tx, "run.finished", "", true)
	})
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(map[string]string{"reply": reply, "session_id": in.SessionID})
}
