package graph

import (
	"context"
	"errors"
	"io"

	"parley/agent"
	"parley/graph/transport"
	"parley/store"
	"parley/store/hook"
)

// followEvents is the subscription `events`. Its channel has no buffer: what the client has not been sent stays in the feed.
func (r *Resolver) followEvents(ctx context.Context, business string, filter *store.EventFilter, after *string) (<-chan *store.EventEdge, error) {
	var from *int64
	if after = transport.After(ctx, after); after != nil {
		seq, err := r.Store.ResumeAt(ctx, business, *after)
		if err != nil {
			return nil, err
		}
		from = &seq
	}
	sub, err := r.Hub.Subscribe(ctx, business, from, filter)
	if err != nil {
		return nil, err
	}
	until, bounded := transport.Until(ctx)
	if bounded {
		sub.EndAt(until)
	}
	if from != nil && until == 0 { // a client's beginning, and not what its transport reads on by
		r.resumed.Add(1)
	}
	place := placeIn(business)
	transport.Began(ctx, place(sub.At()))
	next := func(ctx context.Context) ([]*store.Event, error) {
		events, err := sub.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			transport.Reached(ctx, place(sub.At()))
		case err == nil && len(events) == 0:
			transport.Passed(ctx, place(sub.At()))
		}
		return events, err
	}
	return follow(ctx, sub.Close, next, func(e *store.Event) *store.EventEdge {
		edge := e.FeedEdge()
		transport.Mark(ctx, transport.Place{Cursor: edge.Cursor, Seq: e.Seq})
		return edge
	}), nil
}

// placeIn is the place of a number in a business's feed.
func placeIn(business string) func(seq int64) transport.Place {
	return func(seq int64) transport.Place {
		return transport.Place{Cursor: store.Cursor{BusinessID: business, Seq: seq}.String(), Seq: seq}
	}
}

// followDeliveries is the subscription `deliveries`.
func (r *Resolver) followDeliveries(ctx context.Context, business string, endpoint *string) (<-chan *hook.Delivery, error) {
	if endpoint != nil {
		if _, err := r.Hooks.Endpoint(ctx, business, *endpoint); err != nil {
			return nil, err
		}
	}
	sub, err := r.Hub.SubscribeDeliveries(ctx, business, endpoint)
	if err != nil {
		return nil, err
	}
	return follow(ctx, sub.Close, sub.Next, func(d *hook.Delivery) *hook.Delivery { return d }), nil
}

// followChat is the subscription `chat`: the reply as it comes, then whole. One that is begun again joins the running turn.
func (r *Resolver) followChat(ctx context.Context, v *store.Viewer, in agent.ChatInput) (<-chan *agent.ChatDelta, error) {
	if err := v.RequireChat(); err != nil {
		return nil, err
	}
	if in.IdempotencyKey == nil {
		return nil, store.Faults{store.Missing}.Under("input", "idempotencyKey").Err()
	}
	out := make(chan *agent.ChatDelta)
	say := func(d *agent.ChatDelta) {
		select {
		case out <- d:
		case <-ctx.Done():
		}
	}
	heard := false
	in.Text = func(text string) {
		heard = true
		say(&agent.ChatDelta{Text: &text})
	}
	go func() {
		defer close(out)
		reply, err := r.Runner.Join(ctx, v, in)
		switch {
		case err == nil:
			if !heard { // of another subscription's turn
				in.Text(reply.Reply)
			}
			say(&agent.ChatDelta{Reply: reply})
		case ctx.Err() == nil:
			transport.EndWithError(ctx, underInput(err))
		}
	}()
	return out, nil
}

// follow sends what next returns, until ctx ends or next fails; then the subscription ends with that error, never in silence,
// unless the error is io.EOF.
func follow[T, R any](ctx context.Context, done func(), next func(context.Context) ([]T, error), show func(T) R) <-chan R {
	out := make(chan R)
	go func() {
		defer close(out)
		defer done()
		for {
			rows, err := next(ctx)
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, io.EOF) {
					transport.EndWithError(ctx, err)
				}
				return
			}
			for _, row := range rows {
				select {
				case out <- show(row):
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}
