package agent

import (
	"context"

	"parley/lru"
)

// History caches what was said in sessions. An entry counts only with the sequence that the session had when it was put
// in: whatever else is found is rebuilt from SQL, so a lost cache ends no conversation.
type History interface {
	// Recall returns the messages put in under the session and sequence.
	Recall(ctx context.Context, session string, sequence int64) ([]Message, bool)
	// Remember puts the messages of a business's session in under its sequence.
	Remember(ctx context.Context, business, session string, sequence int64, messages []Message)
}

// How much of a session a model is told, the message to be answered with it. A request longer than the model's context is refused,
// and so would be each later one of the session: the bound is in bytes too, for of those a token has 4 in English, 3 in Chinese and
// hardly ever fewer than 2. That leaves room, in a context of 128,000 tokens, for prompt, knowledge, tools and reply.
const (
	historyLength = 100 // messages
	historySize   = 192 << 10
)

// recent is the end of the messages that is within both bounds. The last one always is.
func recent(messages []Message) []Message {
	from, size := len(messages), 0
	for i := len(messages) - 1; i >= max(0, len(messages)-historyLength); i-- {
		if size += len(messages[i].Text); size > historySize && from < len(messages) {
			break
		}
		from = i
	}
	return messages[from:]
}

// LocalHistory is a History within the process: the sessions used last, bounded in bytes. One business takes a quarter of them from
// the others at most.
type LocalHistory struct {
	sessions *lru.Cache[string, remembered]
}

type remembered struct {
	sequence int64
	messages []Message
}

// NewLocalHistory makes a cache of so many bytes.
func NewLocalHistory(limit int) *LocalHistory {
	return &LocalHistory{lru.New[string, remembered](limit, limit/4)}
}

// Recall implements History.
func (h *LocalHistory) Recall(_ context.Context, session string, sequence int64) ([]Message, bool) {
	r, ok := h.sessions.Get(session)
	if !ok || r.sequence != sequence {
		return nil, false
	}
	return r.messages, true
}

// Remember implements History.
func (h *LocalHistory) Remember(_ context.Context, business, session string, sequence int64, messages []Message) {
	size := len(session)
	for _, m := range messages {
		size += len(m.Text) + 64
	}
	h.sessions.Put(business, session, remembered{sequence, messages}, size)
}
