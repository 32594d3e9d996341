-- One row a delivery (decision 21): it waits, and keeps what came of it. Of the four kinds of rows that there were (fan-outs, leased
-- rows, rows that wait, first attempts as documents) one is left. Who wants what is looked up by business, type and agent.

ALTER TABLE deliveries RENAME TO deliveries_before;
--bun:split
ALTER TABLE attempts RENAME TO attempts_before;
--bun:split
-- A test stands behind the last event of before it: it had no number.
UPDATE test_events SET seq = COALESCE((SELECT e.seq FROM events e WHERE e.business_id = test_events.business_id AND e.id < test_events.id ORDER BY e.id DESC LIMIT 1),
    (SELECT b.pruned_seq FROM businesses b WHERE b.id = test_events.business_id), 0);
--bun:split
UPDATE deliveries_before SET seq = (SELECT v.seq FROM test_events v WHERE v.id = deliveries_before.event_id)
    WHERE event_id IN (SELECT id FROM test_events);
--bun:split
CREATE TABLE deliveries (
    endpoint_id    TEXT NOT NULL,
    seq            BIGINT NOT NULL,
    event_id       TEXT NOT NULL,
    business_id    TEXT NOT NULL,
    shard          BIGINT NOT NULL,
    type           TEXT NOT NULL,
    lane           TEXT NOT NULL,
    status         TEXT NOT NULL,
    due            BIGINT,
    epoch          BIGINT NOT NULL,
    generation     BIGINT NOT NULL DEFAULT 0,
    trigger_name   TEXT NOT NULL DEFAULT 'automatic',
    base           BIGINT NOT NULL DEFAULT 0,
    attempts       BIGINT NOT NULL DEFAULT 0,
    replay_id      TEXT,
    created_at     BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    started_at     BIGINT,
    duration_ms    BIGINT,
    status_code    BIGINT,
    error          TEXT,
    dns_ms         BIGINT,
    connect_ms     BIGINT,
    tls_ms         BIGINT,
    first_byte_ms  BIGINT,
    remote_address TEXT,
    next_attempt_at BIGINT,
    old_id         TEXT,
    response_body  TEXT,
    PRIMARY KEY (endpoint_id, seq, event_id)
);
--bun:split
CREATE TABLE attempts (
    endpoint_id     TEXT NOT NULL,
    seq             BIGINT NOT NULL,
    event_id        TEXT NOT NULL,
    number          BIGINT NOT NULL,
    trigger_name    TEXT NOT NULL,
    started_at      BIGINT NOT NULL,
    duration_ms     BIGINT NOT NULL,
    status_code     BIGINT,
    error           TEXT,
    dns_ms          BIGINT,
    connect_ms      BIGINT,
    tls_ms          BIGINT,
    first_byte_ms   BIGINT,
    remote_address  TEXT,
    next_attempt_at BIGINT,
    response_body   TEXT,
    PRIMARY KEY (endpoint_id, seq, event_id, number)
);
--bun:split
CREATE TABLE wants (
    business_id TEXT NOT NULL,
    type        TEXT NOT NULL,
    agent_id    TEXT NOT NULL,
    endpoint_id TEXT NOT NULL,
    enabled     BOOLEAN NOT NULL,
    epoch       BIGINT NOT NULL,
    PRIMARY KEY (business_id, type, agent_id, endpoint_id)
);
--bun:split
ALTER TABLE endpoints ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0;
--bun:split
ALTER TABLE endpoints ADD COLUMN unswept BOOLEAN NOT NULL DEFAULT FALSE;
--bun:split
ALTER TABLE endpoints ADD COLUMN over_seq BIGINT NOT NULL DEFAULT 0;
--bun:split
ALTER TABLE endpoints ADD COLUMN over_at BIGINT NOT NULL DEFAULT 0;
--bun:split
CREATE INDEX endpoints_unswept ON endpoints (business_id, id) WHERE unswept;
--bun:split
INSERT INTO wants (business_id, type, agent_id, endpoint_id, enabled, epoch)
    SELECT DISTINCT e.business_id, t.value, COALESCE(e.agent_id, ''), e.id, e.status = 'enabled', 0
    FROM endpoints e, json_each(e.events) t WHERE e.deleted_at IS NULL;
--bun:split
INSERT INTO deliveries (endpoint_id, seq, event_id, business_id, shard, type, lane, status, due, epoch, trigger_name, base, attempts, replay_id,
        created_at, updated_at, old_id)
    SELECT d.endpoint_id, d.seq, d.event_id, d.business_id, COALESCE(e.shard, 0),
        COALESCE((SELECT v.type FROM events v WHERE v.id = d.event_id), (SELECT v.type FROM test_events v WHERE v.id = d.event_id), ''), d.lane,
        CASE WHEN d.next_attempt_at IS NULL OR e.id IS NOT NULL OR d.status = 'delivered' THEN d.status WHEN d.attempts = 0 THEN 'skipped' ELSE 'failed' END,
        CASE WHEN d.next_attempt_at IS NULL OR e.id IS NULL THEN NULL WHEN d.attempts = 0 AND d.trigger_name = 'automatic' THEN 0
            WHEN d.leased THEN d.updated_at ELSE d.next_attempt_at END,
        CASE WHEN e.status = 'disabled' OR e.deleted_at IS NOT NULL THEN -1 ELSE 0 END,
        d.trigger_name, d.base, d.attempts, d.replay_id, d.created_at, d.updated_at, d.id
    FROM deliveries_before d LEFT JOIN endpoints e ON e.id = d.endpoint_id;
