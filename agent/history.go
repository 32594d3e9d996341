package agent

import (
	"container/list"
	"context"
	"sync"
)

// History caches what was said in sessions. An entry counts only with the sequence that the session had when it was put
// in: whatever else is found is rebuilt from SQL, so a lost cache ends no conversation.
type History interface {
	// Recall returns the messages put in under the session and sequence.
	Recall(ctx context.Context, session string, sequence int64) ([]Message, bool)
	// Remember puts the session's messages in under its sequence.
	Remember(ctx context.Context, session string, sequence int64, messages []Message)
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

// LocalHistory is a History within the process: the sessions used last, bounded in bytes.
type LocalHistory struct {
	limit int

	mu       sync.Mutex // guards what follows
	size     int
	sessions map[string]*list.Element
	recent   *list.List // of remembered, the session used last in front
}

type remembered struct {
	session  string
	sequence int64
	messages []Message
	size     int
}

// NewLocalHistory makes a cache of so many bytes.
func NewLocalHistory(limit int) *LocalHistory {
	return &LocalHistory{limit: limit, sessions: map[string]*list.Element{}, recent: list.New()}
}

// Recall implements History.
func (h *LocalHistory) Recall(_ context.Context, session string, sequence int64) ([]Message, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.sessions[session]
	if e == nil || e.Value.(remembered).sequence != sequence {
		return nil, false
	}
	h.recent.MoveToFront(e)
	return e.Value.(remembered).messages, true
}

// Remember implements History.
func (h *LocalHistory) Remember(_ context.Context, session string, sequence int64, messages []Message) {
	r := remembered{session: session, sequence: sequence, messages: messages, size: len(session) + 128}
	for _, m := range messages {
		r.size += len(m.Text) + 64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.sessions[session]; e != nil {
		h.drop(e)
	}
	h.sessions[session] = h.recent.PushFront(r)
	h.size += r.size
	for h.size > h.limit {
		h.drop(h.recent.Back())
	}
}

func (h *LocalHistory) drop(e *list.Element) {
	r := h.recent.Remove(e).(remembered)
	delete(h.sessions, r.session)
	h.size -= r.size
}
