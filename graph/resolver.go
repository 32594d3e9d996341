package graph

import (
	"sync/atomic"

	"parley/agent"
	"parley/store"
	"parley/store/hook"
	"parley/stream"
)

// Resolver is the root of the resolvers: what they call.
type Resolver struct {
	Store  *store.Store
	Hooks  *hook.Hooks
	Hub    *stream.Hub
	Runner *agent.Runner

	resumed atomic.Int64 // subscriptions of events that began after a cursor
}

// Root is what the schema's root types are bound to: nothing, they have resolvers.
type Root struct{}

// CreatedEndpoint is a webhook endpoint just made, with the secret that is shown this once.
type CreatedEndpoint struct {
	Endpoint *hook.Endpoint
	Secret   string
}
