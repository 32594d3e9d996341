package store

import "context"

type viewerKey struct{}

type caller struct {
	viewer *Viewer
	err    error
}

// WithViewer puts who is calling into the context, or why that could not be told.
func WithViewer(ctx context.Context, v *Viewer, err error) context.Context {
	return context.WithValue(ctx, viewerKey{}, caller{v, err})
}

// ViewerOf is who is calling. Without a valid credential it is an error, ErrUnauthenticated.
func ViewerOf(ctx context.Context) (*Viewer, error) {
	c, _ := ctx.Value(viewerKey{}).(caller)
	switch {
	case c.err != nil:
		return nil, c.err
	case c.viewer == nil:
		return nil, ErrUnauthenticated
	}
	return c.viewer, nil
}

// Reader is the viewer, who must be allowed to read.
func Reader(ctx context.Context) (*Viewer, error) { return allowed(ctx, ScopeRead) }

// Operator is the viewer, who must be allowed to operate.
func Operator(ctx context.Context) (*Viewer, error) { return allowed(ctx, ScopeOperate) }

// Admin is the viewer, who must be allowed everything.
func Admin(ctx context.Context) (*Viewer, error) { return allowed(ctx, ScopeAdmin) }

func allowed(ctx context.Context, scope Scope) (*Viewer, error) {
	v, err := ViewerOf(ctx)
	if err != nil {
		return nil, err
	}
	return v, v.Require(scope)
}

type requestKey struct{}

// NewRequestID makes the id of a request.
func NewRequestID() string { return NewID("req") }

// WithRequestID puts the id of the request into the context: what is logged about it, and an internal error, carry it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestKey{}, id)
}

// RequestID is the id of the request that ctx belongs to; empty where there is none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}
