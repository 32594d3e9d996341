package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Code says what kind of refusal an Error is. Each transport has one table from these to its own: status codes in rest,
// `extensions.code` in graph.
type Code string

// The closed set of codes. Whatever is not an Error is internal: it is logged, and the caller learns only that.
const (
	CodeInvalid         Code = "BAD_USER_INPUT"
	CodeUnauthenticated Code = "UNAUTHENTICATED"
	CodeForbidden       Code = "FORBIDDEN"
	CodeNotFound        Code = "NOT_FOUND"
	CodeConflict        Code = "CONFLICT"
	CodeRateLimited     Code = "RATE_LIMITED"
	CodeModelFailed     Code = "MODEL_FAILED"
	CodeModelTimeout    Code = "MODEL_TIMEOUT"
	CodeSessionExpired  Code = "SESSION_EXPIRED"
	CodeCursorExpired   Code = "CURSOR_EXPIRED"
	CodeUnavailable     Code = "UNAVAILABLE"
)

// Error is a refusal meant for the caller: its Message is shown as it stands, so it names no internals.
type Error struct {
	Code    Code
	Reason  string // a stable word within the code, such as `session_busy`
	Message string // a sentence for people
	Faults  Faults // what is wrong with the input, every fault of it (CodeInvalid only)

	RetryAfter int // seconds after which it is worth trying again; 0: nothing is known

	cause error // what is to be logged of it, and is not shown
}

// Unwrap is the cause, of a refusal that was made of a failure: to be logged, never shown.
func (e *Error) Unwrap() error { return e.cause }

func (e *Error) Error() string {
	if len(e.Faults) == 0 {
		return e.Message
	}
	return e.Message + ": " + e.Faults.String()
}

// refuse makes an Error.
func refuse(code Code, reason, message string) *Error {
	return &Error{Code: code, Reason: reason, Message: message}
}

// unavailable makes an Error of the moment.
func unavailable(reason, message string) *Error {
	return &Error{Code: CodeUnavailable, Reason: reason, Message: message, RetryAfter: 1}
}

// Refuse makes an Error for the packages above store.
func Refuse(code Code, reason, message string) *Error { return refuse(code, reason, message) }

// AsError finds the Error in err's chain. A connection to the database that was lost, or does not answer, is ErrUnavailable, and so is
// a database whose disk is full.
func AsError(err error) (*Error, bool) {
	var e *Error
	if errors.As(err, &e) {
		return e, true
	}
	if pg := pgError(err); err != nil && (lostOf(err, pg) || full(err, pg)) {
		away := *ErrUnavailable
		away.cause = err
		return &away, true
	}
	return nil, false
}

// ReadTime is how long a caller's reading may take.
const ReadTime = 10 * time.Second

// WithDeadline ends ctx after a while, with ErrTooSlow as its cause.
func WithDeadline(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, within, ErrTooSlow)
}

// Cause is ErrTooSlow for whatever went wrong in a context that has ended by its WithDeadline, and err itself otherwise: drivers have
// many words for it.
func Cause(ctx context.Context, err error) error {
	var refusal *Error
	if err != nil && !errors.As(err, &refusal) && errors.Is(context.Cause(ctx), ErrTooSlow) {
		return ErrTooSlow
	}
	return err
}

// Is matches errors of the same code and reason, so that errors.Is works with the values below.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Reason == e.Reason
}

// Refusals that callers tell apart by name.
var (
	ErrUnauthenticated = refuse(CodeUnauthenticated, "unauthenticated", "a valid credential is required")
	ErrForbidden       = refuse(CodeForbidden, "forbidden", "this credential may not do that")
	ErrSchemaHidden    = refuse(CodeForbidden, "forbidden", "this credential may not see the schema: PARLEY_INTROSPECTION says who may")
	ErrOverloaded      = unavailable("overloaded", "the server has more to write than it can take: try again shortly")
	ErrUnavailable     = unavailable("unavailable", "the service is unavailable for the moment: try again shortly")
	ErrTooSlow         = unavailable("too_slow", "the answer took too long: ask for less, or try again shortly")
	ErrShuttingDown    = unavailable("shutting_down", "the server is shutting down: send this again")
	ErrAgentNotFound   = refuse(CodeNotFound, "agent_not_found", "there is no such agent")
	ErrSessionNotFound = refuse(CodeNotFound, "session_not_found", "this agent has no such session")
	ErrSessionExpired  = refuse(CodeSessionExpired, "session_expired", "the session has expired: omit session_id and a new one begins")
	ErrChannelMismatch = refuse(CodeConflict, "channel_mismatch", "the session was begun on another channel: use the same one in every turn")
	ErrSessionBusy     = refuse(CodeConflict, "session_busy", "another turn of this session is still running")
	ErrCursorExpired   = refuse(CodeCursorExpired, "cursor_expired", "the cursor is older than what is kept: begin again from feedCursor")
)

