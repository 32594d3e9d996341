// Command bench measures a Parley server against another one and against bare limits, in one run on one machine, so that only
// the ratio counts:
//
//	go run ./bench [flags] [chat] [deliver] [fair] [resume] [fanout] [feed] [turn] [idle] [growth] [backlog]
//	  -mode embedded|production|both   what the servers stand on
//	  -server PATH                     the server to measure; without it this tree's is built
//	  -against PATH                    another server, measured in the same rounds
//	  -shape PATTERN                   only the shapes whose names match
//	  -rounds 4 -measure 4s            how many rounds, and how long a side is loaded in each
//	  -busy                            as many rounds again beside a process that keeps one core busy
//	  -events 1000000                  of growth
//	  -cpuprofile FOLDER               CPU profiles of the server that is built
//
// Whatever it measures it drives through the public door: HTTP, GraphQL, WebSockets, the command `business create`. So any server
// binary of any version can be on either side. It starts each in a folder of its own on an empty database; for production that
// is one in a PostgreSQL that commits durably, with a Redis of the server's own, both from the installed binaries. All loads are
// bounded, and over loopback. Growth alone reaches behind the door: it fills the databases of stopped servers (fill.go).
//
// Sides take turns, A B, B A, and each ratio is that of two neighbours, since a machine's pace drifts by a factor of two within an
// hour. What is printed is the median of each side, and the median, least and greatest of the ratios. Each round says how much of
// the machine others took. "CPU of the stack" is that of all processes of a side: the server, PostgreSQL and Redis.
//
// What each bench measures:
//
//   - chat: chats a second of 16 clients, each in a session of its own, without endpoints, with the model that answers at once.
//     The bare side is a handler that makes the same two commits and nothing else (bare.go).
//   - deliver: deliveries a second from the first chat until all have arrived and are recorded, with 64 clients that chat as fast
//     as they are answered and at most 6,000 deliveries under way; their CPU; and latency at 200 a second.
//   - fair: throughput while half of the endpoints hang, and what business B gets while business A attacks.
//   - resume: CPU for each message that 100 or 1,000 viewers of one operation get of what they have missed.
//   - fanout: CPU for each message to 100 or 1,000 viewers, flat out and at a steady rate, against a bare broadcast.
//   - feed: from an event's commit to a viewer's socket.
//   - turn: what a streamed turn takes over its model's own time, against a proxy; and that no session gets another's answer.
//   - idle: the time of a start, the memory of an idle server, and that of an idle viewer.
//   - growth: lists, usage and resumes with 10,000 events stored against many, and an idle server's CPU with 1,000 businesses
//     against 100,000.
//   - backlog: memory while 100,000 deliveries wait.
package main
