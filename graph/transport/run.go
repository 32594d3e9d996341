package transport

import (
	"context"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

// sink is where the results of one operation go.
type sink interface {
	// next takes a result, and waits while there is no room for it. Its error says that the operation is to end.
	next(ctx context.Context, body []byte, at Place) error
	// offer is next for those who may not wait: it is false if there is no room.
	offer(body []byte, at Place) bool
	// began is told where a stream begins.
	began(at Place)
	// passed is told how far a stream has got beyond the last result: its client may resume there once it has that. It does not
	// wait.
	passed(at Place)
	// slow ends the connection of a client that is too slow for what it gets.
	slow()
}

// runner runs operations, whatever the protocol.
type runner struct {
	exec   graphql.GraphExecutor
	groups *Groups // nil: every operation runs by itself
}

// run runs an operation that the executor has taken, sends its results, and returns the errors that it ends with: none if it
// completed. c may ask for another beginning than the operation's argument.
func (r runner) run(ctx context.Context, op *graphql.OperationContext, c *course, to sink) (errs gqlerror.List) {
	defer func() {
		if v := recover(); v != nil {
			errs = presentPanic(ctx, r.exec, v)
		}
	}()
	if r.groups != nil && isStream(op) {
		var shared Shared
		var ok bool
		aside(func() { shared, ok = r.groups.Of(ctx, op) })
		if ok {
			return r.together(ctx, op, c, shared, to)
		}
	}
	errs, _ = r.alone(ctx, op, c, to)
	return errs
}

// alone runs an operation for one client. If c bounds it, it says which place it has reached, unless it ended before.
func (r runner) alone(ctx context.Context, op *graphql.OperationContext, c *course, to sink) (gqlerror.List, *Place) {
	ctx = withCourse(ctx, c)
	c.began, c.passed = to.began, to.passed
	responses, ctx := r.exec.DispatchOperation(ctx, op)
	for {
		resp := responses(ctx)
		if resp == nil {
			break
		}
		at := c.take()
		if len(resp.Data) == 0 && len(resp.Errors) > 0 { // a request error: no execution result
			return resp.Errors, nil
		}
		body, err := encodeResponse(resp)
		if err != nil {
			return present(ctx, r.exec, err), nil
		}
		if to.next(ctx, body, at) != nil {
			return cutOff(), nil
		}
		c.sent()
		if r.groups != nil && isStream(op) {
			r.groups.Made.Add(1)
			r.groups.Given.Add(1)
		}
		// A query has one result, or several with @defer. An interceptor that answers in the executor's place can forget
		// to end its stream; that must not become an endless one.
		if !isStream(op) && (resp.HasNext == nil || !*resp.HasNext) {
			return nil, nil
		}
	}
	err, reached := c.end()
	if err != nil {
		return present(ctx, r.exec, err), nil
	}
	if ctx.Err() != nil { // neither its end nor, for then this is not sent, its client's wish
		return cutOff(), nil
	}
	return nil, reached
}

// aside runs f on a stack of its own, which goes when f returns: executions need a deep one, and who waits for days should
// not keep it.
func aside(f func()) {
	var panicked any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		f()
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
}
