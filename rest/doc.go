// Package rest keeps the paths of the specification, for callers that stay on them: a handler decodes the request, makes
// the same call as the GraphQL resolver, and encodes the answer. It holds no rules of its own.
//
// Every error is JSON. A 422 carries the list of ValidationError of the specification, all faults of a body at once, worded
// as Pydantic v2 words them; any other error carries a sentence in `detail` and a stable word in `code`.
package rest
