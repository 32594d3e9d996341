package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// What a stopped server's database is filled with: copies of the rows of one chat, the template. All that the bench knows of the
// schema stands in this file: which tables those rows are in, and which of their columns differ in each copy. All other columns
// are read from the schema, and copied. The words in braces are:
//
//	{id:c}   the id in column c, made anew: its instant is that of the copy, its end the copy's number
//	{own:c}  the same, where each copy is for a business of its own; else column c as it is
//	{at:c}   the instant of the copy, in microseconds; null where c is
//	{seq}    how far the copy's events are behind the template's
//	{n}      the copy's number
type table struct {
	name  string
	where string            // of the template's rows, with the template's session as {session}
	set   map[string]string // columns that differ
}

var ofChat = []table{
	{"sessions", "id = {session}", map[string]string{"id": "{id:id}", "business_id": "{own:business_id}", "created_at": "{at:created_at}"}},
	{"messages", "session_id = {session}", map[string]string{
		"id": "{id:id}", "business_id": "{own:business_id}", "session_id": "{id:session_id}", "run_id": "{id:run_id}", "created_at": "{at:created_at}",
	}},
	{"runs", "session_id = {session}", map[string]string{
		"id": "{id:id}", "business_id": "{own:business_id}", "session_id": "{id:session_id}", "message_id": "{id:message_id}",
		"reply_id": "{id:reply_id}", "started_at": "{at:started_at}", "finished_at": "{at:finished_at}",
	}},
	{"events", "session_id = {session}", map[string]string{
		"id": "{id:id}", "business_id": "{own:business_id}", "session_id": "{id:session_id}", "seq": "seq + {seq}", "timestamp": "{at:timestamp}",
		"body": "replace(replace(body, id, {id:id}), session_id, {id:session_id})",
	}},
}

// ofDeliveries are the rows of a chat's deliveries, in the version that is measured: before a
// delivery was one row it had an id.
func ofDeliveries(hasID bool) []table {
	key := map[string]string{"endpoint_id": "{own:endpoint_id}", "event_id": "{id:event_id}", "seq": "seq + {seq}"}
	of := map[string]string{"business_id": "{own:business_id}", "lane": "{id:lane}", "created_at": "{at:created_at}", "updated_at": "{at:updated_at}"}
	maps.Copy(of, key)
	if hasID {
		of["id"] = "{id:id}"
		return []table{
			{"attempts", "delivery_id IN (SELECT id FROM deliveries WHERE lane = {session})", map[string]string{"delivery_id": "{id:delivery_id}"}},
			{"deliveries", "lane = {session}", of},
		}
	}
	return []table{
		{"attempts", "event_id IN (SELECT event_id FROM deliveries WHERE lane = {session})", key},
		{"deliveries", "lane = {session}", of},
	}
}

const templates = "(SELECT business_id FROM sessions WHERE id = {session})"

// ofBusiness are copied for a business, with the rows of a chat.
var ofBusiness = []table{
	{"businesses", "id = " + templates, map[string]string{"id": "{own:id}", "name": "name || {n}"}},
	{"credentials", "business_id = " + templates, map[string]string{"id": "{own:id}", "business_id": "{own:business_id}", "hash": "hash || {n}"}},
	{"agents", "business_id = " + templates, map[string]string{"business_id": "{own:business_id}"}},
	{"endpoints", "business_id = " + templates, map[string]string{"id": "{own:id}", "business_id": "{own:business_id}", "shard": "{n} % 16"}},
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
	own      bool      // each copy is for a business of its own
	chat     []table
}

func (s *server) filler(ctx context.Context, template string, n int, own bool) (f *filler, err error) {
	f = &filler{
		ctx: ctx, postgres: s.rig.mode == production, template: template, own: own,
		from: time.Now().Add(-stretch), each: stretch.Microseconds() / int64(n),
	}
	if f.postgres {
		f.DB, err = sql.Open("pgx", s.database+"&synchronous_commit=off")
	} else {
		f.DB, err = sql.Open("sqlite", "file:"+s.database+"?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=cache_size(-65536)")
	}
	if err != nil {
		return nil, err
	}
	f.SetMaxOpenConns(1)
	_, old := f.ExecContext(ctx, "SELECT id FROM deliveries WHERE 1 = 0")
	f.chat = append(ofDeliveries(old == nil), ofChat...)
	return f, nil
}

