package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"parley/agent"
	"parley/store"
)

// Config is what a Model is made with.
type Config struct {
	Client         *http.Client // guarded: for addresses that a business set
	OperatorClient *http.Client // for BaseURL
	BaseURL        string       // the operator's; empty: OpenAI's own
	APIKey         string       // the operator's, for BaseURL alone; empty: none
	DefaultModel   string       // for an agent that names none; empty: gpt-4.1-mini
}

const (
	defaultBaseURL = "https://api.openai.com/v1"
	defaultModel   = "gpt-4.1-mini" // small, and takes a temperature, which the reasoning ones refuse
	maxTimeout     = 24 * 60 * 60   // seconds: a bound for the arithmetic alone, the turn's deadline is far below
	maxTokens      = 1 << 30        // of a usage that is believed
	maxModelName   = 200            // characters, as for an agent's setting
	perToken       = 4              // characters, where the server does not count: OpenAI's rule of thumb for English
)

// Model is agent.Model on chat completions. It is safe for concurrent use.
type Model struct {
	cfg Config
}

var _ agent.Model = (*Model)(nil)

// New makes a Model.
func New(cfg Config) *Model {
	if cfg.BaseURL == "" {
		cfg.BaseURL = defaultBaseURL
	}
	if cfg.DefaultModel == "" {
		cfg.DefaultModel = defaultModel
	}
	return &Model{cfg: cfg}
}

// Generate implements agent.Model.
func (m *Model) Generate(ctx context.Context, req agent.Request) (agent.Reply, error) {
	settings := req.Agent.Model
	if s := settings.TimeoutSeconds; s != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(min(*s, maxTimeout))*time.Second)
		defer cancel()
	}
	params := openai.ChatCompletionNewParams{Model: m.name(settings), Messages: messages(req)}
	if settings.Temperature != nil {
		params.Temperature = openai.Float(*settings.Temperature)
	}
	if settings.MaxOutputTokens != nil {
		params.MaxCompletionTokens = openai.Int(int64(*settings.MaxOutputTokens))
	}
	to := m.target(settings, req.APIKey)
	service := openai.NewChatCompletionService(to.options()...) // openai.NewClient would read the environment
	answer, err := service.New(ctx, params)
	if err != nil {
		return agent.Reply{}, failed(ctx, err, to.key)
	}
	reply, err := read(answer, params)
	if err != nil {
		return agent.Reply{}, failed(ctx, err, to.key)
	}
	return reply, nil
}

// name is the model that is asked for.
func (m *Model) name(settings store.Model) string {
	if settings.Name != nil && *settings.Name != "" {
		return *settings.Name
	}
	return m.cfg.DefaultModel
}

// target is where a request goes, and with whose key.
type target struct {
	baseURL string
	key     string
	client  *http.Client
}

// target decides which key may go where: the only place that does.
func (m *Model) target(settings store.Model, businessKey string) target {
	if settings.BaseURL != nil {
		return target{baseURL: *settings.BaseURL, key: businessKey, client: m.cfg.Client}
	}
	key := businessKey
	if key == "" {
		key = m.cfg.APIKey
	}
	return target{baseURL: m.cfg.BaseURL, key: key, client: m.cfg.OperatorClient}
}

func (t target) options() []option.RequestOption {
	options := []option.RequestOption{
		option.WithBaseURL(t.baseURL),
		option.WithHTTPClient(t.client), // refuses nil: it never falls back to Go's default client
		option.WithMaxRetries(0),        // it would repeat the POST, without anything to tell the server that it is the same
		option.WithMiddleware(exchange),
	}
	if t.key != "" {
		options = append(options, option.WithAPIKey(t.key))
	}
	return options
}

// read takes the reply out of a well-formed answer.
func read(answer *openai.ChatCompletion, asked openai.ChatCompletionNewParams) (agent.Reply, error) {
	if answer == nil || len(answer.Choices) == 0 {
		return agent.Reply{}, errors.New("the answer has no choices")
	}
	choice := answer.Choices[0]
	switch {
	case choice.FinishReason == "":
		return agent.Reply{}, errors.New("the answer has no finish_reason")
	case strings.TrimSpace(choice.Message.Content) == "":
		return agent.Reply{}, fmt.Errorf("the answer has no text, finish_reason %.40q", choice.FinishReason)
	}
	model := asked.Model
	if named(answer.Model) {
		model = answer.Model
	}
	text := choice.Message.Content
	return agent.Reply{Text: text, Model: "openai/" + model, Usage: usage(answer, asked, text)}, nil
}

// named says whether a server's word for its model can be shown and stored.
func named(model string) bool {
	hidden := func(r rune) bool { return !unicode.IsGraphic(r) || r == utf8.RuneError }
	return model != "" && utf8.RuneCountInString(model) <= maxModelName && !strings.ContainsFunc(model, hidden)
}

// usage is what the server counted, or an estimate if it did not, or counted nonsense.
func usage(answer *openai.ChatCompletion, asked openai.ChatCompletionNewParams, text string) store.TokenUsage {
	in, out := answer.Usage.PromptTokens, answer.Usage.CompletionTokens
	if answer.JSON.Usage.Valid() && in >= 0 && out >= 0 && in+out > 0 && in <= maxTokens && out <= maxTokens {
		return store.TokenUsage{InputTokens: int(in), OutputTokens: int(out), Source: store.UsageProvider}
	}
	sent := 0
	for _, message := range asked.Messages {
		if s, ok := message.GetContent().AsAny().(*string); ok {
			sent += utf8.RuneCountInString(*s)
		}
	}
	return store.TokenUsage{InputTokens: estimate(sent), OutputTokens: estimate(utf8.RuneCountInString(text)), Source: store.UsageEstimated}
}

func estimate(characters int) int { return (characters + perToken - 1) / perToken }
