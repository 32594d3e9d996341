// Package transport carries GraphQL between the wire and gqlgen's executor: one type a protocol.
//
//   - [HTTP] serves queries and mutations as "GraphQL over HTTP" says: https://graphql.github.io/graphql-over-http/draft/
//     and by its [SSE] every kind of operation as "GraphQL over SSE", distinct connections mode:
//     https://github.com/enisdenjo/graphql-sse/blob/master/PROTOCOL.md
//   - [WebSocket] serves every kind of operation by the graphql-transport-ws protocol:
//     https://github.com/enisdenjo/graphql-ws/blob/master/PROTOCOL.md
//
// HTTP and WebSocket are graphql.Transport values. They know nothing of the schema, of credentials or of Parley's errors; what they need
// of those is a field of theirs:
//
//	live := &transport.WebSocket{Authenticate: authenticate, Recheck: revoked}
//	server := handler.New(schema)
//	server.AddTransport(live)
//	server.AddTransport(transport.HTTP{Events: events})
//	…
//	httpServer.Shutdown(ctx) // does not wait for WebSockets: they are hijacked
//	live.Shutdown(ctx)       // does
//	events.Shutdown(ctx)     // http.Server waits for event streams, and this ends them
//
// Every operation goes through the executor's CreateOperationContext and DispatchOperation, so its limits, caches and
// extensions hold on every protocol; every error that an operation meets passes the schema's error presenter.
//
// # What a WebSocket promises
//
// Order. The messages of one operation are sent in the order in which its resolver made them. Between operations nothing
// is promised, nor between an operation's messages and pings, which overtake what is queued.
//
// Blocking. One goroutine a socket reads, each operation runs in its own, and what is written waits for no other socket's
// peer, so a slow resolver delays neither the other operations nor the reading. A resolver that makes messages faster than its client takes them waits
// once QueueBytes are queued on that socket, and on that socket alone.
//
// Loss. No message is skipped. A client that takes nothing for WriteTimeout, or whose queue stays full for that long, is
// closed with 1013 "slow consumer": what was queued for it is dropped, and it begins again from the last cursor that it
// has itself received. Once a client has completed an operation none of its queued messages is sent any more.
//
// End. A stream that ends well ends with `complete`, one that ended by [EndWithError] with `error`. A stream that the
// server's shutdown cuts off ends with neither: its socket closes with 1001, so that clients subscribe again elsewhere.
//
// Cursors. A resolver whose stream has places in a feed tells them: [Began], [Mark], and [Passed] where it has looked on and found
// nothing to send. Pings carry the cursor of each such operation, as far as it has been sent.
//
// Faults. A frame that is none is answered with a close frame, 1002, and a message beyond
// MaxMessage with 1009.
//
// Limits. MaxOperations subscriptions may run at a time, and beside them as many queries and
// mutations.
//
// Goroutines. A socket's HTTP handler returns once it is open. [WebSocket.Shutdown] waits for everything that sockets have
// started.
//
// An event stream promises the same of its one operation; a slow client's response is cut, and a shutdown ends it without
// `complete`. Neither that nor the end of a revoked credential waits for what is queued, or for a slow client, for more than a
// second.
package transport
