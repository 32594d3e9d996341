-- Every filter of the feed and of the runs has an index that holds what it selects in its order, and nothing else: what matches three
-- events of a million is found as quickly as what matches all. Session and conversation select alone; an agent's index goes on with
-- the type, that of channels too, and so they select with types as well (store/event.go). Runs that finished are the rule, and come
-- from the index of all.
--
-- What of events was known by their documents alone, who spoke, becomes a column: it stands within the first 200 bytes of each
-- document, before anything that a business chose.

ALTER TABLE events ADD COLUMN direction TEXT NOT NULL DEFAULT '';
--bun:split
UPDATE events SET direction = CASE WHEN substr(body, 1, 200) LIKE '%"direction":"inbound"%' THEN 'inbound' ELSE 'outbound' END;
--bun:split
ALTER TABLE test_events ADD COLUMN direction TEXT NOT NULL DEFAULT '';
--bun:split
UPDATE test_events SET direction = CASE WHEN substr(body, 1, 200) LIKE '%"direction":"inbound"%' THEN 'inbound' ELSE 'outbound' END;
--bun:split
CREATE INDEX IF NOT EXISTS events_of_session ON events (session_id, seq) WHERE session_id IS NOT NULL;
--bun:split
CREATE INDEX IF NOT EXISTS events_of_conversation ON events (conversation_id, seq) WHERE conversation_id IS NOT NULL;
--bun:split
CREATE INDEX IF NOT EXISTS events_of_agent ON events (business_id, agent_id, type, seq) WHERE agent_id IS NOT NULL;
--bun:split
CREATE INDEX IF NOT EXISTS events_on_channel ON events (business_id, channel, type, seq);
--bun:split
CREATE INDEX IF NOT EXISTS runs_of_agent ON runs (business_id, agent_id, id);
--bun:split
CREATE INDEX IF NOT EXISTS runs_in_status ON runs (business_id, status, id) WHERE status <> 'finished';
