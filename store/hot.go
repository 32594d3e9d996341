package store

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// The statements that every chat and every delivery runs are prepared once: to parse and plan one costs three times as much as
// to run it.
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
)

// hot are prepared statements, by their text.
type hot map[string]*sql.Stmt

func (s *Store) prepare(ctx context.Context, db *sql.DB, queries ...string) (hot, error) {
	of := make(hot, len(queries))
	for _, query := range queries {
		text := query
		if s.remote() {
			text = numbered(query)
		}
		stmt, err := db.PrepareContext(ctx, text) //nolint:sqlclosecheck // it lives as long as its DB, which closes it
		if err != nil {
			return nil, fmt.Errorf("prepare %q: %w", query, err)
		}
		of[query] = stmt
	}
	return of, nil
}

// numbered writes the placeholders as PostgreSQL does.
func numbered(query string) string {
	var b strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString("$" + strconv.Itoa(n))
		query = after
	}
}

// openHot words the hot statements, and prepares those that read; each batcher prepares those that write.
func (s *Store) openHot(ctx context.Context) (err error) {
	s.freshJobsSQL, s.targetsSQL, s.endpointsSQL = withIDs(s.remote(), freshJobsSQL), withIDs(s.remote(), targetsSQL), withIDs(s.remote(), endpointsSQL)
	s.fanOutsSQL, s.lockFanOutsSQL = withIDs(s.remote(), fanOutsSQL), withIDs(s.remote(), lockFanOutsSQL)+s.locking("UPDATE")
	s.healthSQL = withIDs(s.remote(), healthSQL) + s.locking("UPDATE")
	s.bornSQL = newBorn(s.remote())
	s.forgetFanOutsSQL = newBulk(s.remote(), forgetFanOutsSQL, column{"id", "text"})
	s.hotWrites = []string{lockSessionSQL, unlockSessionSQL}
	s.insertions = map[reflect.Type]*insertion{}
	for _, model := range []reflect.Type{
		reflect.TypeFor[Session](), reflect.TypeFor[Message](), reflect.TypeFor[Run](), reflect.TypeFor[Event](),
		reflect.TypeFor[FanOut](), reflect.TypeFor[Delivery](), reflect.TypeFor[Attempt](),
	} {
		in := newInsertion(s.db, s.remote(), model)
		s.insertions[model] = in
		s.hotWrites = append(s.hotWrites, in.text)
	}
	inserting := func(model reflect.Type) *bulk { return s.insertions[model].bulk }
	ending := newBulk(s.remote(), endRunsSQL, endedRunColumns...)
	turn := []*bulk{inserting(reflect.TypeFor[Session]()), inserting(reflect.TypeFor[Message]()), inserting(reflect.TypeFor[Run]()), ending}
	if s.remote() {
		s.batchSQL = newBulk(true, batchSQL, batchColumns...)
		s.numberAllSQL = newBulk(true, numberAllSQL, numberColumns...)
		s.stepsSQL = union(newBulk(true, unlockSessionsSQL, unlockColumns...), newBulk(true, lockSessionsSQL, lockColumns...))
		s.outcomesSQL = newBulk(true, outcomesSQL+" RETURNING deliveries.id", outcomeColumns...)
		s.turnsSQL = fuse(append(turn, s.batchSQL)...)
	} else {
		s.outcomesSQL = newBulk(false, outcomesSQL, outcomeColumns...) // it counts, row by row
		s.turnsSQL = fuse(turn...)
	}
	s.eventsSQL = fuse(inserting(reflect.TypeFor[Event]()), inserting(reflect.TypeFor[FanOut]()), inserting(reflect.TypeFor[Delivery]()))
	s.hotWrites = append(s.hotWrites, s.outcomesSQL.text, s.bornSQL.text, s.lockFanOutsSQL, s.forgetFanOutsSQL.text, s.healthSQL)
	if s.remote() {
		s.hotWrites = append(s.hotWrites, s.batchSQL.text, s.numberAllSQL.text, s.stepsSQL.text, s.turnsSQL.text, s.eventsSQL.text)
	} else {
		s.hotWrites = append(s.hotWrites, ending.text, numberEventsSQL, s.endpointsSQL)
	}
	s.hotReads, err = s.prepare(ctx, s.keyed.DB, authenticateSQL, agentVersionSQL, rereadSQL, rereadBornSQL, s.targetsSQL, s.freshJobsSQL, s.fanOutsSQL)
	return err
}

// readRow runs a hot query and scans its one row; sql.ErrNoRows if it has none.
func (s *Store) readRow(ctx context.Context, query string, args []any, dest ...any) error {
	return s.hotReads[query].QueryRowContext(ctx, args...).Scan(dest...)
}

// row runs a hot statement in the transaction and scans its one row; sql.ErrNoRows if it has none.
func (t *tx) row(ctx context.Context, query string, args []any, dest ...any) error {
	//nolint:sqlclosecheck // the transaction closes it
	return t.StmtContext(ctx, t.hot[query]).QueryRowContext(ctx, args...).Scan(dest...)
}
