-- An event's deliveries as they are born (decision 19): one row for all of them, with the lease under which whoever hears the bell
-- sends them. Each becomes a row of its own with its first outcome, or when it has to wait.

CREATE TABLE IF NOT EXISTS fan_outs (
    event_id    TEXT PRIMARY KEY,
    business_id TEXT NOT NULL,
    shard       BIGINT NOT NULL,
    seq         BIGINT NOT NULL,
    lane        TEXT NOT NULL,
    lease_until BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    deliveries  TEXT NOT NULL
);
--bun:split
CREATE INDEX IF NOT EXISTS fan_outs_of_business ON fan_outs (business_id);
--bun:split
CREATE INDEX IF NOT EXISTS fan_outs_by_age ON fan_outs (created_at);
