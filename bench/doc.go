// Command bench measures Parley against limits that are measured in the same run, on the same machine, so that only the
// ratio counts: `go run ./bench chat`. It starts the real server in a folder of its own, loads it over loopback for a bounded
// time, and prints both sides.
package main
