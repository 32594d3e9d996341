-- How a channel shows a reply besides its text, as JSON.

ALTER TABLE messages ADD COLUMN rendering TEXT;
