package graph

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"parley/store"
)

// codeInternal is what a caller sees of whatever is not meant for callers.
const codeInternal = "INTERNAL"

// codeTooComplex is the code of a document that is refused for its size, before it runs.
const codeTooComplex store.Code = "TOO_COMPLEX"

// presenter makes of an error what the client gets: a code of the closed set (contract, section 6), and a message meant for
// people. The cause of anything else is logged, and not shown.
func presenter(log *slog.Logger) graphql.ErrorPresenterFunc {
	return func(ctx context.Context, err error) *gqlerror.Error {
		out := &gqlerror.Error{Path: graphql.GetPath(ctx)}
		var gql *gqlerror.Error
		if errors.As(err, &gql) {
			out.Path, out.Locations = gql.Path, gql.Locations
		}
		refusal, refused := store.AsError(err)
		switch {
		case refused:
			if cause := errors.Unwrap(refusal); cause != nil {
				log.WarnContext(ctx, "a GraphQL request was refused", "path", out.Path.String(), "error", cause)
			}
			out.Message = refusal.Message
			out.Extensions = map[string]any{"code": string(refusal.Code)}
			if refusal.Reason != "" {
				out.Extensions["reason"] = refusal.Reason
			}
			if refusal.RetryAfter > 0 {
				out.Extensions["retryAfter"] = refusal.RetryAfter
			}
			if refusal.Faults != nil {
				out.Message = refusal.Error()
				out.Extensions["validation"] = refusal.Faults
			}
		case gql != nil: // of gqlgen and gqlparser: the document or its variables are at fault
			out.Message = gql.Message
			out.Extensions = map[string]any{"code": string(store.CodeInvalid)}
			if strings.Contains(gql.Message, "exceeded token limit") {
				out.Extensions["code"] = string(codeTooComplex)
			}
			if fault := asFault(gql); fault != nil {
				out.Extensions["validation"] = fault
			}
		default:
			if ctx.Err() == nil {
				log.ErrorContext(ctx, "a GraphQL request failed", "path", out.Path.String(), "error", err)
			}
			out.Message = "something went wrong on our side"
			out.Extensions = map[string]any{"code": codeInternal}
		}
		return out
	}
}

// asFault is the ValidationError of an argument that could not be read.
func asFault(err *gqlerror.Error) store.Faults {
	var loc []any
	for _, element := range err.Path {
		loc = append(loc, element)
	}
	if loc == nil {
		return nil
	}
	return store.Faults{{Loc: loc, Msg: "Value error, " + err.Message, Type: "value_error", Ctx: map[string]any{"error": err.Message}}}
}

// recoverer turns a panic into an internal error.
func recoverer(log *slog.Logger) graphql.RecoverFunc {
	return func(ctx context.Context, p any) error {
		log.ErrorContext(ctx, "a resolver panicked", "panic", p, "stack", string(debug.Stack()))
		return fmt.Errorf("panic: %v", p)
	}
}

// underInput places the faults of a chat below its argument, and spells their fields as the schema does.
func underInput(err error) error {
	refusal, ok := store.AsError(err)
	if !ok || refusal.Faults == nil {
		return err
	}
	placed := *refusal
	placed.Faults = refusal.Faults.Under("input")
	for _, f := range placed.Faults {
		for i, l := range f.Loc {
			if name, ok := l.(string); ok {
				f.Loc[i] = camel(name)
			}
		}
	}
	return &placed
}

// camel spells `session_id` as `sessionId`.
func camel(name string) string {
	parts := strings.Split(name, "_")
	for i, p := range parts[1:] {
		if p != "" {
			parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}
