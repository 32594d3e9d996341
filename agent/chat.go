package agent

import (
	"strings"
	"unicode/utf8"

	"parley/store"
)

// ChatInput is a user's message to an agent.
type ChatInput struct {
	AgentID   string
	Message   string            // 1 to 32,000 characters after trimming
	Channel   store.Channel     // whose profile the agent answers with; the same in every turn of a session
	SessionID *string           // nil begins a session
	Metadata  *store.JSONObject // up to 16 KiB; kept with the message

	// IdempotencyKey makes the turn happen once: whoever asks again with the same key and input gets the first answer. It is 1
	// to 255 printable characters, and kept for 24 hours after the answer. A turn that failed lets it go.
	IdempotencyKey *string
	once           *store.IdempotencyKey // the same, when Chat has looked it up

	// Text, unless nil, is told the reply as it comes: all that it is told, one after the other, is the reply. It is called by
	// Chat itself, and not after it has returned. A replayed reply it is not told.
	Text func(delta string)
}

const (
	maxMessage  = 32_000   // characters
	maxMetadata = 16 << 10 // bytes
)

// Faults are all that is wrong with the input, with Loc below it, named as REST names the fields.
func (in *ChatInput) Faults() store.Faults {
	var f store.Faults
	message := strings.TrimSpace(in.Message)
	switch n := utf8.RuneCountInString(message); {
	case n == 0:
		f = append(f, store.Fault{
			Loc: []any{"message"}, Type: "string_too_short", Msg: "String should have at least 1 character",
			Ctx: map[string]any{"min_length": 1},
		})
	case n > maxMessage:
		f = append(f, store.Fault{
			Loc: []any{"message"}, Type: "string_too_long", Msg: "String should have at most 32000 characters",
			Ctx: map[string]any{"max_length": maxMessage},
		})
	}
	invalid := func(field, sentence string) {
		f = append(f, store.Faults{store.ValueError(sentence)}.Under(field)...)
	}
	const nul = "U+0000 is not allowed"
	if strings.ContainsRune(in.Message, 0) {
		invalid("message", nul)
	}
	if in.SessionID != nil && strings.ContainsRune(*in.SessionID, 0) {
		invalid("session_id", nul)
	}
	if m := in.Metadata; m != nil {
		if len(*m) > maxMetadata {
			invalid("metadata", "metadata may be 16 KiB at most")
		}
		if m.HasNUL() {
			invalid("metadata", nul)
		}
	}
	if in.IdempotencyKey != nil {
		f = append(f, store.CheckIdempotencyKey(*in.IdempotencyKey).Under("idempotency_key")...)
	}
	return f
}

// ChatReply is what the agent answered.
type ChatReply struct {
	Reply     string
	SessionID string
	MessageID string // of the reply
	RunID     string
	Channel   store.Channel
	Status    store.RunStatus
	Model     string
	Usage     store.TokenUsage
	Handoff   *store.Handoff   // the agent asks for a person; nil if it does not
	Rendering *store.Rendering // how the channel shows it; nil if there is nothing to say but the text
	Replayed  bool             // it is the answer of an earlier request with the same idempotency key
}

// ChatDelta is a part of a reply as it comes, or the whole of it.
type ChatDelta struct {
	Text  *string
	Reply *ChatReply
}
