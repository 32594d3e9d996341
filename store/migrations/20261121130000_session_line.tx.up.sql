-- The turns that wait for a session, on any replica: who came first goes first. A ticket is a place in the session's line.

CREATE TABLE IF NOT EXISTS session_line (
    session_id  TEXT NOT NULL,
    ticket      TEXT NOT NULL,
    alive_until BIGINT NOT NULL,
    PRIMARY KEY (session_id, ticket)
);
