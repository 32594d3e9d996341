package graph

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/errcode"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"parley/store"
)

// codeInternal is what a caller sees of whatever is not meant for callers.
const codeInternal = "INTERNAL"

// codeTooComplex is the code of a document that is refused for its size, before it runs.
const codeTooComplex store.Code = "TOO_COMPLEX"

// What gqlgen says of a persisted query that it has no document of: a code that is not of the closed set, and the message by which
// all clients (Apollo's, urql) know that they have to send the document.
const (
	codePersistedNotFound   = "PERSISTED_QUERY_NOT_FOUND"
	reasonPersistedNotFound = "persisted_query_not_found"
)

// introspectionDisabled is how gqlgen refuses introspection: as a plain error.
const introspectionDisabled = "introspection disabled"

// presenter makes of an error what the client gets: a code of the closed set (contract, section 6), and a message meant for
// people. The cause of anything else is logged, and not shown.
func presenter(log *slog.Logger) graphql.ErrorPresenterFunc {
	return func(ctx context.Context, err error) *gqlerror.Error {
		out := &gqlerror.Error{Path: graphql.GetPath(ctx)}
		var gql *gqlerror.Error // gqlgen wraps whatever a resolver returns into one
		if errors.As(err, &gql) {
			out.Path, out.Locations = gql.Path, gql.Locations
		}
		if gql != nil && gql.Message == introspectionDisabled {
			if _, err = store.ViewerOf(ctx); err == nil {
				err = store.ErrSchemaHidden
			}
		}
		refusal, refused := store.AsError(store.Cause(ctx, err))
		switch {
		case refused:
			if cause := errors.Unwrap(refusal); cause != nil {
				log.DebugContext(ctx, "a GraphQL request was refused", "path", out.Path.String(), "error", cause)
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
			} else if refusal.Code == store.CodeInvalid { // of the operation as a whole, such as limit_reached
				out.Extensions["validation"] = store.Faults{{Loc: []any{}, Msg: refusal.Message, Type: refusal.Reason}}
			}
		case gql != nil && gql.Err == nil: // of gqlparser: the document is at fault
			out.Message = short(gql.Message)
			out.Extensions = map[string]any{"code": string(store.CodeInvalid)}
			switch {
			case gql.Extensions["code"] == codePersistedNotFound:
				out.Extensions["reason"] = reasonPersistedNotFound
				out.Extensions["validation"] = store.Faults{{Loc: []any{"extensions", "persistedQuery"}, Msg: gql.Message, Type: reasonPersistedNotFound}}
			case strings.HasPrefix(gql.Message, "exceeded token limit"):
				out.Extensions["code"] = string(codeTooComplex)
			default:
				out.Extensions["validation"] = documentFault(gql)
			}
		default:
			if ctx.Err() == nil {
				log.ErrorContext(ctx, "a GraphQL request failed", "path", out.Path.String(), "error", err)
			}
			out.Message = "something went wrong on our side"
			out.Extensions = map[string]any{"code": codeInternal}
			if id := store.RequestID(ctx); id != "" {
				out.Extensions["requestId"] = id // the log has it beside the cause
			}
		}
		return out
	}
}

// documentFault is the ValidationError of a document that does not parse, or that the schema does not answer.
func documentFault(err *gqlerror.Error) store.Faults {
	f := store.Fault{Loc: []any{"query"}, Msg: short(err.Message), Type: "graphql_validation"}
	if err.Extensions["code"] == errcode.ParseFailed {
		f.Type = "graphql_syntax"
	}
	if len(err.Locations) > 0 {
		f.Loc = append(f.Loc, err.Locations[0].Line, err.Locations[0].Column)
	}
	return store.Faults{f}
}

// recoverer turns a panic into an internal error.
func recoverer(log *slog.Logger) graphql.RecoverFunc {
	return func(ctx context.Context, p any) error {
		log.ErrorContext(ctx, "a resolver panicked", "panic", p, "stack", string(debug.Stack()))
		return fmt.Errorf("panic: %v", p)
	}
}

// underInput places the faults of a chat below its argument, and spells its fields as the schema does. What is below a field, such
// as a name in the metadata, is the caller's own.
func underInput(err error) error {
	refusal, ok := store.AsError(err)
	if !ok || refusal.Faults == nil {
		return err
	}
	placed := *refusal
	placed.Faults = refusal.Faults.Under("input")
	for _, f := range placed.Faults {
		if len(f.Loc) > 1 {
			f.Loc[1] = camel(fmt.Sprint(f.Loc[1]))
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
