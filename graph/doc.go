// Package graph is the GraphQL API: resolvers over store and agent, the policy of errors, and the handler.
package graph
