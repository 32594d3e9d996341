package store

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// The enums are kept, and sent in JSON, in the specification's spelling (`message.created`, `whatsapp`); GraphQL spells
// the same value in capitals. One pair of helpers at the end of the file translates.

// EventType is what an event tells of: one of the eight subscribable types of the specification.
type EventType string

// The event types, in the specification's order.
const (
	MessageCreated            EventType = "message.created"
	ConversationHolderChanged EventType = "conversation.holder_changed"
	InboxItemCreated          EventType = "inbox.item_created"
	RunFinished               EventType = "run.finished"
	RunFailed                 EventType = "run.failed"
	CallEnded                 EventType = "call.ended"
	ChannelStatusChanged      EventType = "channel.status_changed"
	ApprovalRequested         EventType = "approval.requested"
)

// EventTypes are all of them, in the specification's order.
var EventTypes = []EventType{
	MessageCreated, ConversationHolderChanged, InboxItemCreated, RunFinished, RunFailed, CallEnded, ChannelStatusChanged, ApprovalRequested,
}

// Channel is where a message travels, or, for a chat, whose profile the agent answers with.
type Channel string

// The channels of the specification.
const (
	Voice     Channel = "voice"
	SMS       Channel = "sms"
	WhatsApp  Channel = "whatsapp"
	Instagram Channel = "instagram"
	Gmail     Channel = "gmail"
	Outlook   Channel = "outlook"
	LinkedIn  Channel = "linkedin"
)

// Channels are all of them, in the specification's order.
var Channels = []Channel{Voice, SMS, WhatsApp, Instagram, Gmail, Outlook, LinkedIn}

// Direction is who spoke: Inbound is the lead, Outbound the business or its agent.
type Direction string

// The directions of the specification.
const (
	Inbound  Direction = "inbound"
	Outbound Direction = "outbound"
)

// Author is who wrote a message.
type Author string

// The authors.
const (
	AuthorLead  Author = "lead"
	AuthorAgent Author = "agent"
	AuthorHuman Author = "human"
)

// RunStatus is the state of a run. It ends exactly once, as finished or failed.
type RunStatus string

// The states of a run.
const (
	RunRunning          RunStatus = "running"
	RunAwaitingApproval RunStatus = "awaiting_approval"
	RunStatusFinished   RunStatus = "finished"
	RunStatusFailed     RunStatus = "failed"
)

// DeliveryStatus is the state of a delivery: pending before its first attempt, retrying after a failed one that will be
// repeated; delivered is final; failed and skipped can be sent again by hand.
type DeliveryStatus string

// The states of a delivery.
const (
	Pending   DeliveryStatus = "pending"
	Retrying  DeliveryStatus = "retrying"
	Delivered DeliveryStatus = "delivered"
	Failed    DeliveryStatus = "failed"
	Skipped   DeliveryStatus = "skipped"
)

// DeliveryStatuses are all of them.
var DeliveryStatuses = []DeliveryStatus{Pending, Retrying, Delivered, Failed, Skipped}

// EndpointStatus says whether an endpoint gets its events; those of a disabled one are recorded as skipped.
type EndpointStatus string

// The states of an endpoint.
const (
	Enabled  EndpointStatus = "enabled"
	Disabled EndpointStatus = "disabled"
)

// AttemptTrigger is why an attempt was made.
type AttemptTrigger string

// The triggers of an attempt.
const (
	TriggerAutomatic AttemptTrigger = "automatic"
	TriggerManual    AttemptTrigger = "manual"
	TriggerReplay    AttemptTrigger = "replay"
	TriggerTest      AttemptTrigger = "test"
)

// ReplayStatus is the state of a replay.
type ReplayStatus string

// The states of a replay: stopped is one whose endpoint was disabled or deleted meanwhile.
const (
	ReplayRunning  ReplayStatus = "running"
	ReplayFinished ReplayStatus = "finished"
	ReplayStopped  ReplayStatus = "stopped"
)

// Scope is what an access token may do; each includes the ones before it. An API key has none: it may only chat.
type Scope string

// The scopes, from the least.
const (
	ScopeRead    Scope = "read"
	ScopeOperate Scope = "operate"
	ScopeAdmin   Scope = "admin"
)

var scopes = []Scope{ScopeRead, ScopeOperate, ScopeAdmin}

// ConcurrencyPolicy is what happens to a turn of a session in which another is running.
type ConcurrencyPolicy string

