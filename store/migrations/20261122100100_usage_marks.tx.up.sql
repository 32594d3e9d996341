-- Usage is summed up by the hour while rows are there, too (store/usage.go): what has an id up to the mark of its kind stands in
-- usage_hours, what has a later one in its row alone.

CREATE TABLE IF NOT EXISTS usage_marks (
    kind TEXT PRIMARY KEY,
    id   TEXT NOT NULL
);
--bun:split
INSERT INTO usage_marks (kind, id) VALUES ('run', ''), ('message', '') ON CONFLICT (kind) DO NOTHING;
--bun:split
CREATE INDEX IF NOT EXISTS messages_of_conversations ON messages (id) WHERE conversation_id IS NOT NULL;
