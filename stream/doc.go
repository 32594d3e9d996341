// Package stream is the bell: it carries what store has committed, at once, to whoever waits for it on any replica.
//
// One Redis stream a shard of businesses holds the entries, short and expendable. Each replica publishes what it commits
// (Stream.Publish), and reads every shard with one reader (Stream.Run), which feeds both the Hub, for subscribers, and the
// delivery worker.
//
// Nothing here is the truth. An entry may be late, twice, out of order between replicas, or lost with the whole Redis: the
// entries of a business carry its sequence, 1, 2, 3, …, so a reader sees what is missing and reads it from SQL. Publishing
// never blocks; what does not fit is dropped and counted in Losses. Ringing says whether the bell can be relied on just now.
//
// The promise of the Hub is made of both: a Subscription gives every event of its filter after its start, each once, in
// order, for as long as it is read, across a Redis that restarts, loses its data or is away (then within 2 s).
//
// Without PARLEY_REDIS_URL the Redis is miniredis, inside this process and without an open port.
package stream