--bun:split
INSERT INTO deliveries (endpoint_id, seq, event_id, business_id, shard, type, lane, status, due, epoch, created_at, updated_at, old_id)
    SELECT json_extract(l.value, '$[1]'), f.seq, f.event_id, f.business_id, f.shard, COALESCE((SELECT v.type FROM events v WHERE v.id = f.event_id), ''), f.lane,
        'pending', 0, CASE WHEN e.status = 'disabled' OR e.deleted_at IS NOT NULL THEN -1 ELSE 0 END, f.created_at, f.created_at, json_extract(l.value, '$[0]')
    FROM fan_outs f, json_each(f.deliveries) l, endpoints e WHERE e.id = json_extract(l.value, '$[1]') AND NOT EXISTS (SELECT 1 FROM deliveries_before d WHERE d.id = json_extract(l.value, '$[0]'));
--bun:split
UPDATE endpoints SET unswept = TRUE WHERE id IN (SELECT endpoint_id FROM deliveries WHERE epoch < 0 AND due IS NOT NULL);
--bun:split
INSERT INTO attempts (endpoint_id, seq, event_id, number, trigger_name, started_at, duration_ms, status_code, error, dns_ms, connect_ms, tls_ms,
        first_byte_ms, remote_address, next_attempt_at, response_body)
    SELECT d.endpoint_id, d.seq, d.event_id, a.number, a.trigger_name, a.started_at, a.duration_ms, a.status_code, a.error, a.dns_ms, a.connect_ms,
        a.tls_ms, a.first_byte_ms, a.remote_address, a.next_attempt_at, a.response_body
    FROM attempts_before a JOIN deliveries_before d ON d.id = a.delivery_id;
--bun:split
INSERT INTO attempts (endpoint_id, seq, event_id, number, trigger_name, started_at, duration_ms, status_code, error, dns_ms, connect_ms, tls_ms,
        first_byte_ms, remote_address, next_attempt_at, response_body)
    SELECT d.endpoint_id, d.seq, d.event_id, 1, 'automatic', CAST(unixepoch(json_extract(d.first_attempt, '$.started_at')) AS BIGINT) * 1000000 + CASE WHEN instr(json_extract(d.first_attempt, '$.started_at'), '.') > 0 THEN CAST(substr(rtrim(substr(json_extract(d.first_attempt, '$.started_at'), instr(json_extract(d.first_attempt, '$.started_at'), '.') + 1), 'Z') || '000000', 1, 6) AS BIGINT) ELSE 0 END, json_extract(d.first_attempt, '$.duration_ms'), json_extract(d.first_attempt, '$.status_code'), json_extract(d.first_attempt, '$.error'), json_extract(d.first_attempt, '$.dns_ms'), json_extract(d.first_attempt, '$.connect_ms'), json_extract(d.first_attempt, '$.tls_ms'),
        json_extract(d.first_attempt, '$.first_byte_ms'), json_extract(d.first_attempt, '$.remote_address'), CAST(unixepoch(json_extract(d.first_attempt, '$.next_attempt_at')) AS BIGINT) * 1000000 + CASE WHEN instr(json_extract(d.first_attempt, '$.next_attempt_at'), '.') > 0 THEN CAST(substr(rtrim(substr(json_extract(d.first_attempt, '$.next_attempt_at'), instr(json_extract(d.first_attempt, '$.next_attempt_at'), '.') + 1), 'Z') || '000000', 1, 6) AS BIGINT) ELSE 0 END, json_extract(d.first_attempt, '$.response_body')
    FROM deliveries_before d WHERE d.first_attempt IS NOT NULL ON CONFLICT DO NOTHING;
--bun:split
DROP TABLE deliveries_before;
--bun:split
DROP TABLE attempts_before;
--bun:split
DROP TABLE fan_outs;
--bun:split
DROP TABLE delivery_changes;
--bun:split
CREATE INDEX deliveries_waiting ON deliveries (shard, endpoint_id, seq) WHERE due IS NOT NULL;
--bun:split
CREATE INDEX deliveries_due ON deliveries (shard, endpoint_id, due) WHERE due > 0;
--bun:split
CREATE INDEX deliveries_of_business ON deliveries (business_id, seq, endpoint_id);
--bun:split
CREATE INDEX deliveries_undelivered ON deliveries (business_id, status, seq) WHERE status IN ('failed', 'skipped');
--bun:split
CREATE INDEX deliveries_undelivered_to ON deliveries (endpoint_id, status, seq) WHERE status IN ('failed', 'skipped');
--bun:split
CREATE UNIQUE INDEX deliveries_by_old_id ON deliveries (old_id) WHERE old_id IS NOT NULL;
