package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

// Codes for errors that a transport itself raises; the rest come from the schema's error presenter.
const (
	codeBadUserInput = "BAD_USER_INPUT"
	codeForbidden    = "FORBIDDEN"
	codeInternal     = "INTERNAL"
	codeRateLimited  = "RATE_LIMITED"
	codeUnavailable  = "UNAVAILABLE"
)

// internalError is what is left to say where even an error could not be encoded.
const internalError = `{"message":"internal error","extensions":{"code":"` + codeInternal + `"}}`

// fault says what is wrong with a request, in the form of the ValidationErrors that the schema's own errors carry, and in the
// words of Pydantic v2.
type fault struct {
	Loc  []any          `json:"loc"` // a parameter's name, `body`, `method`, or `header` and its name
	Msg  string         `json:"msg"`
	Type string         `json:"type"`
	Ctx  map[string]any `json:"ctx,omitempty"`
}

// valueError is a fault in a sentence of ours.
func valueError(sentence string, loc ...any) fault {
	return fault{loc, "Value error, " + sentence, "value_error", map[string]any{"error": sentence}}
}

// refusal is an error of the transport's own, with the faults of the input if it is for those.
func refusal(code, message string, faults ...fault) *gqlerror.Error {
	extensions := map[string]any{"code": code}
	if len(faults) > 0 {
		extensions["validation"] = faults
	}
	return &gqlerror.Error{Message: message, Extensions: extensions}
}

// encodeResponse writes a response in the form of the GraphQL specification, section "Response Format". graphql.Response
// would marshal itself with `"data": null` in a request error, which must have no data at all, and would check and copy
// data that the executor has only just made. The result shares nothing with resp, whose Data gqlgen uses again for the
// next response.
func encodeResponse(resp *graphql.Response) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(len(resp.Data) + 64)
	b.WriteByte('{')
	if len(resp.Errors) > 0 {
		if err := encodeMember(&b, "errors", resp.Errors); err != nil {
			return nil, err
		}
	}
	switch {
	case len(resp.Data) > 0:
		separate(&b)
		b.WriteString(`"data":`)
		b.Write(resp.Data)
	case len(resp.Errors) == 0: // a response has one of the two
		b.WriteString(`"data":null`)
	}
	// The three of incremental delivery (@defer).
	if resp.Label != "" {
		if err := encodeMember(&b, "label", resp.Label); err != nil {
			return nil, err
		}
	}
	if len(resp.Path) > 0 {
		if err := encodeMember(&b, "path", resp.Path); err != nil {
			return nil, err
		}
	}
	if resp.HasNext != nil {
		if err := encodeMember(&b, "hasNext", *resp.HasNext); err != nil {
			return nil, err
		}
	}
	if len(resp.Extensions) > 0 {
		if err := encodeMember(&b, "extensions", resp.Extensions); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func separate(b *bytes.Buffer) {
	if b.Len() > 1 {
		b.WriteByte(',')
	}
}

func encodeMember(b *bytes.Buffer, name string, value any) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s of a response: %w", name, err)
	}
	separate(b)
	b.WriteString(`"` + name + `":`)
	b.Write(encoded)
	return nil
}

// present words an error as the schema's error presenter does. ctx carries the operation's context.
func present(ctx context.Context, exec graphql.GraphExecutor, err error) gqlerror.List {
	return exec.DispatchError(ctx, gqlerror.List{gqlerror.WrapIfUnwrapped(err)}).Errors
}

// presentPanic hands a recovered panic to the schema's recover function, which logs it, and words what the client sees of
// it. If even that panics there is a fixed sentence left.
func presentPanic(ctx context.Context, exec graphql.GraphExecutor, value any) (errs gqlerror.List) {
	errs = gqlerror.List{refusal(codeInternal, "internal error")}
	defer func() { _ = recover() }()
	presenter, ok := exec.(interface {
		PresentRecoveredError(ctx context.Context, value any) error
	})
	if !ok {
		return errs
	}
	var presented *gqlerror.Error
	if errors.As(presenter.PresentRecoveredError(ctx, value), &presented) && presented != nil {
		return gqlerror.List{presented}
	}
	return errs
}
