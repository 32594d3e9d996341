package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/uptrace/bun"
)

// Message is what one side wrote, in a session or a conversation. Its Sequence is that of its event.
type Message struct {
	bun.BaseModel `bun:"table:messages,alias:message"`

	ID             string      `bun:"id,pk"`
	BusinessID     string      `bun:"business_id"`
	SessionID      *string     `bun:"session_id"`
	ConversationID *string     `bun:"conversation_id"`
	RunID          *string     `bun:"run_id"`
	Channel        *Channel    `bun:"channel"` // that a conversation's message travelled on; nil for a chat's, which travels on none
	Direction      Direction   `bun:"direction"`
	Author         Author      `bun:"author"`
	Text           string      `bun:"text"`
	Metadata       *JSONObject `bun:"metadata,type:text"`
	Sequence       int64       `bun:"sequence"`
	CreatedAt      Time        `bun:"created_at"`
	Rendering      *Rendering  `bun:"rendering,type:text"`
}

// Rendering is how a channel shows an agent's reply, besides its text. It is kept with the message, for what it was made of is not.
type Rendering struct {
	Segments  *int    `json:"segments,omitempty"` // of an SMS: the messages it is sent and charged as
	Encoding  *string `json:"encoding,omitempty"` // of an SMS: GSM-7 or UCS-2
	HTML      *string `json:"html,omitempty"`     // of an e-mail: what stands beside the text
	Truncated bool    `json:"truncated"`          // the model had more to say
}

// event makes the message's event.
func (m *Message) event(agent string, channel Channel) (*Event, error) {
	return newEvent(m.BusinessID, channel, m.CreatedAt, subject{
		Type: MessageCreated, Direction: m.Direction, AgentID: &agent, ConversationID: m.ConversationID, SessionID: m.SessionID,
		RunID: m.RunID, MessageID: &m.ID, Sequence: m.Sequence,
	}, struct {
		Author    Author      `json:"author"`
		Text      string      `json:"text"`
		Metadata  *JSONObject `json:"metadata,omitempty"`
		Rendering *Rendering  `json:"rendering,omitempty"`
	}{m.Author, m.Text, m.Metadata, m.Rendering})
}

// History reads the last limit messages of a session, oldest first. The messages of a run that failed, or still runs, are
// no part of it: a failed turn leaves the history as it was.
func (s *Store) History(ctx context.Context, session string, limit int) ([]*Message, error) {
	var messages []*Message
	err := s.read.NewSelect().Model(&messages).
		Join("JOIN runs ON runs.id = message.run_id AND runs.status = ?", RunStatusFinished).
		Where("message.session_id = ?", session).
		Order("message.sequence DESC").Limit(int64(limit)).Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the history of session %s: %w", session, err)
	}
	slices.Reverse(messages)
	return messages, nil
}

// MessagesByID reads messages of a business by id.
func (s *Store) MessagesByID(ctx context.Context, business string, ids []string) (map[string]*Message, error) {
	var messages []*Message
	err := s.read.NewSelect().Model(&messages).Where("business_id = ? AND id IN (?)", business, bun.List(ids)).Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %d messages: %w", len(ids), err)
	}
	of := make(map[string]*Message, len(messages))
	for _, m := range messages {
		of[m.ID] = m
	}
	return of, nil
}
