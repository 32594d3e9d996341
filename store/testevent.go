package store

import "maps"

// NewTestEvent makes an event of a type as it could have happened, for an endpoint to be tried with: a document like any other
// of its type, with `test: true` in its data. Its ids are of things that do not exist.
func NewTestEvent(business string, agentID *string, kind EventType, now Time) (*Event, error) {
	agent := NewID("agt")
	if agentID != nil {
		agent = *agentID
	}
	session, conversation, run, message := NewID("ses"), NewID("cnv"), NewID("run"), NewID("msg")
	call, approval := NewID("call"), NewID("apr")
	about := subject{Type: kind, Direction: Outbound, AgentID: &agent}
	channel := WhatsApp
	var data map[string]any
	usage := map[string]any{"input_tokens": 0, "output_tokens": 0, "total_tokens": 0, "source": UsageNone}
	switch kind {
	case MessageCreated:
		about.Direction, about.SessionID, about.RunID, about.MessageID, about.Sequence = Inbound, &session, &run, &message, 1
		data = map[string]any{"author": AuthorLead, "text": "This is a test."}
	case RunFinished:
		about.SessionID, about.RunID, about.MessageID, about.Sequence = &session, &run, &message, 3
		data = map[string]any{"status": RunStatusFinished, "model": "test", "usage": usage, "tool_calls": []any{}, "duration_ms": 1}
	case RunFailed:
		about.SessionID, about.RunID, about.Sequence = &session, &run, 2
		data = map[string]any{
			"status": RunStatusFailed, "model": "test", "usage": usage, "tool_calls": []any{}, "duration_ms": 1, "error_class": RunModelFailed,
		}
	case InboxItemCreated:
		about.Direction, about.ConversationID, about.Sequence = Inbound, &conversation, 2
		data = map[string]any{"kind": "new_lead"}
	case ConversationHolderChanged:
		about.ConversationID, about.Sequence = &conversation, 3
		data = map[string]any{"holder": "human", "previous_holder": "agent"}
	case CallEnded:
		about.CallID, channel = &call, Voice
		data = map[string]any{"duration_seconds": 1, "outcome": "test"}
	case ChannelStatusChanged:
		data = map[string]any{"status": "connected", "previous_status": "disconnected"}
	case ApprovalRequested:
		about.SessionID, about.RunID, about.ApprovalID, about.Sequence = &session, &run, &approval, 2
		data = map[string]any{"tool": "test", "arguments": map[string]any{}}
	}
	payload := map[string]any{"test": true}
	maps.Copy(payload, data)
	return newEvent(business, channel, now, about, payload)
}
