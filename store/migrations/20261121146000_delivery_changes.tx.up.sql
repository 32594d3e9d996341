-- Changes of deliveries that were made some time before (store/change.go): the live list finds them here, and all others by their
-- ids. Kept for an hour.

CREATE TABLE IF NOT EXISTS delivery_changes (
    business_id TEXT NOT NULL,
    changed_at  BIGINT NOT NULL,
    delivery_id TEXT NOT NULL,
    PRIMARY KEY (business_id, changed_at, delivery_id)
);
--bun:split
CREATE INDEX IF NOT EXISTS delivery_changes_by_age ON delivery_changes (changed_at);
