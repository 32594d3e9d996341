-- How many endpoints fail is told by /metrics: it is looked up every few seconds, whatever number of endpoints there are.

CREATE INDEX IF NOT EXISTS endpoints_failing ON endpoints (shard) WHERE failing_since IS NOT NULL;
