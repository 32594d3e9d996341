package graph

import (
	"context"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"

	"parley/store"
)

// How long an operation may take. What it reads ends with it. A mutation with a chat takes as long as its turn, which has a deadline of
// its own, and a subscription as long as its client likes.
const mutationTime = 15 * time.Second

// deadline is the gqlgen extension that ends operations in time.
type deadline struct{}

var _ interface {
	graphql.HandlerExtension
	graphql.ResponseInterceptor
} = deadline{}

func (deadline) ExtensionName() string { return "Deadline" }

func (deadline) Validate(graphql.ExecutableSchema) error { return nil }

func (deadline) InterceptResponse(ctx context.Context, next graphql.ResponseHandler) *graphql.Response {
	within := timeOf(ctx)
	if within == 0 {
		return next(ctx)
	}
	ctx, cancel := store.WithDeadline(ctx, within)
	resp := next(ctx)
	if resp == nil || resp.HasNext == nil || !*resp.HasNext { // what is deferred goes on
		cancel()
	}
	return resp
}

// timeOf is how long the operation of ctx may take; 0: for as long as it likes, or it does not run.
func timeOf(ctx context.Context) time.Duration {
	if !graphql.HasOperationContext(ctx) {
		return 0
	}
	op := graphql.GetOperationContext(ctx)
	switch {
	case op.Operation == nil:
	case op.Operation.Operation == ast.Query:
		return store.ReadTime
	case op.Operation.Operation == ast.Mutation:
		for _, field := range graphql.CollectFields(op, op.Operation.SelectionSet, []string{"Mutation"}) {
			if field.Name == "chat" {
				return 0
			}
		}
		return mutationTime
	}
	return 0
}
