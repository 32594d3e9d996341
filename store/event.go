package store

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/uptrace/bun"
)

// Event is something that happened in a business. Its Body is the document of the specification, made once: the bytes that
// are signed, sent, streamed and shown. The columns beside it are what readers select by.
type Event struct {
	bun.BaseModel `bun:"table:events,alias:event"`

	ID             string    `bun:"id,pk"` // `evt_` and a UUIDv7
	BusinessID     string    `bun:"business_id"`
	Seq            int64     `bun:"seq"` // its number within the business: 1, 2, 3, … in commit order
	Type           EventType `bun:"type"`
	Channel        Channel   `bun:"channel"`
	Direction      Direction `bun:"direction"`
	AgentID        *string   `bun:"agent_id"`
	ConversationID *string   `bun:"conversation_id"`
	SessionID      *string   `bun:"session_id"`
	Timestamp      Time      `bun:"timestamp"`
	Body           Text      `bun:"body"`

	details atomic.Pointer[Details] // read once, for all who show the event
}

// Text is a document in a TEXT column, kept as the bytes that it is.
type Text []byte

// Value writes it as text, not as a blob.
func (t Text) Value() (driver.Value, error) { return string(t), nil }

// Scan reads it from either.
func (t *Text) Scan(src any) error {
	switch v := src.(type) {
	case []byte:
		*t = slices.Clone(v)
	case string:
		*t = Text(v)
	default:
		return fmt.Errorf("a document cannot be read from %T", src)
	}
	return nil
}

// Contact is who a lead is; for a chat, which has no lead, its strings are empty.
type Contact struct {
	Number string `json:"number"`
	Email  string `json:"email"`
	Name   string `json:"name"`
}

