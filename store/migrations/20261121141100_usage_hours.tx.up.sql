-- What runs and messages that retention removed had used, by the hour in which they began (store/usage.go).

CREATE TABLE IF NOT EXISTS usage_hours (
    business_id   TEXT NOT NULL,
    hour          BIGINT NOT NULL,
    kind          TEXT NOT NULL,
    name          TEXT NOT NULL,
    direction     TEXT NOT NULL,
    count         BIGINT NOT NULL,
    input_tokens  BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    whole         BIGINT,
    rest          BIGINT,
    PRIMARY KEY (business_id, hour, kind, name, direction)
);
--bun:split
CREATE INDEX IF NOT EXISTS usage_hours_by_age ON usage_hours (hour);
