package transport

import (
	"encoding/json"
	"errors"
	"unicode/utf8"

	"github.com/vektah/gqlparser/v2/gqlerror"
)

// subprotocol is the one that is spoken, PROTOCOL.md section "Communication".
const subprotocol = "graphql-transport-ws"

// Close codes that PROTOCOL.md names, and 4500 from its reference implementation; then those of RFC 6455, section 7.4, and
// its registry that are used here.
const (
	closeInvalid       = 4400
	closeUnauthorized  = 4401
	closeForbidden     = 4403
	closeSubprotocol   = 4406
	closeInitTimeout   = 4408
	closeDuplicate     = 4409
	closeTooManyInits  = 4429
	closeInternal      = 4500
	closeNormal        = 1000
	closeGoingAway     = 1001
	closeProtocolError = 1002
	closeNoStatus      = 1005
	closeAbnormal      = 1006
	closeTooBig        = 1009
	closeTryAgainLater = 1013
)

// ReasonSlow is with which reason, and the code 1013, a WebSocket is closed whose client takes too little of what it is sent.
const ReasonSlow = "slow consumer"

const (
	reasonGoingAway     = "going away"
	reasonForbidden     = "Forbidden"
	reasonUnauthorized  = "Unauthorized"
	reasonTooManyInits  = "Too many initialisation requests"
	reasonInitTimeout   = "Connection initialisation timeout"
	reasonSubprotocol   = "Subprotocol not acceptable"
	reasonInternal      = "Internal server error"
	reasonUnanswered    = "pings went unanswered"
	reasonProtocolError = "WebSocket protocol error"
	reasonMessageTooBig = "message too big"
)

const (
	maxCloseReason = 123 // RFC 6455, section 5.5: a control frame carries 125 bytes, two are the code
	maxOperationID = 1024
)

// The messages that a client sends.
const (
	typeConnectionInit   = "connection_init"
	typePing             = "ping"
	typePong             = "pong"
	typeSubscribe        = "subscribe"
	typeComplete         = "complete"
	typesOfMessagesToUse = "connection_init, ping, pong, subscribe or complete"
)

// message is what a client sent, PROTOCOL.md section "Message types".
type message struct {
	kind    string
	id      string
	payload json.RawMessage // nil when absent or null, else an object
}

// parseMessage checks the form of a message. Its errors end the socket with 4400, section "Invalid message"; they say what
// is wrong and echo nothing.
func parseMessage(data []byte) (message, error) {
	members, err := decodeObject(data)
	if err != nil {
		return message{}, err
	}
	kind, err := members.text("type")
	if err != nil {
		return message{}, err
	}
	m := message{kind: kind}
	if members.has("payload") {
		if members["payload"][0] != '{' {
			return message{}, errors.New("payload must be an object")
		}
		m.payload = members["payload"]
	}
	switch kind {
	case typeConnectionInit, typePing, typePong:
	case typeSubscribe, typeComplete:
		switch m.id, err = members.text("id"); {
		case err != nil:
			return message{}, err
		case m.id == "":
			return message{}, errors.New("id must be a string that is not empty")
		case len(m.id) > maxOperationID: // it is kept, and sent back with each result
			return message{}, errors.New("id is longer than 1024 bytes")
		}
	default:
		return message{}, errors.New("type must be " + typesOfMessagesToUse)
	}
	if kind == typeSubscribe && m.payload == nil {
		return message{}, errors.New("payload must be an object")
	}
	return m, nil
}

func ackMessage() []byte { return []byte(`{"type":"connection_ack"}`) }

// pingMessage carries where each operation would resume: after what has been sent before the ping.
func pingMessage(cursors map[string]string) []byte {
	if len(cursors) == 0 {
		return []byte(`{"type":"ping"}`)
	}
	encoded, _ := json.Marshal(cursors) // a map of strings always marshals
	return append(append([]byte(`{"type":"ping","payload":{"cursors":`), encoded...), '}', '}')
}

// pongMessage answers a ping with its own payload.
func pongMessage(payload json.RawMessage) []byte {
	if payload == nil {
		return []byte(`{"type":"pong"}`)
	}
	return append(append([]byte(`{"type":"pong","payload":`), payload...), '}')
}

// messageHead is an operation's message up to its payload.
func messageHead(id, kind string) []byte {
	quoted, _ := json.Marshal(id) // a string always marshals
	return append(append([]byte(`{"id":`), quoted...), `,"type":"`+kind+`","payload":`...)
}

func completeMessage(id string) []byte {
	quoted, _ := json.Marshal(id)
	return append(append([]byte(`{"id":`), quoted...), `,"type":"complete"}`...)
}

func errorMessage(id string, errs gqlerror.List) []byte {
	payload, err := json.Marshal(orInternal(errs))
	if err != nil {
		payload = []byte(`[` + internalError + `]`)
	}
	return append(append(messageHead(id, "error"), payload...), '}')
}

// orInternal puts something in the place of an error that the error presenter hides: who is refused must see that.
func orInternal(errs gqlerror.List) gqlerror.List {
	if len(errs) == 0 {
		return gqlerror.List{refusal(codeInternal, "internal error")}
	}
	return errs
}

// shorten cuts a close reason to what a close frame holds, between two characters.
func shorten(reason string) string {
	if len(reason) <= maxCloseReason {
		return reason
	}
	cut := maxCloseReason
	for !utf8.RuneStart(reason[cut]) {
		cut--
	}
	return reason[:cut]
}
