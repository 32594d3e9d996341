package transport

import (
	"context"
	"sync/atomic"

	"github.com/99designs/gqlgen/graphql"
	"github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

// operation is one subscribe message being served.
type operation struct {
	id     string
	cancel context.CancelFunc
	gone   atomic.Bool // its client has completed it, and may use the id again: nothing of it is to be sent any more
}

func (f *frame) completed() bool { return f.op != nil && f.op.gone.Load() }

// subscribe starts an operation, PROTOCOL.md section "Subscribe".
func (s *socket) subscribe(id string, params *graphql.RawParams) {
	s.mu.Lock()
	viewer, limit := s.viewer, s.limits.operations
	duplicate := s.operations[id] != nil
	// An operation that its client completed may take a while to end. Those count too, but not so that a client that
	// replaces all of its operations is refused.
	full := len(s.operations) >= limit || s.running >= 2*limit
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
		_ = s.out.send(s.ctx, textFrame(nil, errorMessage(id, gqlerror.List{
			refusal(codeRateLimited, "this socket runs as many operations as it may: complete one first"),
		})))
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
	ctx, ending := withEnding(graphql.StartOperationTrace(ctx))
	defer func() {
		if v := recover(); v != nil {
			last = errorMessage(op.id, presentPanic(ctx, s.exec, v))
		}
	}()
	if s.t.Admit != nil {
		if err := s.t.Admit(ctx); err != nil {
			return errorMessage(op.id, present(ctx, s.exec, err))
		}
	}
	opCtx, errs := s.exec.CreateOperationContext(ctx, params)
	ctx = graphql.WithOperationContext(ctx, opCtx)
	if len(errs) > 0 {
		return errorMessage(op.id, s.exec.DispatchError(ctx, errs).Errors)
	}
	streams := opCtx.Operation.Operation == ast.Subscription
	if !streams {
		brief()
	}
	head := messageHead(op.id, "next")
	responses, ctx := s.exec.DispatchOperation(ctx, opCtx)
	for {
		resp := responses(ctx)
		if resp == nil {
			break
		}
		if len(resp.Data) == 0 && len(resp.Errors) > 0 { // a request error: no execution result
			return errorMessage(op.id, resp.Errors)
		}
		body, err := encodeResponse(resp)
		if err != nil {
			return errorMessage(op.id, present(ctx, s.exec, err))
		}
		next := frame{op: op, opcode: websocket.TextMessage, head: head, body: body, tail: []byte{'}'}}
		if s.out.send(ctx, next) != nil {
			break
		}
		// A query has one result, or several with @defer. An interceptor that answers in the executor's place can forget
		// to end its stream; that must not become an endless one.
		if !streams && (resp.HasNext == nil || !*resp.HasNext) {
			return completeMessage(op.id)
		}
	}
	if err := ending.get(); err != nil {
		return errorMessage(op.id, present(ctx, s.exec, err))
	}
	if ctx.Err() != nil { // neither its end nor, for then this is not sent, its client's wish
		return errorMessage(op.id, gqlerror.List{refusal(codeUnavailable, "the operation was cut off: subscribe again")})
	}
	return completeMessage(op.id)
}
