package rest

import (
	"mime"
	"net/http"
	"strings"

	"parley/agent"
	"parley/store"
)

// chatReply is the answer of a chat (contract, section 3).
type chatReply struct {
	Reply     string          `json:"reply"`
	SessionID string          `json:"session_id"`
	MessageID string          `json:"message_id"`
	RunID     string          `json:"run_id"`
	Channel   store.Channel   `json:"channel"`
	Status    store.RunStatus `json:"status"`
	Model     string          `json:"model"`
	Usage     usage           `json:"usage"`
}

type usage struct {
	InputTokens  int               `json:"input_tokens"`
	OutputTokens int               `json:"output_tokens"`
	TotalTokens  int               `json:"total_tokens"`
	Source       store.UsageSource `json:"source"`
}

// chat is POST /agents/{agent_id}/chat.
func (a *API) chat(w http.ResponseWriter, r *http.Request) error {
	v, err := store.ViewerOf(r.Context())
	if err != nil {
		return err
	}
	if err := v.RequireChat(); err != nil {
		return err
	}
	if wantsStream(r.Header) {
		return store.Refuse(store.CodeUnavailable, agent.NotImplemented, "this version of Parley does not stream: leave out Accept: text/event-stream")
	}
	b, err := read(w, r)
	if err != nil {
		return err
	}
	in := agent.ChatInput{AgentID: r.PathValue("agent_id")}
	in.Message, _ = b.text("message", true)
	if raw, ok := b.given("channel", true); ok {
		in.Channel, _ = oneOf(b, raw, store.Channels, "channel")
	}
	if id, ok := b.text("session_id", false); ok {
		in.SessionID = &id
	}
	in.Metadata = b.object("metadata")
	if keys := r.Header.Values("Idempotency-Key"); len(keys) > 0 {
		in.IdempotencyKey = &keys[0]
	}
	if err := b.check(in.Faults()); err != nil {
		return err
	}
	reply, err := a.Runner.Chat(r.Context(), v, in)
	if err != nil {
		return err
	}
	write(w, http.StatusOK, chatReply{
		reply.Reply, reply.SessionID, reply.MessageID, reply.RunID, reply.Channel, reply.Status, reply.Model,
		usage{reply.Usage.InputTokens, reply.Usage.OutputTokens, reply.Usage.TotalTokens(), reply.Usage.Source},
	})
	return nil
}

func wantsStream(h http.Header) bool {
	for _, value := range h.Values("Accept") {
		for part := range strings.SplitSeq(value, ",") {
			if kind, _, err := mime.ParseMediaType(part); err == nil && kind == "text/event-stream" {
				return true
			}
		}
	}
	return false
}
