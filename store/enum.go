package store

// The enums are kept, and sent in JSON, in the specification's spelling (`message.created`, `whatsapp`); GraphQL spells
// the same value in capitals: gqlgen.yml has both.

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