// Enqueue waits for the running turn, in order of arrival; Reject answers `session_busy` at once.
const (
	Enqueue ConcurrencyPolicy = "enqueue"
	Reject  ConcurrencyPolicy = "reject"
)

// ModelProvider is who runs an agent's model.
type ModelProvider string

// The providers. OpenAI is any server that speaks its chat completions.
const (
	ProviderEmbedded  ModelProvider = "embedded"
	ProviderOpenAI    ModelProvider = "openai"
	ProviderAnthropic ModelProvider = "anthropic"
)

// UsageSource is where a token count comes from.
type UsageSource string

// The sources: counted by the provider, estimated by us, or none, for a model that uses no tokens.
const (
	UsageProvider  UsageSource = "provider"
	UsageEstimated UsageSource = "estimated"
	UsageNone      UsageSource = "none"
)

// marshalEnum writes v as GraphQL spells it.
func marshalEnum[E ~string](w io.Writer, v E) {
	_, _ = fmt.Fprintf(w, `"%s"`, strings.ToUpper(strings.ReplaceAll(string(v), ".", "_")))
}

// unmarshalEnum reads GraphQL's spelling of one of all. gqlgen has checked documents against the schema already; this
// meets the values of variables.
func unmarshalEnum[E ~string](target *E, v any, all ...E) error {
	if s, ok := v.(string); ok {
		i := slices.IndexFunc(all, func(e E) bool {
			return strings.ToUpper(strings.ReplaceAll(string(e), ".", "_")) == s
		})
		if i >= 0 {
			*target = all[i]
			return nil
		}
	}
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = strings.ToUpper(strings.ReplaceAll(string(e), ".", "_"))
	}
	return Faults{NotOneOf(names)}.Err()
}

// MarshalGQL writes the enum's value.
func (e EventType) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *EventType) UnmarshalGQL(v any) error { return unmarshalEnum(e, v, EventTypes...) }

// MarshalGQL writes the enum's value.
func (e Channel) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *Channel) UnmarshalGQL(v any) error { return unmarshalEnum(e, v, Channels...) }

// MarshalGQL writes the enum's value.
func (e Direction) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *Direction) UnmarshalGQL(v any) error { return unmarshalEnum(e, v, Inbound, Outbound) }

// MarshalGQL writes the enum's value.
func (e Author) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *Author) UnmarshalGQL(v any) error {
	return unmarshalEnum(e, v, AuthorLead, AuthorAgent, AuthorHuman)
}

// MarshalGQL writes the enum's value.
func (e RunStatus) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *RunStatus) UnmarshalGQL(v any) error {
	return unmarshalEnum(e, v, RunRunning, RunAwaitingApproval, RunStatusFinished, RunStatusFailed)
}

// MarshalGQL writes the enum's value.
func (e DeliveryStatus) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *DeliveryStatus) UnmarshalGQL(v any) error { return unmarshalEnum(e, v, DeliveryStatuses...) }

// MarshalGQL writes the enum's value.
func (e EndpointStatus) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *EndpointStatus) UnmarshalGQL(v any) error { return unmarshalEnum(e, v, Enabled, Disabled) }

// MarshalGQL writes the enum's value.
func (e AttemptTrigger) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *AttemptTrigger) UnmarshalGQL(v any) error {
	return unmarshalEnum(e, v, TriggerAutomatic, TriggerManual, TriggerReplay, TriggerTest)
}

// MarshalGQL writes the enum's value.
func (e ReplayStatus) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *ReplayStatus) UnmarshalGQL(v any) error {
	return unmarshalEnum(e, v, ReplayRunning, ReplayFinished, ReplayStopped)
}

// MarshalGQL writes the enum's value.
func (e Scope) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *Scope) UnmarshalGQL(v any) error { return unmarshalEnum(e, v, scopes...) }

// MarshalGQL writes the enum's value.
func (e ConcurrencyPolicy) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *ConcurrencyPolicy) UnmarshalGQL(v any) error { return unmarshalEnum(e, v, Enqueue, Reject) }

// MarshalGQL writes the enum's value.
func (e ModelProvider) MarshalGQL(w io.Writer) { marshalEnum(w, e) }

// UnmarshalGQL reads the enum's value.
func (e *ModelProvider) UnmarshalGQL(v any) error {
	return unmarshalEnum(e, v, ProviderEmbedded, ProviderOpenAI, ProviderAnthropic)
}