// Fault is one thing wrong with an input: the ValidationError of the specification, worded as Pydantic v2 words it.
type Fault struct {
	Loc   []any          `json:"loc"` // where: names and list indexes, from the outside in
	Msg   string         `json:"msg"`
	Type  string         `json:"type"`
	Input any            `json:"input,omitempty"` // what was given: a transport adds it, which alone has it as it was sent
	Ctx   map[string]any `json:"ctx,omitempty"`
}

// Faults are all the faults of one input.
type Faults []Fault

// told is how many faults a sentence tells of.
const told = 10

func (f Faults) String() string {
	var b strings.Builder
	for i, fault := range f {
		if i == told {
			fmt.Fprintf(&b, "; and %d more", len(f)-told)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		for j, l := range fault.Loc {
			if j > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, l)
		}
		b.WriteString(": " + fault.Msg)
	}
	return b.String()
}

// Under is f with every Loc placed below prefix.
func (f Faults) Under(prefix ...any) Faults {
	out := make(Faults, len(f))
	for i, fault := range f {
		fault.Loc = append(append(make([]any, 0, len(prefix)+len(fault.Loc)), prefix...), fault.Loc...)
		out[i] = fault
	}
	return out
}

// Err is nil for no faults, and the Error that carries them otherwise: the first ones, and then one that says how many more.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	return &Error{Code: CodeInvalid, Reason: "validation_error", Message: "the input is not valid", Faults: f.bounded()}
}

// Bounds of what one answer tells of an input: it must not be many times as long as the request.
const (
	maxFaults     = 100
	maxFaultBytes = 256 << 10 // of all of them
	maxFaultText  = 1024      // of each place, sentence and input, which may repeat what was given
)

// bounded are the faults that an answer tells.
func (f Faults) bounded() Faults {
	out, size := make(Faults, 0, min(len(f), maxFaults+1)), 0
	for i, fault := range f {
		fault = fault.short()
		if size += fault.size(); i == maxFaults || size > maxFaultBytes {
			within := fault.Loc[:min(1, len(fault.Loc))]
			return append(out, Fault{Loc: within, Type: "too_many_faults", Msg: fmt.Sprintf("There are at least %d more faults", len(f)-i)})
		}
		out = append(out, fault)
	}
	return out
}

// short is the fault with what is too long cut, or, of its input, left out.
func (f Fault) short() Fault {
	f.Msg = shortText(f.Msg)
	loc := make([]any, len(f.Loc))
	for i, l := range f.Loc {
		loc[i] = shortAny(l)
	}
	f.Loc = loc
	if f.Ctx != nil {
		ctx := make(map[string]any, len(f.Ctx))
		for name, value := range f.Ctx {
			ctx[name] = shortAny(value)
		}
		f.Ctx = ctx
	}
	if raw, ok := f.Input.(json.RawMessage); ok && len(raw) > maxFaultText {
		f.Input = nil
	}
	return f
}

// size is about what the fault takes in an answer.
func (f Fault) size() int {
	n := 100 + len(f.Msg)
	for _, l := range f.Loc {
		n += 4 + len(fmt.Sprint(l))
	}
	for _, value := range f.Ctx {
		n += len(fmt.Sprint(value))
	}
	if raw, ok := f.Input.(json.RawMessage); ok {
		n += len(raw)
	}
	return n
}

func shortAny(v any) any {
	if s, ok := v.(string); ok {
		return shortText(s)
	}
	return v
}

func shortText(s string) string {
	if len(s) <= maxFaultText {
		return s
	}
	return strings.ToValidUTF8(s[:maxFaultText], "") + "…"
}
