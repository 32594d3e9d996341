package openai

import (
	"context"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"parley/agent"
	"parley/agent/provider"
)

// Config is what a Model is made with. An empty BaseURL is OpenAI's own; an empty DefaultModel is gpt-4.1-mini.
type Config = provider.Config

const (
	defaultBaseURL = "https://api.openai.com/v1"
	defaultModel   = "gpt-4.1-mini" // small, and takes a temperature, which the reasoning ones refuse
	prefix         = "openai/"      // of the name that a reply gives its model
)

// Model is agent.Model on chat completions. It is safe for concurrent use.
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
	params := openai.ChatCompletionNewParams{
		Model: call.Model, Messages: messages(req), Tools: tools(req.Tools),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	if settings.Temperature != nil {
		params.Temperature = openai.Float(*settings.Temperature)
	}
	if settings.MaxOutputTokens != nil {
		params.MaxCompletionTokens = openai.Int(int64(*settings.MaxOutputTokens))
	}
	if req.NoCalls && len(req.Tools) > 0 {
		params.ToolChoice.OfAuto = openai.String(string(openai.ChatCompletionToolChoiceOptionAutoNone))
	}
	service := openai.NewChatCompletionService(options(call)...) // openai.NewClient would read the environment
	answer := call.NewAnswer()
	err := read(service.NewStreaming(ctx, params), call, answer)
	if err == nil || answer.Stopped != "" && ctx.Err() == nil {
		// What breaks after the model has stopped costs no more than the count of its tokens.
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
		option.WithMiddleware(call.Exchange),
	}
	if call.Key != "" {
		options = append(options, option.WithAPIKey(call.Key))
	}
	return options
}
