package provider

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"parley/agent"
	"parley/store"
)

// Config is what a model is made with.
type Config struct {
	Client         *http.Client // guarded: for addresses that a business set
	OperatorClient *http.Client // for BaseURL
	BaseURL        string       // the operator's
	APIKey         string       // the operator's, for BaseURL alone; empty: none
	DefaultModel   string       // for an agent that names none
}

// Or is c with what it leaves empty.
func (c Config) Or(baseURL, model string) Config {
	c.BaseURL, c.DefaultModel = cmp.Or(c.BaseURL, baseURL), cmp.Or(c.DefaultModel, model)
	return c
}

const maxTimeout = 24 * 60 * 60 // seconds: a bound for the arithmetic alone, the turn's deadline is far below

// Call is one request to a model's server, and what came of it.
type Call struct {
	BaseURL string
	Key     string // empty: none
	Client  *http.Client
	Model   string // that is asked for
	Whole   []byte // the answer, if it came as one document and not as the stream that was asked for

	request *agent.Request
}

// Call prepares a request. It decides which key may go where: the only place that does.
func (c *Config) Call(req *agent.Request) *Call {
	settings := req.Agent.Model
	call := &Call{BaseURL: c.BaseURL, Key: req.APIKey, Client: c.OperatorClient, Model: c.DefaultModel, request: req}
	switch {
	case settings.BaseURL != nil:
		call.BaseURL, call.Client = *settings.BaseURL, c.Client
	case call.Key == "":
		call.Key = c.APIKey
	}
	if settings.Name != nil && *settings.Name != "" {
		call.Model = *settings.Name
	}
	return call
}

// Deadline is ctx, ended by the agent's own limit too.
func Deadline(ctx context.Context, settings store.Model) (context.Context, context.CancelFunc) {
	if s := settings.TimeoutSeconds; s != nil {
		return context.WithTimeout(ctx, time.Duration(min(*s, maxTimeout))*time.Second)
	}
	return ctx, func() {}
}