// body is the delivery body of the specification.
type body struct {
	Event struct {
		ID        string          `json:"id"`
		Channel   Channel         `json:"channel"`
		Timestamp float64         `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	} `json:"event"`
	LeadID      *string `json:"lead_id"`
	LeadContact Contact `json:"lead_contact"`
	BusinessID  string  `json:"business_id"`
	LeadCreated bool    `json:"lead_created"`
}

// subject is what an event is about: the part of `event.data` that all types share (contract, section 4).
type subject struct {
	Type           EventType `json:"type"`
	Direction      Direction `json:"direction"`
	AgentID        *string   `json:"agent_id,omitempty"`
	ConversationID *string   `json:"conversation_id,omitempty"`
	SessionID      *string   `json:"session_id,omitempty"`
	RunID          *string   `json:"run_id,omitempty"`
	MessageID      *string   `json:"message_id,omitempty"`
	CallID         *string   `json:"call_id,omitempty"`
	ApprovalID     *string   `json:"approval_id,omitempty"`
	Sequence       int64     `json:"sequence,omitempty"`
}

// newEvent makes the event and its document; payload is the rest of `event.data`, by type (docs/events.md).
func newEvent(business string, channel Channel, now Time, about subject, payload any) (*Event, error) {
	e := &Event{
		ID: newID("evt"), BusinessID: business, Type: about.Type, Channel: channel, Direction: about.Direction, Timestamp: now,
		AgentID: about.AgentID, ConversationID: about.ConversationID, SessionID: about.SessionID,
	}
	head, err := encode(about)
	if err != nil {
		return nil, err
	}
	rest, err := encode(payload)
	if err != nil {
		return nil, err
	}
	var b body
	b.Event.ID, b.Event.Channel, b.Event.Timestamp = e.ID, channel, now.Unix()
	b.Event.Data = join(head, rest)
	b.BusinessID = business
	e.Body, err = encode(b)
	return e, err
}

// encode is JSON without the escaping of <, > and & that is meant for HTML.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// join makes one object of two, neither of which may be empty.
func join(a, b []byte) []byte {
	return append(append(slices.Clone(a[:len(a)-1]), ','), b[1:]...)
}

// ParseEvent makes the event of a document and its number: the way back from what the stream carries.
func ParseEvent(doc []byte, seq int64) (*Event, error) {
	var b body
	if err := json.Unmarshal(doc, &b); err != nil {
		return nil, fmt.Errorf("parse event: %w", err)
	}
	var about subject
	if err := json.Unmarshal(b.Event.Data, &about); err != nil {
		return nil, fmt.Errorf("parse event %s: %w", b.Event.ID, err)
	}
	return &Event{
		ID: b.Event.ID, BusinessID: b.BusinessID, Seq: seq, Type: about.Type, Channel: b.Event.Channel, Direction: about.Direction,
		AgentID: about.AgentID, ConversationID: about.ConversationID, SessionID: about.SessionID,
		Timestamp: Time(int64(b.Event.Timestamp*1e6 + 0.5)), Body: doc,
	}, nil
}

// Details are the fields of an event that only its document holds.
type Details struct {
	Direction   Direction
	Sequence    *int
	RunID       *string
	LeadID      *string
	LeadContact Contact
	LeadCreated bool
	Data        JSONObject
}

// Details reads the document.
func (e *Event) Details() (*Details, error) {
	if d := e.details.Load(); d != nil {
		return d, nil
	}
	var b body
	if err := json.Unmarshal(e.Body, &b); err != nil {
		return nil, fmt.Errorf("read event %s: %w", e.ID, err)
	}
	var about subject
	if err := json.Unmarshal(b.Event.Data, &about); err != nil {
		return nil, fmt.Errorf("read event %s: %w", e.ID, err)
	}
	d := &Details{
		Direction: about.Direction, RunID: about.RunID, LeadID: b.LeadID, LeadContact: b.LeadContact,
		LeadCreated: b.LeadCreated, Data: JSONObject(b.Event.Data),
	}
	if about.Sequence > 0 {
		n := int(about.Sequence)
		d.Sequence = &n
	}
	e.details.Store(d)
	return d, nil
}

// Lane names what is kept in order at an endpoint: the conversation, or for a chat its session. An event without one has a
// lane of its own.
func (e *Event) Lane() string {
	switch {
	case e.ConversationID != nil:
		return *e.ConversationID
	case e.SessionID != nil:
		return *e.SessionID
	}
	return e.ID
}

// EventFilter selects events; an empty one selects all. Its lists are sets of alternatives.
type EventFilter struct {
	Types          []EventType
	Channels       []Channel
	AgentID        *string
	ConversationID *string
	SessionID      *string
}

// Match says whether the filter selects e. It decides as the WHERE clause of Store.EventsAfter does.
func (f *EventFilter) Match(e *Event) bool {
	if f == nil {
		return true
	}
	same := func(want, have *string) bool { return want == nil || have != nil && *want == *have }
	return (len(f.Types) == 0 || slices.Contains(f.Types, e.Type)) &&
		(len(f.Channels) == 0 || slices.Contains(f.Channels, e.Channel)) &&
		same(f.AgentID, e.AgentID) && same(f.ConversationID, e.ConversationID) && same(f.SessionID, e.SessionID)
}

// numberEvents takes the businesses' next sequences for the transaction's events, which keep the order they were made in, and
// returns the endpoints of these businesses. The businesses are locked in ascending order of id, until the commit: that is what
// makes sequence order commit order.
func (s *Store) numberEvents(ctx context.Context, t *tx) ([]*Endpoint, error) {
	of := map[string][]*Event{}
	for _, e := range t.events {
		of[e.BusinessID] = append(of[e.BusinessID], e)
	}
	businesses := slices.Sorted(maps.Keys(of))
	last := make(map[string]int64, len(of))
	var endpoints []*Endpoint
	var err error
	if t.remote {
		endpoints, err = s.numberAtOnce(ctx, t, businesses, of, last)
	} else {
		endpoints, err = s.numberEach(ctx, t, businesses, of, last)
	}
	if err != nil {
		return nil, fmt.Errorf("number the events of %d businesses: %w", len(of), err)
	}
	for _, b := range businesses {
		for i, e := range of[b] {
			e.Seq = last[b] - int64(len(of[b])-1-i)
		}
	}
	return endpoints, nil
}

const numberEventsSQL = `UPDATE businesses SET seq = seq + ? WHERE id = ? RETURNING seq`

const endpointsSQL = `SELECT id, business_id, agent_id, events, status FROM endpoints WHERE business_id IN ({ids}) AND deleted_at IS NULL`

func (s *Store) numberEach(ctx context.Context, t *tx, businesses []string, of map[string][]*Event, last map[string]int64) ([]*Endpoint, error) {
	for _, b := range businesses {
		var seq int64
		if err := t.row(ctx, numberEventsSQL, []any{len(of[b]), b}, &seq); err != nil {
			return nil, err
		}
		last[b] = seq
	}
	var endpoints []*Endpoint
	types := typeLists{}
	_, err := t.query(ctx, s.endpointsSQL, []any{s.idsArg(businesses)}, func(scan func(...any) error) error {
		p, events := new(Endpoint), ""
		err := scan(&p.ID, &p.BusinessID, &p.AgentID, &events, &p.Status)
		if err == nil {
			p.Events, err = types.read(events)
		}
		endpoints = append(endpoints, p)
		return err
	})
	return endpoints, err
}

// typeLists are lists of event types, by their documents: most endpoints of a business want the same.
type typeLists map[string][]EventType

func (known typeLists) read(document string) ([]EventType, error) {
	types, read := known[document]
	if !read {
		if err := json.Unmarshal([]byte(document), &types); err != nil {
			return nil, err
		}
		known[document] = types
	}
	return types, nil
}

// numberAllSQL does both in one round trip.
const numberAllSQL = `WITH wanted AS (SELECT new.id, new.events FROM {rows}),
	locked AS (SELECT id FROM businesses WHERE id IN (SELECT id FROM wanted) ORDER BY id FOR NO KEY UPDATE),
	numbered AS (UPDATE businesses SET seq = businesses.seq + wanted.events FROM wanted, locked
		WHERE businesses.id = wanted.id AND businesses.id = locked.id RETURNING businesses.id, businesses.seq)
	SELECT numbered.id, numbered.seq, e.id, e.agent_id, e.events, e.status
	FROM numbered LEFT JOIN endpoints AS e ON e.business_id = numbered.id AND e.deleted_at IS NULL`

var numberColumns = []column{{"id", "text"}, {"events", "bigint"}}

func (s *Store) numberAtOnce(ctx context.Context, t *tx, businesses []string, of map[string][]*Event, last map[string]int64) ([]*Endpoint, error) {
	var endpoints []*Endpoint
	types := typeLists{}
	_, err := t.run(ctx, s.numberAllSQL, some{len(businesses), func(i int) ([]any, error) {
		return []any{businesses[i], int64(len(of[businesses[i]]))}, nil
	}}, func(scan func(...any) error) error {
		var business string
		var seq int64
		var id, agent, events, status *string // of an endpoint, if there is one
		if err := scan(&business, &seq, &id, &agent, &events, &status); err != nil {
			return err
		}
		last[business] = seq
		if id == nil {
			return nil
		}
		wanted, err := types.read(*events)
		endpoints = append(endpoints, &Endpoint{ID: *id, BusinessID: business, AgentID: agent, Events: wanted, Status: EndpointStatus(*status)})
		return err
	})
	if err == nil && len(last) < len(businesses) {
		err = sql.ErrNoRows
	}
	return endpoints, err
}
