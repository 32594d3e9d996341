// Package webhook delivers events: it POSTs each event's document, signed, to every endpoint that is to get it, and writes
// down what came of it.
//
// Deliveries are in SQL, made with the event that they carry (package store). The Worker learns of fresh ones from the
// stream, and each half second claims from SQL what is due: retries, and whatever the stream or a crash has lost. It holds
// each by its lease and never beyond; what it lets go of is due again in SQL. So a delivery is made at least once,
// whatever dies in between, and receivers tell a repeated one by its `webhook-id`.
//
// Replicas share the work by shards of businesses: a shard's deliveries are done by one of them at a time, which holds it by a
// lease in SQL, and writes outcomes under its token alone. So what follows is decided within one process, and stays true with
// any number of them. A replica that dies hands its shards on within 10 s, one that stops at once.
//
// These goroutines share the work, and only the scheduler decides:
//
//	feeder     the only reader of deliveries: fresh ones, due ones, and newly taken shards   (feed.go)
//	scheduler  lanes: which delivery goes out next                                           (worker.go, lane.go)
//	replayer   goes on with replays: makes their next deliveries due                         (replay.go)
//	recorder   outcomes, many in one transaction                                             (record.go)
//	unfolder   makes rows of deliveries that have waited for seconds without                 (backlog.go)
//	holder     keeps the shards, takes free ones, hands back what is beyond the fair share   (holds.go)
//
// and each attempt runs in one of its own (attempt.go). What an answer means is decided by a pure function (retry.go).
//
// # Order and fairness
//
// Each endpoint has a lane: at most 8 attempts at once, one for each conversation, the first attempts begun in sequence
// order. Lanes take turns. Attempts share 64 tokens, but one whose request is written, or that lasts longer than 200 ms, hands
// its token back (tokens.go): slow endpoints cost memory, not the others' rate; and little memory, for what waits does so
// without its document where there is no room for it (documents.go). A lane whose every slot is busy and has finished nothing for 250 ms is parked:
// its queue is given back to SQL, from which alone it is then fed until SQL has nothing more that is due.
package webhook
