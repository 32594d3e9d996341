package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"parley/store"
)

// Model writes an agent's replies. There is one implementation a provider, each in a package of its own below this one.
type Model interface {
	// Generate makes one step of a turn: it answers the last message of the request, or calls tools to be able to, or both.
	// It returns when the step is complete, and promptly when ctx ends. It asks its server once, for each answer may cost
	// money: whether to ask again is its caller's to decide. A failure is one of the errors below, wrapped with its cause;
	// the cause is logged and never shown.
	Generate(ctx context.Context, req Request) (Reply, error)
}

// Request is all that a model is told.
type Request struct {
	Agent    *store.Agent  // knowledge, channel profiles, model settings. Read only
	Prompt   string        // the agent's prompt with its variables filled in, which a model is told instead of Agent.Prompt
	Channel  store.Channel // the channel profile that the agent answers with
	Messages []Message     // the session so far, oldest first; the last one is the user's, to be answered
	Tools    []Tool        // what it may call; the same in every step of a turn
	NoCalls  bool          // but not in this one: it is to answer with what it has
	Steps    []Step        // what this turn has come to so far, after the last message
	APIKey   string        // the business's own key for its provider; empty: the operator's, for the operator's address alone

	// Text, unless nil, is told the reply's text as it comes: all that it is told, one after the other, is Reply.Text. It is
	// called in the caller's goroutine, and never after Generate has returned; before a failure it may have been, too.
	Text func(delta string)
}

// Message is one turn of a conversation, as a model sees it.
type Message struct {
	Author store.Author
	Text   string
}

// Tool is something that a model may have done for it.
type Tool struct {
	Name        string // letters, digits, _ and -, at most 64
	Description string
	Parameters  store.JSONObject // JSON Schema of its arguments
	Triggers    []string         // words at which the embedded model calls it; the others decide by themselves
}

// Step is one that a turn has made: what the model said, what it called, and what came of it.
type Step struct {
	Text    string
	Calls   []Call
	Results []Result // one for each call
}

// Call is a model's wish that a tool be used.
type Call struct {
	ID        string // different from those of the reply's other calls; never empty
	Name      string // as the model wrote it, whether or not there is such a tool
	Arguments json.RawMessage
	// The arguments are as the model wrote them: perhaps not what the schema asks for, perhaps not even JSON.
}

// Result is what came of a call.
type Result struct {
	CallID  string
	Content string // as the tool brought it: a language model is told Fenced
	Failed  bool   // Content says why
}

// Reply is what a model wrote: a text, or calls, or both.
type Reply struct {
	Text      string
	Calls     []Call
	Truncated bool   // the limit of tokens ended it, and not the model
	Model     string // what wrote it, such as `embedded/extractive-1`
	Usage     store.TokenUsage
}

// What can go wrong with a model, as its caller needs to tell it apart. A refusal is a failure too: of the failures it is
// the one after which asking again, or asking another, makes nothing better.
var (
	ErrModelFailed  = errors.New("the model failed")                       // an error answer, a broken one, a reset
	ErrModelTimeout = errors.New("the model gave nothing in time")         // its deadline passed
	ErrModelRefused = errors.New("the model's server refused the request") // a 4xx that does not speak of the moment, or a content filter
)

// RetryAfter stands among the causes of a failure whose server said when it wants to be asked again; errors.As finds it.
type RetryAfter time.Duration

func (r RetryAfter) Error() string { return fmt.Sprintf("asked to wait for %v", time.Duration(r)) }
