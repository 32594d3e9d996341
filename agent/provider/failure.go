package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	brief  string
}

func (f *failure) Error() string   { return f.text }
func (f *failure) Unwrap() []error { return f.causes }

// Brief is the failure without what the model's server said of it, which may repeat what it was
// sent.
func (f *failure) Brief() string { return f.brief }

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
	text, brief := kind.Error()+": "+cause.Error(), kind.Error()
	var network net.Error
	switch {
	case status != nil:
		brief += ": " + status.brief()
	case errors.Is(cause, ErrDeclined):
		brief += ": " + ErrDeclined.Error()
	case errors.As(cause, &network), errors.Is(cause, errUnreachable):
		brief += ": " + cause.Error()
	}
	if c.Key != "" && strings.Contains(text, c.Key) {
		text, brief = strings.ReplaceAll(text, c.Key, "[key]"), strings.ReplaceAll(brief, c.Key, "[key]")
		cause = errors.New("a cause that holds the key")
	}
	return &failure{causes: append(causes, cause), text: short(text), brief: short(brief)}
}

func short(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD") }
