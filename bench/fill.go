package main

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// What a stopped server's database is filled with: copies of the rows of one chat, the template. All that the bench knows of the
// schema stands in this file: which tables those rows are in, and which of their columns differ in each copy. All other columns
// are read from the schema, and copied. The words in braces are:
//
//	{id:c}  the id in column c, made anew: its instant is that of the copy, its end the copy's number
//	{at:c}  the instant of the copy, in microseconds; null where c is
//	{n}     the copy's number
//	{seq}   how far the copy's events are behind the template's
type table struct {
	name  string
	where string            // of the template's rows, with the session as {session}
	set   map[string]string // columns that differ
}

var ofChat = []table{
	{"sessions", "id = {session}", map[string]string{"id": "{id:id}", "created_at": "{at:created_at}"}},
	{"messages", "session_id = {session}", map[string]string{
		"id": "{id:id}", "session_id": "{id:session_id}", "run_id": "{id:run_id}", "created_at": "{at:created_at}",
	}},
	{"runs", "session_id = {session}", map[string]string{
		"id": "{id:id}", "session_id": "{id:session_id}", "message_id": "{id:message_id}", "reply_id": "{id:reply_id}",
		"started_at": "{at:started_at}", "finished_at": "{at:finished_at}",
	}},
	{"deliveries", "event_id IN (SELECT id FROM events WHERE session_id = {session})", map[string]string{
		"id": "{id:id}", "event_id": "{id:event_id}", "lane": "{id:lane}", "seq": "seq + {seq}", "created_at": "{at:created_at}", "updated_at": "{at:updated_at}",
	}},
	{"events", "session_id = {session}", map[string]string{
		"id": "{id:id}", "session_id": "{id:session_id}", "seq": "seq + {seq}", "timestamp": "{at:timestamp}",
		"body": "replace(replace(body, id, {id:id}), session_id, {id:session_id})",
	}},
}

// ofBusiness are copied for a business, with the rows of a chat.
var ofBusiness = []table{
	{"businesses", "", map[string]string{"id": "{id:id}", "name": "name || {n}"}},
	{"credentials", "", map[string]string{"id": "{id:id}", "business_id": "{id:business_id}", "hash": "hash || {n}"}},
	{"agents", "", map[string]string{"business_id": "{id:business_id}"}},
	{"endpoints", "", map[string]string{"id": "{id:id}", "business_id": "{id:business_id}", "shard": "{n} % 16"}},
}

const (
	stretch = 20 * 24 * time.Hour // the chats' instants: less than retention
	step    = 20_000              // chats a transaction
)

// filler writes into a stopped server's database.
type filler struct {
	*sql.DB
	ctx      context.Context
	postgres bool
	template string
	from     time.Time // the first chat's instant
	each     int64     // microseconds from a chat to the next
}

func (s *server) filler(ctx context.Context, template string, n int) (f *filler, err error) {
	f = &filler{ctx: ctx, postgres: s.rig.mode == production, template: template, from: time.Now().Add(-stretch), each: stretch.Microseconds() / int64(n)}
	if f.postgres {
		f.DB, err = sql.Open("pgx", s.database+"&synchronous_commit=off")
	} else {
		f.DB, err = sql.Open("sqlite", "file:"+s.database+"?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=cache_size(-65536)")
	}
	if err == nil {
		f.SetMaxOpenConns(1)
	}
	return f, err
}

// fillEvents makes so many copies of the template's chat. What there is becomes as old as the first of them.
func (s *server) fillEvents(ctx context.Context, template string, chats int) error {
	f, err := s.filler(ctx, template, chats)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for _, t := range ofChat {
		set := []string{}
		for _, column := range slices.Sorted(maps.Keys(t.set)) {
			if column != "seq" {
				set = append(set, column+" = "+f.render(t.set[column], "0", "0", true))
			}
		}
		where := "" // tests of endpoints and the like have no session
		if strings.Contains(t.where, "session_id =") && t.name != "deliveries" {
			where = " WHERE session_id IS NOT NULL"
		}
		if err := f.exec("UPDATE " + t.name + " SET " + strings.Join(set, ", ") + where); err != nil {
			return err
		}
	}
	// The template's ids have changed with all others.
	if err := f.QueryRowContext(ctx, "SELECT id FROM sessions WHERE id LIKE '%"+template[18:]+"'").Scan(&f.template); err != nil {
		return fmt.Errorf("find the template: %w", err)
	}
	for first := 1; first <= chats; first += step {
		last := min(first+step-1, chats)
		for _, t := range ofChat {
			if err := f.copy(t, first, last, fmt.Sprintf("%d * n.i", perChat)); err != nil {
				return err
			}
		}
	}
	// The template is the business's last chat.
	return f.finish(fmt.Sprintf("UPDATE businesses SET seq = seq + %d", perChat*chats))
}

