// Package provider is what the models that are asked over HTTP have in common, whatever they speak: whose key goes to whose
// server, what of an exchange is sent and how much of it is read, and what an answer means that is none.
//
// # Whose server, whose key
//
// There are two kinds of addresses. The operator's own (Config.BaseURL) is called with the business's key if it has one, and
// else with the operator's. An address that a business set in its agent is called through the guarded client, with the
// business's key or none: the operator's key never goes there, and neither does anything else of the operator's, for none of
// the SDKs is let at the environment (OPENAI_API_KEY, OPENAI_CUSTOM_HEADERS, ANTHROPIC_AUTH_TOKEN …).
//
// # What a call promises
//
// It ends with its context, or after the agent's TimeoutSeconds if those are over before, from the dial to the last byte of
// the answer. It is one request: nothing is repeated below agent.Model, for the server may charge for each. An answer is a
// stream, or one document from a server that knows no streams; it is read up to 4 MiB, and counts only if it is whole: status
// 200, well-formed, with a text or a call and with a reason why the model stopped. All else is one of agent's errors, with
// its cause for the log. No error holds the key that was used, even if the server repeats it, nor the address that was called.
package provider
