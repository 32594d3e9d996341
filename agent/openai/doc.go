// Package openai is the agent.Model for OpenAI and for every server that speaks its chat completions
// (https://platform.openai.com/docs/api-reference/chat/create), in their plain form: one request, one complete answer.
//
// # Whose server, whose key
//
// There are two kinds of addresses. The operator's own (Config.BaseURL) is called with the business's key if it has one, and
// else with the operator's. An address that a business set in its agent is called through the guarded client, with the
// business's key or none: the operator's key never goes there, and neither does anything else of the operator's, for the
// environment (OPENAI_API_KEY, OPENAI_ORG_ID, OPENAI_CUSTOM_HEADERS …) is not read here.
//
// # What a call promises
//
// It ends with its context, or after the agent's TimeoutSeconds if those are over before, from the dial to the last byte of
// the answer. It is one request: nothing is repeated here, for the server may charge for each, and the caller knows better
// whether another would help. An answer is read up to 4 MiB, and counts only if it is whole: status 200, well-formed, with a
// text and with a reason why the model stopped. All else is one of agent's errors, with its cause for the log. No error
// holds the key that was used, even if the server repeats it.
//
// # What the model is told
//
// One system message: the agent's prompt, the instructions of the channel profile, and the knowledge, fenced as data
// (prompt.go); then the session, the lead's messages as `user` and all others as `assistant`.
package openai
