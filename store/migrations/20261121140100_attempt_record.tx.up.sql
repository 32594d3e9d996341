-- What an attempt's time went into, in milliseconds, who answered, and when the next one is due. A connection that was used
-- again has neither look-up, nor connect, nor TLS.

ALTER TABLE attempts ADD COLUMN dns_ms BIGINT;
--bun:split
ALTER TABLE attempts ADD COLUMN connect_ms BIGINT;
--bun:split
ALTER TABLE attempts ADD COLUMN tls_ms BIGINT;
--bun:split
ALTER TABLE attempts ADD COLUMN first_byte_ms BIGINT;
--bun:split
ALTER TABLE attempts ADD COLUMN remote_address TEXT;
--bun:split
ALTER TABLE attempts ADD COLUMN next_attempt_at BIGINT;
