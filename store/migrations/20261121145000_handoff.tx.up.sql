-- Whether an agent's model may ask for a person.

ALTER TABLE agents ADD COLUMN handoff BOOLEAN NOT NULL DEFAULT FALSE;
