package hook

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"parley/store"
)

// Measure is what is told of some shards.
type Measure struct {
	// Since when the delivery waits that has waited longest for its turn; 0: none waits.
	Oldest  store.Time
	Failing int // enabled endpoints that fail
}

// Measure reads how some shards do. As Lanes, it steps from endpoint to endpoint in the index of
// what waits, and reads a row or two of each.
func (h *Hooks) Measure(ctx context.Context, shards []int) (m Measure, err error) {
	if len(shards) == 0 {
		return m, nil
	}
	now := h.store.Now()
	err = h.store.Reader().NewRaw(`WITH RECURSIVE lane(shard, endpoint_id) AS (
			SELECT s.shard, (SELECT MIN(d.endpoint_id) FROM deliveries d WHERE d.shard = s.shard AND d.due IS NOT NULL) FROM shards s WHERE s.shard IN (?)
			UNION ALL
			SELECT lane.shard, (SELECT MIN(d.endpoint_id) FROM deliveries d WHERE d.shard = lane.shard AND d.due IS NOT NULL AND d.endpoint_id > lane.endpoint_id)
				FROM lane WHERE lane.endpoint_id IS NOT NULL
		), since AS (
			SELECT (SELECT d.created_at FROM deliveries d WHERE d.shard = lane.shard AND d.endpoint_id = lane.endpoint_id AND d.due IS NOT NULL AND d.due = 0
				AND d.seq > COALESCE((SELECT over_seq FROM endpoints WHERE id = lane.endpoint_id), 0) ORDER BY d.seq LIMIT 1) AS at FROM lane
			UNION ALL
			SELECT (SELECT d.due FROM deliveries d WHERE d.shard = lane.shard AND d.endpoint_id = lane.endpoint_id AND d.due > 0 AND d.due <= ? ORDER BY d.due LIMIT 1) FROM lane
		) SELECT COALESCE(MIN(at), 0) AS oldest, (SELECT COUNT(*) FROM endpoints WHERE failing_since IS NOT NULL AND shard IN (?)
			AND status = ? AND deleted_at IS NULL) AS failing FROM since`,
		bun.List(shards), now, bun.List(shards), store.Enabled).Scan(ctx, &m.Oldest, &m.Failing)
	if err != nil {
		return m, fmt.Errorf("measure what waits: %w", err)
	}
	return m, nil
}
