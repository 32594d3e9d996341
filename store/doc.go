// Package store is Parley's domain and its persistence: what there is, which rules it keeps, and how it is written down.
//
// A Business is the organization of the specification; everything belongs to one, and nothing of
// one is ever seen by another. Its backend calls with a Credential (an API key, which may chat, or
// an access token with a scope). It runs Agents. A chat is a Session with an agent: turn by turn a
// Message comes in, a Run of the agent answers it, and a Message goes out. Whatever happens is an
// Event: one JSON document, made once, kept as the very bytes that every receiver gets. An endpoint
// is a webhook URL that takes some types of event; each event makes one delivery for each endpoint
// that wants it, and a delivery is tried in Attempts.
//
// # SQL is the truth
//
// A change, its events and their deliveries are committed together, or none of them are. Three promises follow, and the
// rest of the product leans on them:
//
//   - An event of which a caller was told is in SQL, with a delivery for every endpoint that was to get it.
//   - The events of a business are numbered 1, 2, 3, … in commit order, without gaps (Event.Seq): a reader who has seen n
//     has seen everything up to n. A row lock on the business, held to the commit, makes it so over any number of
//     processes. A plain auto-increment would not: a later number can be committed before an earlier one.
//   - Within a conversation, Event.Sequence orders the events for those who receive them.
//
// # One writer
//
// What chats, deliveries and the API's mutations write goes through the commit batcher (commit.go):
// waiting writes share one transaction, and so one fsync. A write says what it needs in a function
// of the transaction; it must refuse before it changes anything, because a refused write shares its
// transaction with others. After the commit, Config.Committed is told of the events: that is the
// bell which the stream package rings, and nothing is lost if it does not ring.
//
// SQLite and PostgreSQL run the same statements. Reads go to the database at once, beside the writer.
package store
