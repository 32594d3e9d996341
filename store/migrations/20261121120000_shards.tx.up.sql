-- Who does which shard's deliveries (architecture, point 5), and which servers are alive to share them. An untried delivery
-- that nobody holds is due at 0: its turn is by its sequence alone, whatever the clocks of those who wrote it.

CREATE TABLE IF NOT EXISTS shards (
    shard      BIGINT PRIMARY KEY,
    owner      TEXT NOT NULL,
    token      BIGINT NOT NULL,
    held_until BIGINT NOT NULL
);
--bun:split
INSERT INTO shards (shard, owner, token, held_until) VALUES
    (0, '', 0, 0), (1, '', 0, 0), (2, '', 0, 0), (3, '', 0, 0), (4, '', 0, 0), (5, '', 0, 0), (6, '', 0, 0), (7, '', 0, 0),
    (8, '', 0, 0), (9, '', 0, 0), (10, '', 0, 0), (11, '', 0, 0), (12, '', 0, 0), (13, '', 0, 0), (14, '', 0, 0), (15, '', 0, 0)
    ON CONFLICT DO NOTHING;
--bun:split
CREATE TABLE IF NOT EXISTS replicas (
    id          TEXT PRIMARY KEY,
    alive_until BIGINT NOT NULL
);
--bun:split
UPDATE deliveries SET next_attempt_at = 0 WHERE attempts = 0 AND NOT leased AND next_attempt_at IS NOT NULL;
