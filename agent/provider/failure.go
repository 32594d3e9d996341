package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"parley/agent"
)

const maxText = 4096 // bytes of an error: JSON's errors repeat what they cannot use, at any length

// ErrDeclined is the cause when it is the content that a model, or a filter before it, would not have.
var ErrDeclined = errors.New("the content was declined")

// failure is why there is no reply: agent's words for it, and the causes.
type failure struct {
	causes []error
	text   string
}

func (f *failure) Error() string   { return f.text }
func (f *failure) Unwrap() []error { return f.causes }

// Failed says which of agent's errors a cause is.
func (c *Call) Failed(ctx context.Context, cause error) error {
	causes := []error{agent.ErrModelFailed}
	var status *statusError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(cause, context.DeadlineExceeded):
		causes = []error{agent.ErrModelTimeout}
	case ctx.Err() != nil: // some of the ways a cancelled request ends do not say so
		cause = fmt.Errorf("%w: %w", ctx.Err(), cause)
	case errors.As(cause, &status):
		if status.refused() {
			causes = append(causes, agent.ErrModelRefused)
		}
		if status.wait > 0 {
			causes = append(causes, agent.RetryAfter(status.wait))
		}
	case errors.Is(cause, ErrDeclined):
		causes = append(causes, agent.ErrModelRefused)
	}
	kind := causes[0]
	if errors.Is(errors.Join(causes...), agent.ErrModelRefused) {
		kind = agent.ErrModelRefused
	}
	text := kind.Error() + ": " + cause.Error()
	if c.Key != "" && strings.Contains(text, c.Key) {
		text = strings.ReplaceAll(text, c.Key, "[key]")
		cause = errors.New("a cause that holds the key")
	}
	return &failure{causes: append(causes, cause), text: strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD")}
}
