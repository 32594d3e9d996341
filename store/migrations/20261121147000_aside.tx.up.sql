-- What is sent out of its turn has an index of its own, in which no other delivery stands: a claim reads it beside the retries, and
-- a replay counts in it what still waits of it. It takes the place of an index of all that any replay ever sent.

CREATE INDEX IF NOT EXISTS deliveries_aside ON deliveries (endpoint_id, next_attempt_at, seq) WHERE next_attempt_at IS NOT NULL AND trigger_name <> 'automatic';
--bun:split
DROP INDEX IF EXISTS deliveries_of_replay;
