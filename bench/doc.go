// Command bench measures Parley against limits that are measured in the same run, on the same machine, so that only the
// ratio counts:
//
//	go run ./bench [-mode embedded|production|both] [-short] [-cpuprofile folder] [chat] [deliver] [fair] [backlog] [feed] [turn] [fanout] [idle]
//
// It starts the real server in a folder of its own, for production on a PostgreSQL that commits durably and a Redis, both from
// the installed binaries; loads it over loopback for a bounded time, at most a minute a bench and mode (backlog: some four); and
// prints both sides.
// Rounds of both sides alternate, since a machine's pace drifts. The result is the median of three rounds in which nothing else
// took more than a tenth of the machine, or of as many as there were in a minute.
package main
