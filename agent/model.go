package agent

import (
	"context"
	"errors"

	"parley/store"
)

// Model writes an agent's replies. There is one implementation a provider, each in a package of its own below this one.
type Model interface {
	// Generate answers the last message of the request. It returns when the reply is complete, and promptly when ctx ends.
	// A failure is one of the errors below, wrapped with its cause; the cause is logged and never shown.
	Generate(ctx context.Context, req Request) (Reply, error)
}

// Request is all that a model is told.
type Request struct {
	Agent    *store.Agent  // prompt, knowledge, model settings. Read only
	Channel  store.Channel // the channel profile that the agent answers with
	Messages []Message     // the session so far, oldest first; the last one is the user's, to be answered
	APIKey   string        // the business's own key for its provider; empty: the operator's, for the operator's address alone
}

// Message is one turn of a conversation, as a model sees it.
type Message struct {
	Author store.Author
	Text   string
}

// Reply is what a model wrote.
type Reply struct {
	Text  string
	Model string // what wrote it, such as `embedded/extractive-1`
	Usage store.TokenUsage
}

// What can go wrong with a model, as its caller needs to tell it apart.
var (
	ErrModelFailed  = errors.New("the model failed")                       // an error answer, a broken one, a reset
	ErrModelTimeout = errors.New("the model gave nothing in time")         // its deadline passed
	ErrModelRefused = errors.New("the model's server refused the request") // a 4xx of which a retry makes nothing better
)
