// Package webhook delivers events: it POSTs each event's document, signed, to every endpoint that is to get it, and writes
// down what came of it.
//
// A delivery that waits is one row in SQL, made with its event (package hook): the outbox. The Worker reads it, sends it, and
// writes its outcome, which ends the row. No row is ever marked as taken: a business's shard belongs to one replica at a time,
// and what is in flight stands in that replica's memory alone. A replica that takes a shard begins at the first row. So a
// delivery is made at least once, whatever dies in between, and receivers tell a repeated one by its `webhook-id`. A replica
// that dies hands its shards on within 3 s, one that stops at once; outcomes count only under the token of their shard's hold.
//
// # A delivery's way
//
//	the bell (stream)      names the endpoints of an event: Offer, intake.go
//	a lane                 of each endpoint takes it into its window: lane.go
//	the schedule           begins attempts, a business after the other, then an endpoint after the other: schedule.go
//	a sender               looks at the endpoint, sends the document, decides what the answer means: sender.go, attempt.go, retry.go
//	the recorder           writes outcomes, many in one transaction, and rings for them: record.go
//
// What the bell does not bring is read from SQL (read.go): by a lane that has missed something, after the last number that it took
// in; by one that has room again for a conversation, from where that was left; and what is due out of its turn, as there are
// retries, resends, tests and replays. Each second the worker looks for lanes that have rows it knows nothing of (intake.go).
// Replays are gone on with in replay.go, shards renewed, taken and handed back in shard.go.
//
// All of this changes under one mutex, Worker.mu, in short steps; whoever changes something begins the attempts and readings that may
// begin then. Nothing is held while SQL or a receiver is waited for.
//
// # Order and fairness
//
// To one endpoint 8 attempts are made at once, one for each conversation, whose first attempts begin in their order. What is out of
// its turn has half of these slots, while others wait, and a replay two.
//
// What all share is shared by business first: attempts (4,096), tokens (tokens.go), readings, places in windows (10,000) and
// bytes of documents. Nobody gets more than half of what the others leave, so there always is some for one more. Of a lane's window, 16
// to 512 deliveries, one conversation has an eighth: one that hangs does not keep the others from the other slots.
//
// No more than 500 attempts are young, or answered and not written: a crash repeats so many, and those that were waiting for a slow
// receiver. Nothing waits in memory that is not in SQL.
package webhook
