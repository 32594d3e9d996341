package anthropic

import (
	"context"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"parley/agent"
	"parley/agent/provider"
)

// Config is what a Model is made with. An empty BaseURL is Anthropic's own; an empty DefaultModel is claude-haiku-4-5.
type Config = provider.Config

const (
	defaultBaseURL   = "https://api.anthropic.com"
	defaultModel     = anthropic.ModelClaudeHaiku4_5 // small, and takes a temperature
	defaultMaxTokens = 4096                          // the API insists on a number: some 3,000 words, more than a chat reply has
	maxTemperature   = 1                             // beyond it the API refuses; an agent's setting goes up to 2
	prefix           = "anthropic/"                  // of the name that a reply gives its model
)

// Model is agent.Model on the Messages API. It is safe for concurrent use.
type Model struct {
	cfg Config
}

var _ agent.Model = (*Model)(nil)

// New makes a Model.
func New(cfg Config) *Model {
	return &Model{cfg: cfg.Or(defaultBaseURL, defaultModel)}
}

// Generate implements agent.Model.
func (m *Model) Generate(ctx context.Context, req agent.Request) (agent.Reply, error) {
	settings := req.Agent.Model
	ctx, cancel := provider.Deadline(ctx, settings)
	defer cancel()
	call := m.cfg.Call(&req)
	params := anthropic.MessageNewParams{Model: call.Model, MaxTokens: defaultMaxTokens, Messages: messages(req), Tools: tools(req.Tools)}
	if system := req.System(); system != "" {
		params.System = []anthropic.TextBlockParam{{Text: system}}
	}
	if settings.Temperature != nil {
		params.Temperature = anthropic.Float(min(*settings.Temperature, maxTemperature))
	}
	if settings.MaxOutputTokens != nil {
		params.MaxTokens = int64(*settings.MaxOutputTokens)
	}
	if req.NoCalls && len(req.Tools) > 0 {
		params.ToolChoice = anthropic.ToolChoiceUnionParam{OfNone: &anthropic.ToolChoiceNoneParam{}}
	}
	service := anthropic.NewMessageService(options(call)...) // anthropic.NewClient would read the environment, and files of the user's
	answer := call.NewAnswer()
	err := read(service.NewStreaming(ctx, params), call, answer)
	if err == nil || answer.Stopped != "" && ctx.Err() == nil {
		// What breaks after the model has stopped takes nothing from its answer.
		var reply agent.Reply
		if reply, err = call.Reply(answer, prefix); err == nil {
			return reply, nil
		}
	}
	return agent.Reply{}, call.Failed(ctx, err)
}

func options(call *provider.Call) []option.RequestOption {
	options := []option.RequestOption{
		option.WithBaseURL(call.BaseURL),
		option.WithHTTPClient(call.Client),
		option.WithMaxRetries(0), // it would repeat the POST, without anything to tell the server that it is the same
		option.WithoutOpenTelemetry(),
		option.WithMiddleware(call.Exchange),
	}
	if call.Key != "" {
		options = append(options, option.WithAPIKey(call.Key))
	}
	return options
}
