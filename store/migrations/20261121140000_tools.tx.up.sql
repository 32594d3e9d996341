-- An agent's tools, and what the steps of a run were. Both are JSON, read and written whole.

ALTER TABLE agents ADD COLUMN tools TEXT NOT NULL DEFAULT '[]';
--bun:split
ALTER TABLE runs ADD COLUMN steps TEXT NOT NULL DEFAULT '[]';
