package rest

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strings"
	"time"

	"parley/agent"
	"parley/store"
)

// chatReply is the answer of a chat (contract, section 3).
type chatReply struct {
	Reply     string           `json:"reply"`
	SessionID string           `json:"session_id"`
	MessageID string           `json:"message_id"`
	RunID     string           `json:"run_id"`
	Channel   store.Channel    `json:"channel"`
	Status    store.RunStatus  `json:"status"`
	Model     string           `json:"model"`
	Usage     usage            `json:"usage"`
	Handoff   *store.Handoff   `json:"handoff,omitempty"`
	Rendering *store.Rendering `json:"rendering,omitempty"`
}

type usage struct {
	InputTokens  int               `json:"input_tokens"`
	OutputTokens int               `json:"output_tokens"`
	TotalTokens  int               `json:"total_tokens"`
	Source       store.UsageSource `json:"source"`
}

// chat is POST /agents/{agent_id}/chat.
func (a *API) chat(w http.ResponseWriter, r *http.Request) error {
	v, b, err := readTurn(w, r)
	if err != nil {
		return err
	}
	in := a.chatInput(r, b)
	faults := in.Faults()
	if keys := r.Header.Values("Idempotency-Key"); len(keys) > 0 {
		in.IdempotencyKey = &keys[0]
		b.header("idempotency-key", keys, store.CheckIdempotencyKey(keys[0]))
	}
	if err := b.check(faults); err != nil {
		return err
	}
	if wantsStream(r.Header) {
		return a.streamChat(w, r, v, in)
	}
	reply, err := a.Runner.Chat(r.Context(), v, in)
	if err != nil {
		return underBody(err)
	}
	markReplay(w, reply)
	write(w, http.StatusOK, replied(reply))
	return nil
}

// readTurn reads the body of a turn, for those alone who may have one.
func readTurn(w http.ResponseWriter, r *http.Request) (*store.Viewer, *body, error) {
	v, err := store.ViewerOf(r.Context())
	if err != nil {
		return nil, nil, err
	}
	if err := v.RequireChat(); err != nil {
		return nil, nil, err
	}
	b, err := read(w, r)
	return v, b, err
}

// underBody places the faults that only a turn finds, such as a variable of the prompt that has no value.
func underBody(err error) error {
	refusal, ok := store.AsError(err)
	if !ok || refusal.Faults == nil {
		return err
	}
	placed := *refusal
	placed.Faults = refusal.Faults.Under("body")
	return &placed
}

// chatInput reads what a chat and a test have in common.
func (a *API) chatInput(r *http.Request, b *body) agent.ChatInput {
	in := agent.ChatInput{AgentID: r.PathValue("agent_id")}
	in.Message, _ = b.text("message", true)
	if raw, ok := b.given("channel", true); ok {
		in.Channel, _ = oneOf(b, raw, store.Channels, "channel")
	}
	if id, ok := b.text("session_id", false); ok {
		in.SessionID = &id
	}
	in.Metadata = b.object("metadata")
	return in
}

// markReplay says in a header that the reply is an earlier request's with the same idempotency key.
func markReplay(w http.ResponseWriter, reply *agent.ChatReply) {
	if reply.Replayed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
}

func replied(reply *agent.ChatReply) chatReply {
	return chatReply{
		reply.Reply, reply.SessionID, reply.MessageID, reply.RunID, reply.Channel, reply.Status, reply.Model,
		usage{reply.Usage.InputTokens, reply.Usage.OutputTokens, reply.Usage.TotalTokens(), reply.Usage.Source},
		reply.Handoff, reply.Rendering,
	}
}

// streamChat answers with server-sent events: `delta` for each piece of the reply, then `done` with the whole answer, or
// `error`. What is refused before the agent has begun to think is refused as without streaming, with its status.
func (a *API) streamChat(w http.ResponseWriter, r *http.Request, v *store.Viewer, in agent.ChatInput) error {
	s := &eventStream{w: w}
	in.Text = func(delta string) {
		s.send("delta", struct {
			Text string `json:"text"`
		}{delta})
	}
	reply, err := a.Runner.Chat(r.Context(), v, in)
	if err == nil {
		if markReplay(w, reply); reply.Replayed {
			in.Text(reply.Reply)
		}
		s.send("done", replied(reply))
		return nil
	}
	e, ok := store.AsError(err)
	thought := ok && (e.Code == store.CodeModelFailed || e.Code == store.CodeModelTimeout)
	if !thought && !s.begun {
		return underBody(err)
	}
	if !ok {
		if r.Context().Err() == nil { // else the caller has left: nobody is told
			a.Log.ErrorContext(r.Context(), "a streamed chat failed", "path", r.URL.Path, "error", err)
		}
		e = store.Refuse("", "internal", "something went wrong on our side")
	}
	s.send("error", problem{e.Message, e.Reason})
	return nil
}

// eventStream writes server-sent events (WHATWG HTML, section 9.2).
type eventStream struct {
	w     http.ResponseWriter
	begun bool
}

// writeWithin is how long a caller may take to take an event: the turn does not wait for it, but this request does.
const writeWithin = 10 * time.Second

func (s *eventStream) send(event string, data any) {
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // for proxies
		s.w.WriteHeader(http.StatusOK)
	}
	var b bytes.Buffer
	b.WriteString("event: " + event + "\ndata: ")
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(data) // a struct of texts and numbers: one line
	b.WriteString("\n")
	c := http.NewResponseController(s.w)
	_ = c.SetWriteDeadline(time.Now().Add(writeWithin))
	_, _ = s.w.Write(b.Bytes()) // a caller that went away: the turn goes on without it
	_ = c.Flush()
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
