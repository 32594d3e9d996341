package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// bareSchema are a turn's rows, with the indexes that reading them back needs.
const bareSchema = `
CREATE TABLE sessions (id TEXT PRIMARY KEY, last BIGINT NOT NULL, run TEXT);
CREATE TABLE messages (id TEXT PRIMARY KEY, session TEXT NOT NULL, text TEXT NOT NULL, seq BIGINT NOT NULL);
CREATE INDEX messages_of ON messages (session, seq);
CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body TEXT NOT NULL);`

// bare is the bare handler, in this process: it decodes the request, commits what a turn begins with (the session, a message, its
// event), then what it ends with (the session, a message, two events), and encodes the answer. A table takes one statement a
// commit, prepared, and one round trip; so do BEGIN and COMMIT. It has no authentication, no model, no run, no stream, no
// endpoint, and no number that counts a business's events without gaps.
type bare struct {
	*stage
	db  *sql.DB
	url string

	take, release, message, event, events *sql.Stmt
}

const bareReply = "On Saturday we are open from ten to four."

// startBare starts a bare handler on an empty database of the mode's kind, with one connection to SQLite, which has one writer, and
// one for each client to PostgreSQL.
func (r *rig) startBare(ctx context.Context) (b *bare, err error) {
	b = &bare{stage: newStage(ctx)}
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	schema, connections := bareSchema, 1
	if r.mode == production {
		schema, connections = strings.ReplaceAll(schema, "INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"), clients
		var url string
		if url, err = r.emptyDatabase(b.stage); err == nil {
			b.db, err = sql.Open("pgx", url)
		}
	} else {
		var dir string
		if err = b.try(func() { dir = b.TempDir() }); err == nil {
			b.db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "bare.db")+
				"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(5000)&_txlock=immediate")
		}
	}
	if err != nil {
		return nil, err
	}
	b.Cleanup(func() { _ = b.db.Close() })
	b.db.SetMaxOpenConns(connections)
	b.db.SetMaxIdleConns(connections)
	if _, err := b.db.ExecContext(ctx, schema); err != nil {
		return nil, err
	}
	for query, into := range map[string]**sql.Stmt{
		"INSERT INTO sessions VALUES ($1, 1, $2) ON CONFLICT (id) DO UPDATE SET last = sessions.last + 1, run = excluded.run RETURNING last": &b.take,
		"UPDATE sessions SET last = last + 2, run = NULL WHERE id = $1 AND run = $2 RETURNING last":                                          &b.release,
		"INSERT INTO messages VALUES ($1, $2, $3, $4)":                                                                                       &b.message,
		"INSERT INTO events (id, body) VALUES ($1, $2)":                                                                                      &b.event,
		"INSERT INTO events (id, body) VALUES ($1, $2), ($3, $4)":                                                                            &b.events,
	} {
		if *into, err = b.db.PrepareContext(ctx, query); err != nil { //nolint:sqlclosecheck // it ends with the database
			return nil, fmt.Errorf("prepare %s: %w", query, err)
		}
	}
	b.url, err = listen(b.stage, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := b.chat(r.Context(), w, r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	return b, err
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
	if err := b.commit(ctx, b.take, in.SessionID, run, in.Message, b.event, "message.created"); err != nil {
		return err
	}
	if err := b.commit(ctx, b.release, in.SessionID, run, bareReply, b.events, "message.created", "run.finished"); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(map[string]string{"reply": bareReply, "session_id": in.SessionID})
}

// commit is one half of a turn: the session's row, which says the message's number, the message, and the events.
func (b *bare) commit(ctx context.Context, session *sql.Stmt, id, run, text string, events *sql.Stmt, types ...string) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	var last int64
	if err := tx.StmtContext(ctx, session).QueryRowContext(ctx, id, run).Scan(&last); err != nil { //nolint:sqlclosecheck // the transaction closes it
		return err
	}
	if _, err := tx.StmtContext(ctx, b.message).ExecContext(ctx, uuid.NewString(), id, text, last); err != nil { //nolint:sqlclosecheck // the transaction closes it
		return err
	}
	var rows []any
	for _, kind := range types {
		event := uuid.NewString()
		doc, err := json.Marshal(map[string]any{"event": map[string]any{"id": event, "data": map[string]any{
			"type": kind, "session_id": id, "run_id": run, "sequence": last, "text": text, "agent_id": "demo", "direction": "outbound",
		}, "channel": "whatsapp"}, "lead_id": nil, "lead_contact": map[string]string{"number": "", "email": "", "name": ""}})
		if err != nil {
			return err
		}
		rows = append(rows, event, string(doc))
	}
	if _, err := tx.StmtContext(ctx, events).ExecContext(ctx, rows...); err != nil { //nolint:sqlclosecheck // the transaction closes it
		return err
	}
	return tx.Commit()
}
