package transport

import (
	"context"
	"sync/atomic"

	"github.com/99designs/gqlgen/graphql"
	"github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

// operation is one subscribe message being served.
type operation struct {
	id     string
	cancel context.CancelFunc
	gone   atomic.Bool // its client has completed it, and may use the id again: nothing of it is to be sent any more
	stream bool        // it is a subscription; guarded by the socket's mu

	// Guarded by the writer's mu.
	cursor string // where its client would resume, after what the writer has sent
	queued int    // messages of it that are not sent
	then   string // what cursor is to be once they are
}

func (f *frame) completed() bool { return f.op != nil && f.op.gone.Load() }

// subscribe starts an operation, PROTOCOL.md section "Subscribe".
func (s *socket) subscribe(id string, params *graphql.RawParams) {
	s.mu.Lock()
	viewer, limit := s.viewer, s.limits.operations
	duplicate := s.operations[id] != nil
	// Half of them may be subscriptions, as is seen once they are parsed. An operation that its
	// client completed may take a while to end. Those count too, but not so that a client that
	// replaces all of its subscriptions is refused.
	full := len(s.operations) >= 2*limit || s.running >= 3*limit
	op := &operation{id: id}
	if viewer != nil && !duplicate && !full {
		s.operations[id] = op
		s.running++
	}
	s.mu.Unlock()

	switch {
	case viewer == nil:
		s.close(closeUnauthorized, reasonUnauthorized)
	case duplicate:
		s.close(closeDuplicate, "Subscriber for "+id+" already exists")
	case full:
		_ = s.out.send(s.ctx, textFrame(nil, errorMessage(id, gqlerror.List{tooManyOperations()})))
	default:
		ctx, cancel := context.WithCancel(viewer)
		op.cancel = cancel
		s.work.Go(func() {
			defer s.stopped(op)
			s.run(ctx, op, params)
		})
	}
}

// run executes an operation, and sends its last message.
func (s *socket) run(ctx context.Context, op *operation, params *graphql.RawParams) {
	done := func() {}
	last := s.execute(ctx, op, params, func() { done = s.t.begin() })
	defer func() { done() }()
	// The id is free before the client can learn that the operation has ended.
	s.forget(op)
	_ = s.out.send(s.ctx, textFrame(op, last))
}

// complete ends an operation for its client, PROTOCOL.md section "Complete". Unknown ids are of operations that ended
// while the message was under way.
func (s *socket) complete(id string) {
	s.mu.Lock()
	op := s.operations[id]
	delete(s.operations, id)
	s.mu.Unlock()
	if op != nil {
		op.gone.Store(true)
		op.cancel()
	}
}

func (s *socket) forget(op *operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.operations[op.id] == op {
		delete(s.operations, op.id)
	}
}

func (s *socket) stopped(op *operation) {
	op.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
}

// execute runs an operation to its end, sends its results, and returns its last message: `error` when it was refused
// before it began (sections "Error" and "Next"), panicked, or was ended with an error; `complete` else. It calls brief when
// the operation is none that streams.
func (s *socket) execute(ctx context.Context, op *operation, params *graphql.RawParams, brief func()) (last []byte) {
	ctx = graphql.StartOperationTrace(ctx)
	defer func() {
		if v := recover(); v != nil {
			last = errorMessage(op.id, presentPanic(ctx, s.exec, v))
		}
	}()
	var opCtx *graphql.OperationContext
	var errs gqlerror.List
	aside(func() { opCtx, errs = s.accept(ctx, params) })
	if len(errs) > 0 {
		return errorMessage(op.id, errs)
	}
	if !isStream(opCtx) {
		brief()
	} else {
		if !s.stream(op) {
			return errorMessage(op.id, gqlerror.List{tooManyOperations()})
		}
		leave, refused := s.keep(ctx, opCtx)
		if refused != nil {
			return errorMessage(op.id, gqlerror.List{refused})
		}
		defer leave()
	}
	to := &socketSink{s, op, messageHead(op.id, "next")}
	if errs := (runner{s.exec, s.t.Groups}).run(graphql.WithOperationContext(ctx, opCtx), opCtx, &course{}, to); len(errs) > 0 {
		return errorMessage(op.id, errs)
	}
	return completeMessage(op.id)
}

// stream notes that an operation is a subscription. It is false if as many run as may: so they
// never take the place of queries and mutations.
func (s *socket) stream(op *operation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	streams := 0
	for _, other := range s.operations {
		if other.stream {
			streams++
		}
	}
	op.stream = streams < s.limits.operations
	return op.stream
}

func tooManyOperations() *gqlerror.Error {
	return refusal(codeRateLimited, "this socket runs as many operations as it may: complete one first")
}

// keep charges a subscription for what it keeps, until leave is called.
func (s *socket) keep(ctx context.Context, op *graphql.OperationContext) (leave func(), refused *gqlerror.Error) {
	op.RawQuery = op.Operation.Position.Src.Input // one text for all who have asked with an equal one
	return s.t.Quota.subscribe(ctx, &s.holds, op)
}

// accept has the executor take an operation.
func (s *socket) accept(ctx context.Context, params *graphql.RawParams) (*graphql.OperationContext, gqlerror.List) {
	if s.t.Admit != nil {
		if err := s.t.Admit(ctx); err != nil {
			return nil, orInternal(present(ctx, s.exec, err))
		}
	}
	opCtx, errs := s.exec.CreateOperationContext(ctx, params)
	if len(errs) > 0 {
		errs = orInternal(s.exec.DispatchError(graphql.WithOperationContext(ctx, opCtx), errs).Errors)
	}
	return opCtx, errs
}

// socketSink sends an operation's results as `next` messages.
type socketSink struct {
	s    *socket
	op   *operation
	head []byte
}

func (k *socketSink) frame(body []byte, at Place) frame {
	return frame{op: k.op, opcode: websocket.TextMessage, head: k.head, body: body, tail: nextTail, cursor: at.Cursor}
}

func (k *socketSink) next(ctx context.Context, body []byte, at Place) error {
	return k.s.out.send(ctx, k.frame(body, at))
}

func (k *socketSink) offer(body []byte, at Place) bool { return k.s.out.offer(k.frame(body, at)) }

func (k *socketSink) began(at Place) { k.s.out.begin(k.op, at.Cursor) }

func (k *socketSink) passed(at Place) { k.s.out.pass(k.op, at.Cursor) }

func (k *socketSink) slow() { k.s.out.slow() }

var nextTail = []byte{'}'}
