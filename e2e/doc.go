// Package e2e tells stories of Parley through its public doors: the real binary, built with the
// race detector if the tests are, real HTTP and WebSocket clients, real receivers that verify
// signatures, a real Redis. Each test has a server, a database and ports of its own. What a story
// needs and the machine lacks skips it with a line saying so; under CI=true that is a failure.
package e2e
