-- The first attempt of most deliveries is the only one, and known when the delivery's row is made (decision 19): it stands there, as a
-- document. All other attempts have rows of their own.

ALTER TABLE deliveries ADD COLUMN first_attempt TEXT;