// fillEvents makes so many copies of the template's chat. What there is becomes as old as the first of them.
func (s *server) fillEvents(ctx context.Context, template string, chats int) error {
	f, err := s.filler(ctx, template, chats, false)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for _, t := range f.chat {
		var set []string
		for column, value := range t.set {
			if column != "seq" {
				set = append(set, column+" = "+f.render(value, "0", true))
			}
		}
		if err := f.exec("UPDATE " + t.name + " SET " + strings.Join(set, ", ")); err != nil {
			return err
		}
	}
	// The template's ids have changed with all others.
	if err := f.QueryRowContext(ctx, "SELECT id FROM sessions WHERE id LIKE '%"+template[17:]+"'").Scan(&f.template); err != nil {
		return fmt.Errorf("find the template: %w", err)
	}
	// The template is the business's last chat.
	return errors.Join(f.copies(f.chat, chats), f.finish(fmt.Sprintf("UPDATE businesses SET seq = seq + %d", perChat*chats)))
}

// fillBusinesses makes so many businesses like the one that there is, with one chat each.
func (s *server) fillBusinesses(ctx context.Context, template string, n int) error {
	f, err := s.filler(ctx, template, n, true)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return errors.Join(f.copies(slices.Concat(ofBusiness, f.chat), n), f.finish())
}

// copies copies the template's rows so many times.
func (f *filler) copies(tables []table, n int) error {
	for first := 1; first <= n; first += step {
		for _, t := range tables {
			rows, err := f.QueryContext(f.ctx, "SELECT * FROM "+t.name+" LIMIT 0")
			if err != nil {
				return err
			}
			columns, err := rows.Columns()
			_ = rows.Close() //nolint:sqlclosecheck // before the next table
			if err != nil {
				return err
			}
			values := slices.Clone(columns)
			for i, column := range columns {
				if value, ok := t.set[column]; ok {
					values[i] = f.render(value, "n.i", false)
				}
			}
			err = f.exec(fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT CAST(%d AS BIGINT) UNION ALL SELECT i + 1 FROM n WHERE i < %d)
				INSERT INTO %s (%s) SELECT %s FROM n CROSS JOIN (SELECT * FROM %s WHERE %s) AS t`,
				first, min(first+step-1, n), t.name, strings.Join(columns, ", "), strings.Join(values, ", "), t.name,
				strings.ReplaceAll(t.where, "{session}", "'"+f.template+"'")))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// word is one of those in braces.
var word = regexp.MustCompile(`\{(\w+):?(\w*)\}`)

// render writes a column's value in copy i, or with keep in what there is, whose ids keep their ends.
func (f *filler) render(value, i string, keep bool) string {
	instant := fmt.Sprintf("(%d + %s * %d)", f.from.UnixMicro(), i, f.each)
	return word.ReplaceAllStringFunc(value, func(found string) string {
		parts := word.FindStringSubmatch(found)
		switch kind, c := parts[1], parts[2]; {
		case kind == "id", kind == "own" && f.own:
			// 1 to 4 the kind, 5 to 17 the milliseconds, 18 to 28 what tells rows of a chat apart, 29 to 40 random
			at, end := f.hex("("+instant+" / 1000)"), fmt.Sprintf("substr(%s, 18, 11) || %s", c, f.hex(i))
			if keep {
				end = fmt.Sprintf("substr(%s, 18)", c)
			}
			return fmt.Sprintf("(substr(%s, 1, 4) || substr(%s, 1, 8) || '-' || substr(%s, 9, 4) || %s)", c, at, at, end)
		case kind == "own":
			return c
		case kind == "at":
			return fmt.Sprintf("(%s - %s + %s)", c, c, instant)
		case kind == "seq" && f.own:
			return "0"
		case kind == "seq":
			return fmt.Sprintf("%d * %s", perChat, i)
		}
		return i
	})
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
