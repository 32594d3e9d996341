-- The order of a list of deliveries stands in its index as a whole: else SQLite would rather walk all deliveries of an endpoint, in
-- whose key it does, than sort the few that failed.

DROP INDEX IF EXISTS deliveries_undelivered;
--bun:split
CREATE INDEX deliveries_undelivered ON deliveries (business_id, status, seq, event_id, endpoint_id) WHERE status IN ('failed', 'skipped');
--bun:split
DROP INDEX IF EXISTS deliveries_undelivered_to;
--bun:split
CREATE INDEX deliveries_undelivered_to ON deliveries (endpoint_id, status, seq, event_id) WHERE status IN ('failed', 'skipped');
