package store

import (
	"bytes"
	"cmp"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
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

	// Recipients are the endpoints for which a delivery of it was made, as the transaction that stored it knows them: up to
	// MaxRecipients, and MoreRecipients says whether there are others.
	Recipients     []Recipient `bun:"-"`
	MoreRecipients bool        `bun:"-"`

	details atomic.Pointer[Details] // read once, for all who show the event
}

// Recipient is an endpoint that gets an event, with its epoch at that moment.
type Recipient struct {
	EndpointID string
	Epoch      int64
}

// MaxRecipients is how many recipients the bell tells of.
const MaxRecipients = 32

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
		ID: NewID("evt"), BusinessID: business, Type: about.Type, Channel: channel, Direction: about.Direction, Timestamp: now,
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

// What GraphQL shows of the details, each for itself.

// Sequence is the event's number within its conversation, if it has one.
func (e *Event) Sequence() (*int, error) {
	return detail(e, func(d *Details) *int { return d.Sequence })
}

// RunID is the run that the event belongs to, if there is one.
func (e *Event) RunID() (*string, error) {
	return detail(e, func(d *Details) *string { return d.RunID })
}

// LeadID is the lead, if there was one before.
func (e *Event) LeadID() (*string, error) {
	return detail(e, func(d *Details) *string { return d.LeadID })
}

// LeadContact is the lead's contact.
func (e *Event) LeadContact() (*Contact, error) {
	return detail(e, func(d *Details) *Contact { return &d.LeadContact })
}

// LeadCreated says whether the event made the lead.
func (e *Event) LeadCreated() (bool, error) {
	return detail(e, func(d *Details) bool { return d.LeadCreated })
}

// Data is all of the document's event.data.
func (e *Event) Data() (JSONObject, error) {
	return detail(e, func(d *Details) JSONObject { return d.Data })
}

func detail[T any](e *Event, of func(*Details) T) (value T, err error) {
	d, err := e.Details()
	if err != nil {
		return value, err
	}
	return of(d), nil
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

// Distinct is the same filter without doubles in its lists: they would be compared with every event.
func (f *EventFilter) Distinct() *EventFilter {
	if f == nil {
		return nil
	}
	once := *f
	once.Types, once.Channels = Distinct(f.Types), Distinct(f.Channels)
	return &once
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

// EventKind is what tells which endpoints an event is for.
type EventKind struct {
	BusinessID string
	AgentID    string // empty: of no agent
	Type       EventType
}

func (k EventKind) compare(other EventKind) int {
	return cmp.Or(strings.Compare(k.BusinessID, other.BusinessID), strings.Compare(k.AgentID, other.AgentID), strings.Compare(string(k.Type), string(other.Type)))
}

// Kind is what tells which endpoints the event is for.
func (e *Event) Kind() EventKind {
	k := EventKind{BusinessID: e.BusinessID, Type: e.Type}
	if e.AgentID != nil {
		k.AgentID = *e.AgentID
	}
	return k
}

// Distinct is a list without its doubles, in its order.
func Distinct[T comparable](list []T) []T {
	out := make([]T, 0, len(list))
	for _, x := range list {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}