// fillBusinesses makes so many businesses like the one that there is, with one chat each.
func (s *server) fillBusinesses(ctx context.Context, template string, n int) error {
	f, err := s.filler(ctx, template, n)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for first := 1; first <= n; first += step {
		last := min(first+step-1, n)
		for _, t := range slices.Concat(ofBusiness, ofChat) {
			t.set = maps.Clone(t.set)
			switch t.name {
			case "businesses":
			case "deliveries":
				t.set["endpoint_id"] = "{id:endpoint_id}"
				fallthrough
			default:
				if t.name != "credentials" && t.name != "agents" && t.name != "endpoints" || t.set["business_id"] != "" {
					t.set["business_id"] = "{id:business_id}"
				}
			}
			if t.where == "" && t.name == "businesses" {
				t.where = "id = (SELECT business_id FROM sessions WHERE id = {session})"
			} else if t.where == "" {
				t.where = "business_id = (SELECT business_id FROM sessions WHERE id = {session})"
			}
			if err := f.copy(t, first, last, "0"); err != nil {
				return err
			}
		}
	}
	return f.finish()
}

// copy copies the template's rows of a table, once for each number.
func (f *filler) copy(t table, first, last int, seq string) error {
	rows, err := f.QueryContext(f.ctx, "SELECT * FROM "+t.name+" LIMIT 0")
	if err != nil {
		return err
	}
	columns, err := rows.Columns()
	_ = rows.Close()
	if err != nil {
		return err
	}
	var values []string
	for _, column := range columns {
		value, ok := t.set[column]
		if !ok {
			value = column
		}
		values = append(values, f.render(value, "n.i", seq, false))
	}
	where := strings.ReplaceAll(t.where, "{session}", "'"+f.template+"'")
	return f.exec(fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT CAST(%d AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		INSERT INTO %s (%s) SELECT %s FROM n CROSS JOIN (SELECT * FROM %s WHERE %s) AS t`,
		first, last, t.name, strings.Join(columns, ", "), strings.Join(values, ", "), t.name, where))
}

// render writes a column's value for copy i, or for what there is, whose ids keep their ends.
func (f *filler) render(value, i, seq string, keep bool) string {
	instant := fmt.Sprintf("(%d + %s * %d)", f.from.UnixMicro(), i, f.each)
	for {
		before, rest, found := strings.Cut(value, "{")
		if !found {
			return value
		}
		word, after, _ := strings.Cut(rest, "}")
		kind, column, _ := strings.Cut(word, ":")
		switch kind {
		case "id": // 1 to 4 the kind, 5 to 17 the milliseconds, 18 to 28 what tells rows of a chat apart, 29 to 40 random
			end := fmt.Sprintf("substr(%s, 18, 11) || %s", column, f.hex(i))
			if keep {
				end = fmt.Sprintf("substr(%s, 18)", column)
			}
			at := f.hex("(" + instant + " / 1000)")
			word = fmt.Sprintf("(substr(%s, 1, 4) || substr(%s, 1, 8) || '-' || substr(%s, 9, 4) || %s)", column, at, at, end)
		case "at":
			word = fmt.Sprintf("(%s - %s + %s)", column, column, instant)
		case "n":
			word = i
		case "seq":
			word = seq
		}
		value = before + word + after
	}
}

// hex writes twelve digits.
func (f *filler) hex(number string) string {
	if f.postgres {
		return "lpad(to_hex(CAST(" + number + " AS BIGINT)), 12, '0')"
	}
	return "printf('%012x', " + number + ")"
}

func (f *filler) exec(statement string) error {
	if _, err := f.ExecContext(f.ctx, statement); err != nil {
		return fmt.Errorf("%.300s: %w", statement, err)
	}
	return nil
}

// finish leaves a database as one that has grown by and by: PostgreSQL's own workers would have done as much.
func (f *filler) finish(statements ...string) error {
	if f.postgres {
		statements = append(statements, "VACUUM ANALYZE", "CHECKPOINT")
	} else {
		statements = append(statements, "PRAGMA wal_checkpoint(TRUNCATE)")
	}
	for _, statement := range statements {
		if err := f.exec(statement); err != nil {
			return err
		}
	}
	return nil
}
