-- Sending again (decision 11): why a delivery's next attempts are made, and how many attempts there were before those. What was
-- not delivered is found by its sequence. A replay walks along the sequence under its business's shard. Documents of tests are
-- kept beside the feed, of which they are no part.

ALTER TABLE deliveries ADD COLUMN trigger_name TEXT NOT NULL DEFAULT 'automatic';
--bun:split
ALTER TABLE deliveries ADD COLUMN base BIGINT NOT NULL DEFAULT 0;
--bun:split
ALTER TABLE deliveries ADD COLUMN replay_id TEXT;
--bun:split
CREATE INDEX IF NOT EXISTS deliveries_of_replay ON deliveries (replay_id) WHERE replay_id IS NOT NULL;
--bun:split
CREATE INDEX IF NOT EXISTS deliveries_undelivered ON deliveries (endpoint_id, seq) WHERE status IN ('failed', 'skipped');
--bun:split
CREATE TABLE IF NOT EXISTS replays (
    id          TEXT PRIMARY KEY,
    business_id TEXT NOT NULL,
    endpoint_id TEXT NOT NULL,
    shard       BIGINT NOT NULL,
    since_at    BIGINT NOT NULL,
    until_at    BIGINT NOT NULL,
    failed_only BOOLEAN NOT NULL,
    seq         BIGINT NOT NULL,
    last_seq    BIGINT NOT NULL,
    status      TEXT NOT NULL,
    total       BIGINT NOT NULL,
    sent        BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    finished_at BIGINT
);
--bun:split
CREATE UNIQUE INDEX IF NOT EXISTS replay_running ON replays (endpoint_id) WHERE status = 'running';
--bun:split
CREATE INDEX IF NOT EXISTS replays_of_endpoint ON replays (endpoint_id, id);
--bun:split
CREATE TABLE IF NOT EXISTS test_events (
    id              TEXT PRIMARY KEY,
    business_id     TEXT NOT NULL,
    seq             BIGINT NOT NULL,
    type            TEXT NOT NULL,
    channel         TEXT NOT NULL,
    agent_id        TEXT,
    conversation_id TEXT,
    session_id      TEXT,
    timestamp       BIGINT NOT NULL,
    body            TEXT NOT NULL
);
--bun:split
ALTER TABLE endpoints ADD COLUMN failing_since BIGINT;
