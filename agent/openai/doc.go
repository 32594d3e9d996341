// Package openai is the agent.Model for OpenAI and for every server that speaks its chat completions
// (https://platform.openai.com/docs/api-reference/chat/create), streamed. Whose key goes where, and what a call promises, is
// told by package provider.
//
// What a stream holds is gathered in stream.go. It has to be more than the SDK makes of it: a stream that is cut off ends
// without an error there, so only a finish_reason counts as the end; and servers differ in how they tell the calls of one
// answer apart.
//
// The model is told one system message (agent.Request.System), then the session, the lead's messages as `user` and all others
// as `assistant`, then the steps of the turn, each as an `assistant` message with its calls and a `tool` message for each result.
package openai
