-- What a run cost, in millionths of millionths of the prices' currency (store.Price); null where its models had no price then.
-- The channel that a conversation's message travelled on: null for a chat's, which travels on none. And the keys under which
-- the answers of chats are kept: a row without an answer belongs to a run that is still running, and goes with it if it fails.

ALTER TABLE runs ADD COLUMN cost BIGINT;
--bun:split
CREATE INDEX IF NOT EXISTS runs_of_business ON runs (business_id, id);
--bun:split
ALTER TABLE messages ADD COLUMN channel TEXT;
--bun:split
CREATE INDEX IF NOT EXISTS messages_on_channels ON messages (business_id, id) WHERE conversation_id IS NOT NULL;
--bun:split
CREATE INDEX IF NOT EXISTS credentials_revoked ON credentials (revoked_at) WHERE revoked_at IS NOT NULL;
--bun:split
CREATE TABLE IF NOT EXISTS idempotency_keys (
    business_id  TEXT NOT NULL,
    key          TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    run_id       TEXT NOT NULL,
    answer       TEXT,
    expires_at   BIGINT NOT NULL,
    PRIMARY KEY (business_id, key)
);
--bun:split
CREATE UNIQUE INDEX IF NOT EXISTS idempotency_key_of_run ON idempotency_keys (run_id);
--bun:split
CREATE INDEX IF NOT EXISTS idempotency_keys_expiring ON idempotency_keys (expires_at);
