package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun/driver/pgdriver"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// bareSchema are the rows of a turn, with the indexes that reading them back needs.
const bareSchema = `
CREATE TABLE sessions (id TEXT PRIMARY KEY, last BIGINT NOT NULL, run TEXT);
CREATE TABLE messages (id TEXT PRIMARY KEY, session TEXT NOT NULL, text TEXT NOT NULL, seq BIGINT NOT NULL);
CREATE INDEX messages_of ON messages (session, seq);
CREATE TABLE runs (id TEXT PRIMARY KEY, session TEXT NOT NULL, status TEXT NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL);
CREATE TABLE deliveries (id TEXT PRIMARY KEY, event TEXT NOT NULL, endpoint TEXT NOT NULL, due BIGINT NOT NULL);
CREATE INDEX deliveries_due ON deliveries (endpoint, due);`

// bare is the bare handler, in this process: it decodes the request, commits the rows that a turn begins with, then those that
// it ends with, and encodes the answer. It has no auth, no model, no stream and no sending; its statements are prepared.
type bare struct {
	*stage
	db  *sql.DB
	url string

	take, ask, begin, release, answer, finish, event, delivery *sql.Stmt
}

const (
	bareQuestion = "When are you open on Saturday?"
	bareReply    = "On Saturday we are open from ten to four."
)

// startBare starts a bare handler on an empty database of the mode's kind: SQLite has one connection that writes, PostgreSQL
// one for each client.
func (r *rig) startBare(ctx context.Context) (b *bare, err error) {
	on := newStage(ctx)
	defer func() {
		if err != nil {
			on.end()
		}
	}()
	b = &bare{stage: on}
	if err := b.open(r); err != nil {
		return nil, err
	}
	b.Cleanup(func() { _ = b.db.Close() })
	if err := b.prepare(ctx, r.mode == production); err != nil {
		return nil, err
	}
	b.url, err = listen(b.stage, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := b.chat(r.Context(), w, r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	return b, err
}

func (b *bare) open(r *rig) error {
	if r.mode == production {
		url, err := r.database(b.stage)
		if err != nil {
			return err
		}
		b.db = sql.OpenDB(pgdriver.NewConnector(pgdriver.WithDSN(url)))
		b.db.SetMaxOpenConns(clients)
		b.db.SetMaxIdleConns(clients)
		return nil
	}
	var dir string
	if err := b.try(func() { dir = b.TempDir() }); err != nil {
		return err
	}
	var err error
	b.db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "bare.db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(5000)&_txlock=immediate")
	if err == nil {
		b.db.SetMaxOpenConns(1)
	}
	return err
}

func (b *bare) prepare(ctx context.Context, postgres bool) error {
	schema := bareSchema
	if postgres {
		schema = strings.ReplaceAll(schema, "INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
	}
	if _, err := b.db.ExecContext(ctx, schema); err != nil {
		return err
	}
	for _, p := range []struct {
		into  **sql.Stmt
		query string
	}{
		{&b.take, "INSERT INTO sessions VALUES (?, 1, ?) ON CONFLICT (id) DO UPDATE SET last = sessions.last + 1, run = excluded.run"},
		{&b.ask, "INSERT INTO messages SELECT ?, id, ?, last FROM sessions WHERE id = ?"},
		{&b.begin, "INSERT INTO runs VALUES (?, ?, 'running')"},
		{&b.release, "UPDATE sessions SET last = last + 2, run = NULL WHERE id = ? AND run = ?"},
		{&b.answer, "INSERT INTO messages SELECT ?, id, ?, last FROM sessions WHERE id = ?"},
		{&b.finish, "UPDATE runs SET status = 'finished' WHERE id = ?"},
		{&b.event, "INSERT INTO events (id, body) VALUES (?, ?)"},
		{&b.delivery, "INSERT INTO deliveries VALUES (?, ?, 'endpoint', ?)"},
	} {
		query := p.query
		if postgres {
			for i := 1; strings.Contains(query, "?"); i++ {
				query = strings.Replace(query, "?", fmt.Sprint("$", i), 1)
			}
		}
		var err error
		if *p.into, err = b.db.PrepareContext(ctx, query); err != nil { //nolint:sqlclosecheck // it ends with the database
			return fmt.Errorf("prepare %s: %w", query, err)
		}
	}
	return nil
}

// work is a transaction that stops at its first error.
type work struct {
	ctx context.Context
	*sql.Tx
	err error
}

func (w *work) do(stmt *sql.Stmt, args ...any) {
	if w.err == nil {
		_, w.err = w.StmtContext(w.ctx, stmt).ExecContext(w.ctx, args...) //nolint:sqlclosecheck // it ends with the transaction
	}
}

func (b *bare) commit(ctx context.Context, steps func(w *work)) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	w := &work{ctx: ctx, Tx: tx}
	if steps(w); w.err != nil {
		_ = tx.Rollback()
		return w.err
	}
	return tx.Commit()
}

// happen adds an event and its delivery.
func (b *bare) happen(w *work, kind, session, text string) {
	id := uuid.NewString()
	doc, err := json.Marshal(map[string]any{"event": map[string]any{"id": id, "type": kind, "session_id": session, "text": text}, "lead_id": nil})
	if err != nil {
		w.err = err
		return
	}
	w.do(b.event, id, string(doc))
	w.do(b.delivery, uuid.NewString(), id, time.Now().UnixMicro())
}

// beginTurn is a turn's first commit.
func (b *bare) beginTurn(ctx context.Context, session, run, message string) error {
	return b.commit(ctx, func(w *work) {
		w.do(b.take, session, run)
		w.do(b.ask, uuid.NewString(), message, session)
		w.do(b.begin, run, session)
		b.happen(w, "message.created", session, message)
	})
}

// endTurn is its second.
func (b *bare) endTurn(ctx context.Context, session, run string) error {
	return b.commit(ctx, func(w *work) {
		w.do(b.release, session, run)
		w.do(b.answer, uuid.NewString(), bareReply, session)
		w.do(b.finish, run)
		b.happen(w, "message.created", session, bareReply)
		b.happen(w, "run.finished", session, "")
	})
}

func (b *bare) chat(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
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
	if err := b.beginTurn(ctx, in.SessionID, run, in.Message); err != nil {
		return err
	}
	if err := b.endTurn(ctx, in.SessionID, run); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(map[string]string{"reply": bareReply, "session_id": in.SessionID})
}
