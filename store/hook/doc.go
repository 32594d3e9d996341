// Package hook is the webhook endpoints of a business and their deliveries: who wants which events, what waits for whom,
// and what came of it. The worker that sends is package webhook.
//
// # One row a delivery
//
// An event that is stored makes one row of the table deliveries for each endpoint that wants it, in the commit that stores
// it: that is the transactional outbox, and there is nothing beside it. The key is (endpoint, number of the event, event).
//
// While a delivery waits, its row has a due: 0 for a first attempt, whose turn is by its number, or else an instant, for a
// retry, a resend, a replay or a test. An index of its own holds the rows that wait, by shard and endpoint. The outcome of
// an attempt updates the row: due is the instant of the retry, or NULL when the delivery has ended. The first attempt
// stands in the row, later ones in the table attempts.
//
// Nobody leases a row. A shard of businesses is owned by one replica at a time (shard.go), whose worker knows in memory what
// it is sending; outcomes are written under the owner's token. An owner that dies leaves nothing to be freed: the next one
// begins at the first row that waits.
//
// # What ends by a rule
//
// Disabling an endpoint raises its epoch, and deleting it marks it as gone. A delivery that waits under an earlier epoch is
// over from that commit on, for every reader (shown) and for the worker: skipped without an attempt so far, else failed. A
// sweeper writes that into the rows, in small commits, and nobody waits for it. Tests go to a disabled endpoint too.
//
// A resend raises the row's generation. The outcome of an older generation is recorded, and changes the state only if the
// receiver took the delivery: delivered is final.
//
// # Promises
//
//   - An event of which a caller was told has a row for every endpoint that wanted it in that commit.
//   - At most one outcome counts for each attempt that waits; an outcome under a lost hold changes nothing.
//   - What one commit reads of endpoints is bounded by those that want its events, not by those that the business has.
package hook
