-- One text for SQLite and PostgreSQL. Instants are microseconds since the epoch (store.Time), lists and settings JSON in
-- TEXT, secrets sealed in BYTEA. There are no foreign keys: rows of a business are removed by age or never, and the hot
-- inserts need no look-ups. Each statement can be run again, so an interrupted migration is finished by the next start.

CREATE TABLE IF NOT EXISTS settings (
    name  TEXT PRIMARY KEY,
    value BYTEA NOT NULL
);
--bun:split
CREATE TABLE IF NOT EXISTS batches (
    id         TEXT PRIMARY KEY,
    created_at BIGINT NOT NULL
);
--bun:split
CREATE TABLE IF NOT EXISTS businesses (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    seq        BIGINT NOT NULL DEFAULT 0,
    pruned_seq BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL
);
--bun:split
CREATE TABLE IF NOT EXISTS credentials (
    id           TEXT PRIMARY KEY,
    business_id  TEXT NOT NULL,
    kind         TEXT NOT NULL,
    name         TEXT NOT NULL,
    scope        TEXT NOT NULL,
    hash         TEXT NOT NULL UNIQUE,
    prefix       TEXT NOT NULL,
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT,
    revoked_at   BIGINT
);
--bun:split
CREATE INDEX IF NOT EXISTS credentials_of_business ON credentials (business_id, id);
--bun:split
CREATE TABLE IF NOT EXISTS agents (
    id               TEXT NOT NULL,
    business_id      TEXT NOT NULL,
    name             TEXT NOT NULL,
    prompt           TEXT NOT NULL,
    model            TEXT NOT NULL,
    knowledge        TEXT NOT NULL,
    channel_profiles TEXT NOT NULL,
    on_concurrent    TEXT NOT NULL,
    version          BIGINT NOT NULL,
    created_at       BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL,
    deleted_at       BIGINT,
    PRIMARY KEY (business_id, id)
);
--bun:split
CREATE TABLE IF NOT EXISTS sessions (
    id            TEXT PRIMARY KEY,
    business_id   TEXT NOT NULL,
    agent_id      TEXT NOT NULL,
    channel       TEXT NOT NULL,
    last_sequence BIGINT NOT NULL,
    expires_at    BIGINT NOT NULL,
    run_id        TEXT,
    fence         BIGINT NOT NULL,
    locked_until  BIGINT,
    created_at    BIGINT NOT NULL
);
--bun:split
CREATE TABLE IF NOT EXISTS messages (
    id              TEXT PRIMARY KEY,
    business_id     TEXT NOT NULL,
    session_id      TEXT,
    conversation_id TEXT,
    run_id          TEXT,
    direction       TEXT NOT NULL,
    author          TEXT NOT NULL,
    text            TEXT NOT NULL,
    metadata        TEXT,
    sequence        BIGINT NOT NULL,
    created_at      BIGINT NOT NULL
);
--bun:split
CREATE INDEX IF NOT EXISTS messages_of_session ON messages (session_id, sequence) WHERE session_id IS NOT NULL;
--bun:split
CREATE TABLE IF NOT EXISTS runs (
    id              TEXT PRIMARY KEY,
    business_id     TEXT NOT NULL,
    agent_id        TEXT NOT NULL,
    session_id      TEXT,
    conversation_id TEXT,
    channel         TEXT NOT NULL,
    status          TEXT NOT NULL,
    model           TEXT NOT NULL,
    input_tokens    BIGINT NOT NULL,
    output_tokens   BIGINT NOT NULL,
    usage_source    TEXT NOT NULL,
    error_class     TEXT,
    message_id      TEXT NOT NULL,
    reply_id        TEXT,
    fence           BIGINT NOT NULL,
    owned_until     BIGINT NOT NULL,
    started_at      BIGINT NOT NULL,
    finished_at     BIGINT
);
--bun:split
CREATE INDEX IF NOT EXISTS runs_running ON runs (owned_until) WHERE status = 'running';
--bun:split
CREATE TABLE IF NOT EXISTS events (
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
CREATE UNIQUE INDEX IF NOT EXISTS events_of_business ON events (business_id, seq);
--bun:split
CREATE TABLE IF NOT EXISTS endpoints (
    id              TEXT PRIMARY KEY,
    business_id     TEXT NOT NULL,
    agent_id        TEXT,
    url             TEXT NOT NULL,
    events          TEXT NOT NULL,
    status          TEXT NOT NULL,
    disabled_reason TEXT,
    secrets         BYTEA NOT NULL,
    shard           BIGINT NOT NULL,
    created_at      BIGINT NOT NULL,
    deleted_at      BIGINT
);
--bun:split
CREATE INDEX IF NOT EXISTS endpoints_of_business ON endpoints (business_id, id) WHERE deleted_at IS NULL;
--bun:split
CREATE UNIQUE INDEX IF NOT EXISTS endpoint_of_agent ON endpoints (business_id, agent_id) WHERE agent_id IS NOT NULL AND deleted_at IS NULL;
--bun:split
CREATE TABLE IF NOT EXISTS deliveries (
    id              TEXT PRIMARY KEY,
    business_id     TEXT NOT NULL,
    endpoint_id     TEXT NOT NULL,
    event_id        TEXT NOT NULL,
    seq             BIGINT NOT NULL,
    lane            TEXT NOT NULL,
    status          TEXT NOT NULL,
    attempts        BIGINT NOT NULL,
    leased          BOOLEAN NOT NULL,
    next_attempt_at BIGINT,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL
);
--bun:split
CREATE UNIQUE INDEX IF NOT EXISTS delivery_of_event ON deliveries (event_id, endpoint_id);
--bun:split
CREATE INDEX IF NOT EXISTS deliveries_due ON deliveries (endpoint_id, next_attempt_at, seq) WHERE next_attempt_at IS NOT NULL;
--bun:split
CREATE INDEX IF NOT EXISTS deliveries_of_business ON deliveries (business_id, id);
--bun:split
CREATE INDEX IF NOT EXISTS deliveries_of_endpoint ON deliveries (endpoint_id, id);
--bun:split
CREATE TABLE IF NOT EXISTS attempts (
    delivery_id   TEXT NOT NULL,
    number        BIGINT NOT NULL,
    trigger_name  TEXT NOT NULL,
    started_at    BIGINT NOT NULL,
    duration_ms   BIGINT NOT NULL,
    status_code   BIGINT,
    error         TEXT,
    response_body TEXT,
    PRIMARY KEY (delivery_id, number)
);
