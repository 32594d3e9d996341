package hook

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"parley/store"
)

// Delivery is one event on its way to one endpoint.
type Delivery struct {
	bun.BaseModel `bun:"table:deliveries,alias:d"`

	EndpointID string               `bun:"endpoint_id,pk"`
	Seq        int64                `bun:"seq,pk"` // of the event; of a test, the business's last one when it was made
	EventID    string               `bun:"event_id,pk"`
	BusinessID string               `bun:"business_id"`
	Shard      int                  `bun:"shard"`
	Type       store.EventType      `bun:"type"` // of the event
	Lane       string               `bun:"lane"` // of the event: what is kept in order at the endpoint
	Status     store.DeliveryStatus `bun:"status"`
	Due        *store.Time          `bun:"due"` // while it waits: when, or 0 for a first attempt, whose turn is by Seq
	Epoch      int64                `bun:"epoch"`
	Generation int64                `bun:"generation"`
	Trigger    store.AttemptTrigger `bun:"trigger_name"` // why the next attempt is made, or the last one was
	Base       int                  `bun:"base"`         // attempts made before it was last sent again: retries count from there
	Attempts   int                  `bun:"attempts"`
	ReplayID   *string              `bun:"replay_id"` // the replay that sends it
	CreatedAt  store.Time           `bun:"created_at"`
	UpdatedAt  store.Time           `bun:"updated_at"` // when its status or attempts last changed
	OldID      *string              `bun:"old_id"`     // by which it was known before its id was made of its key
}

// ID names the delivery: it is made of its event and its endpoint, and can be read back.
func (d *Delivery) ID() string {
	if d.OldID != nil {
		return *d.OldID
	}
	return DeliveryID(d.EventID, d.EndpointID)
}

// NextAttemptAt is when the next attempt is due; nil after the last.
func (d *Delivery) NextAttemptAt() *store.Time {
	if d.Due != nil && *d.Due == 0 {
		return &d.CreatedAt
	}
	return d.Due
}

// DeliveryID is the id of an event's delivery to an endpoint.
func DeliveryID(event, endpoint string) string {
	e, err := uuid.Parse(strings.TrimPrefix(event, "evt_"))
	p, err2 := uuid.Parse(strings.TrimPrefix(endpoint, "whe_"))
	if err != nil || err2 != nil { // ids of another form: none of ours
		return "dlv_" + base64.RawURLEncoding.EncodeToString([]byte(event+"|"+endpoint))
	}
	return "dlv_" + base64.RawURLEncoding.EncodeToString(append(e[:], p[:]...))
}

// readID is the way back from DeliveryID.
func readID(id string) (event, endpoint string, ok bool) {
	coded, ok := strings.CutPrefix(id, "dlv_")
	raw, err := base64.RawURLEncoding.DecodeString(coded)
	if !ok || err != nil {
		return "", "", false
	}
	if len(raw) == 32 {
		return "evt_" + uuid.UUID(raw[:16]).String(), "whe_" + uuid.UUID(raw[16:]).String(), true
	}
	if !strings.HasPrefix(string(raw), "evt_") {
		return "", "", false // an id of before, which may look like anything
	}
	return strings.Cut(string(raw), "|")
}

// Attempt is one try to deliver.
type Attempt struct {
	bun.BaseModel `bun:"table:attempts,alias:a"`

	EndpointID string               `bun:"endpoint_id,pk"`
	Seq        int64                `bun:"seq,pk"`
	EventID    string               `bun:"event_id,pk"`
	Number     int                  `bun:"number,pk"` // from 1
	Trigger    store.AttemptTrigger `bun:"trigger_name"`
	StartedAt  store.Time           `bun:"started_at"`
	DurationMs int                  `bun:"duration_ms"`
	StatusCode *int                 `bun:"status_code"`
	Error      *string              `bun:"error"` // why it failed; nil for a success
	Timings
	NextAttemptAt *store.Time `bun:"next_attempt_at"` // when the next one was due, as this one left it
	ResponseBody  *string     `bun:"response_body"`   // the first 16 KiB of the answer
}

// Timings are what an attempt's time went into, each in milliseconds for itself: nil where it did not happen, as with a
// connection that is used again. FirstByteMs counts from the attempt's start.
type Timings struct {
	DNSMs         *int    `bun:"dns_ms"`
	ConnectMs     *int    `bun:"connect_ms"`
	TLSMs         *int    `bun:"tls_ms"`
	FirstByteMs   *int    `bun:"first_byte_ms"`
	RemoteAddress *string `bun:"remote_address"` // who was connected to, host and port
}

// DeliveryEdge is a delivery with its cursor.
type DeliveryEdge = store.Edge[*Delivery]

// DeliveryConnection is a page of deliveries.
type DeliveryConnection struct {
	Edges    []DeliveryEdge
	PageInfo store.PageInfo
}

// Nodes are the deliveries of the page.
func (c *DeliveryConnection) Nodes() []*Delivery { return store.Nodes(c.Edges) }

var errDeliveryNotFound = store.Refuse(store.CodeNotFound, "delivery_not_found", "there is no such delivery")

// key selects one delivery.
func (d *Delivery) key(q *bun.SelectQuery) *bun.SelectQuery {
	return q.Where("endpoint_id = ? AND seq = ? AND event_id = ?", d.EndpointID, d.Seq, d.EventID)
}

func (d *Delivery) String() string {
	return fmt.Sprintf("delivery of %s to %s", d.EventID, d.EndpointID)
}
