package graph

import (
	"context"
	"sync/atomic"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

// charger is the gqlgen extension that counts each `chat` field of a mutation like a request, as each is a turn that somebody pays
// for. The first one is counted already, with its request; those beyond the rate limit get its error, and the others run.
type charger struct {
	admit func(ctx context.Context) error
}

var _ interface {
	graphql.HandlerExtension
	graphql.OperationContextMutator
	graphql.RootFieldInterceptor
} = charger{}

func (charger) ExtensionName() string { return "Charges" }

func (charger) Validate(graphql.ExecutableSchema) error { return nil }

func (c charger) MutateOperationContext(_ context.Context, op *graphql.OperationContext) *gqlerror.Error {
	if op.Operation.Operation == ast.Mutation {
		op.Stats.SetExtension(c.ExtensionName(), new(atomic.Int64))
	}
	return nil
}

func (c charger) InterceptRootField(ctx context.Context, next graphql.RootResolver) graphql.Marshaler {
	chats, ok := graphql.GetOperationContext(ctx).Stats.GetExtension(c.ExtensionName()).(*atomic.Int64)
	field := graphql.GetRootFieldContext(ctx).Field
	if !ok || field.Name != "chat" || chats.Add(1) == 1 {
		return next(ctx)
	}
	if err := c.admit(ctx); err != nil {
		graphql.AddError(ctx, gqlerror.WrapPath(ast.Path{ast.PathName(field.Alias)}, err))
		return graphql.Null
	}
	return next(ctx)
}
