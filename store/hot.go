package store

import (
	"context"
	"database/sql"
	"fmt"
)

// The statements that every chat runs are prepared once on SQLite, where parsing one costs three times as much as running
// it. On PostgreSQL bun runs them, with the arguments written into the text.
const (
	authenticateSQL = `SELECT id, business_id, kind, name, scope, hash, prefix, created_at, last_used_at FROM credentials
		WHERE hash = ? AND kind = ? AND revoked_at IS NULL`
	agentVersionSQL = `SELECT version FROM agents WHERE business_id = ? AND id = ? AND deleted_at IS NULL`

	lockSessionSQL = `UPDATE sessions SET run_id = ?, fence = fence + 1, locked_until = ?, last_sequence = last_sequence + 1, expires_at = ?
		WHERE id = ? AND business_id = ? AND agent_id = ? AND channel = ? AND expires_at > ? AND (run_id IS NULL OR locked_until < ?)
		AND NOT EXISTS (SELECT 1 FROM session_line WHERE session_id = sessions.id AND ticket < ? AND alive_until > ?)
		RETURNING fence, last_sequence`
	unlockSessionSQL = `UPDATE sessions SET run_id = NULL, locked_until = NULL, last_sequence = last_sequence + 2, expires_at = ?
		WHERE id = ? AND run_id = ? AND fence = ? RETURNING last_sequence`
	numberEventsSQL = `UPDATE businesses SET seq = seq + ? WHERE id = ? RETURNING seq`
)

// hot are prepared statements, by their text.
type hot map[string]*sql.Stmt

func prepare(ctx context.Context, db *sql.DB, queries ...string) (hot, error) {
	of := make(hot, len(queries))
	for _, query := range queries {
		stmt, err := db.PrepareContext(ctx, query) //nolint:sqlclosecheck // it lives as long as its DB, which closes it
		if err != nil {
			return nil, fmt.Errorf("prepare %q: %w", query, err)
		}
		of[query] = stmt
	}
	return of, nil
}

// openHot prepares the hot statements, which live as long as the connections.
func (s *Store) openHot(ctx context.Context) (err error) {
	if s.remote() {
		return nil
	}
	if s.hotReads, err = prepare(ctx, s.read.DB, authenticateSQL, agentVersionSQL); err != nil {
		return err
	}
	s.hotWrites, err = prepare(ctx, s.db.DB, lockSessionSQL, unlockSessionSQL, numberEventsSQL)
	return err
}

// readRow runs a hot query and scans its one row; sql.ErrNoRows if it has none.
func (s *Store) readRow(ctx context.Context, query string, args []any, dest ...any) error {
	if stmt := s.hotReads[query]; stmt != nil {
		return stmt.QueryRowContext(ctx, args...).Scan(dest...)
	}
	return s.read.NewRaw(query, args...).Scan(ctx, dest...)
}

// row runs a hot statement in the transaction and scans its one row; sql.ErrNoRows if it has none.
func (t *tx) row(ctx context.Context, query string, args []any, dest ...any) error {
	if stmt := t.hot[query]; stmt != nil {
		//nolint:sqlclosecheck // the transaction closes it
		return t.StmtContext(ctx, stmt).QueryRowContext(ctx, args...).Scan(dest...)
	}
	return t.NewRaw(query, args...).Scan(ctx, dest...)
}
