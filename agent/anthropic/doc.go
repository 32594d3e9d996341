// Package anthropic is the agent.Model for Anthropic's Messages API (https://docs.claude.com/en/api/messages), streamed, and
// for servers that speak it. Whose key goes where, and what a call promises, is told by package provider.
//
// An answer counts once a stop_reason has come: a stream that is cut off before it is a failure. An error event, such as an
// overloaded_error in mid-stream, is a failure of the moment; a `refusal` is one that would come again.
//
// The model is told agent.Request.System as the system prompt, then the session and the steps of the turn in alternating
// messages: the lead's and the tools' results as `user`, all others and the calls as `assistant`. Calls are numbered anew by
// their place in the turn, for the API takes only ids of its own form, each once, and another provider may have made them.
//
// Tokens that are written to the API's cache, or read from it, count as input.
package anthropic
