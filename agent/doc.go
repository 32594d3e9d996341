// Package agent runs the turns of a session: it takes a user's message, has the agent's model answer it, and stores both
// with their events.
//
// A turn is two commits. The first locks the session and stores the message, so that nothing a user said is lost; the
// second stores the reply and ends the run. Between them the model thinks, for as long as the turn's deadline allows. A run
// ends exactly once, finished or failed: by its turn, by the shutdown, or, after a crash, by the sweeper (Runner.Run).
//
// The turns of one session run one after the other, in order of arrival: within the process by a queue, which alone decides
// there; between processes by the lock in SQL, and a line of tickets for those who wait for it. A turn that has begun goes on
// without its caller: what the model says is kept, and its events sent.
//
// Models stand behind the interface Model, one package a provider below this one; server.go hands them in. Each call of one is
// one request: whether a failed one is repeated, or the agent's fallback asked, is decided here alone (retry.go), and all of it
// ends with the turn's deadline.
package agent
