package hook

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"parley/store"
)

// Shards is into how many parts the businesses are divided: a part's deliveries are done by one replica at a time.
const Shards = 16

// ShardOf is the shard of a business.
func ShardOf(business string) int { return int(crc32.ChecksumIEEE([]byte(business)) % Shards) }

// Hold is a replica's hold on a shard, until another one takes it: each hold has a token of its own, and what is written
// under an older one changes nothing.
type Hold struct {
	Shard int   `bun:"shard"`
	Token int64 `bun:"token"`
}

// ShardLease is how long a hold is good for without being renewed.
const ShardLease = 3 * time.Second

// forever is the lease where there is nobody to share with.
const forever = 100 * 365 * 24 * time.Hour

// Shared says whether other replicas may work on this database: those of PostgreSQL share its shards by leases that must be
// renewed. The one server of a SQLite file has them all, from its start to its end.
func (h *Hooks) Shared() bool { return h.store.Remote() }

// RenewShards says that the replica lives, and renews what it holds: in one statement, for it must
// be done in time. It returns that, and how many shards are its fair share. A hold that is over is
// renewed, too, unless another replica has taken the shard. It is for replicas that share: those of
// PostgreSQL.
func (h *Hooks) RenewShards(ctx context.Context, replica string) (held []Hold, share int, err error) {
	if err := h.store.SyncClock(ctx); err != nil {
		return nil, 0, err
	}
	now := h.store.Now()
	until := now.Add(h.shardLease())
	var rows []struct {
		Shard *int  `bun:"shard"`
		Token int64 `bun:"token"`
		Alive int   `bun:"alive"`
	}
	// A replica's row that is locked is about to say that it lives; a shard that is locked is being handed back.
	err = h.store.Leases().NewRaw(`WITH mine AS (INSERT INTO replicas (id, alive_until) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until),
		dead AS (DELETE FROM replicas WHERE id IN (SELECT id FROM replicas WHERE alive_until < ? AND id <> ? ORDER BY id FOR UPDATE SKIP LOCKED)),
		kept AS (UPDATE shards SET held_until = ? WHERE shard IN (SELECT shard FROM shards WHERE owner = ? ORDER BY shard
			FOR NO KEY UPDATE SKIP LOCKED) RETURNING shard, token)
		SELECT kept.shard, COALESCE(kept.token, 0) AS token, (SELECT COUNT(*) FROM replicas WHERE alive_until >= ? AND id <> ?) + 1 AS alive
		FROM (SELECT 1) AS one LEFT JOIN kept ON TRUE`,
		replica, until, now, replica, until, replica, now, replica).Scan(ctx, &rows)
	if err != nil || len(rows) == 0 {
		return nil, 0, fmt.Errorf("renew the shards of %s: %w", replica, err)
	}
	for _, r := range rows {
		if r.Shard != nil {
			held = append(held, Hold{*r.Shard, r.Token})
		}
	}
	return held, (Shards + rows[0].Alive - 1) / rows[0].Alive, nil
}

// KeepShards renews holds, and says nothing of whether their replica lives: for one that is about to end.
func (h *Hooks) KeepShards(ctx context.Context, holds []Hold) error {
	err := h.store.InLease(ctx, func(ctx context.Context, t *store.Tx) error {
		good, err := stillHeld(ctx, t, holds)
		if err != nil || len(good) == 0 {
			return err
		}
		_, err = t.NewRaw("UPDATE shards SET held_until = ? WHERE shard IN (?) AND held_until > ?", t.Now.Add(h.shardLease()), bun.List(good), t.Now).Exec(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("keep %d shards: %w", len(holds), err)
	}
	return nil
}

func (h *Hooks) shardLease() time.Duration {
	if h.Shared() {
		return ShardLease
	}
	return forever
}

// TakeShards takes up to so many shards that nobody holds any longer. There is nothing else to be freed: the new holder begins
// at the first rows that wait. On SQLite everything is free: whoever held it is gone.
func (h *Hooks) TakeShards(ctx context.Context, replica string, limit int) ([]Hold, error) {
	var taken []Hold
	err := h.store.InTx(ctx, func(ctx context.Context, t *store.Tx) error {
		taken = nil
		free := t.NewSelect().ModelTableExpr("shards").Column("shard").Order("shard").Limit(int64(limit))
		if h.Shared() {
			free = free.Where("held_until <= ?", t.Now).For("UPDATE SKIP LOCKED")
		}
		var shards []int
		if err := free.Scan(ctx, &shards); err != nil || len(shards) == 0 {
			return err
		}
		return t.NewRaw("UPDATE shards SET owner = ?, token = token + 1, held_until = ? WHERE shard IN (?) RETURNING shard, token",
			replica, t.Now.Add(h.shardLease()), bun.List(shards)).Scan(ctx, &taken)
	})
	if err != nil {
		return nil, fmt.Errorf("take %d shards for %s: %w", limit, replica, err)
	}
	return taken, nil
}

// GiveShards hands shards back, for another replica to take at once.
func (h *Hooks) GiveShards(ctx context.Context, holds []Hold) error {
	err := h.store.InTx(ctx, func(ctx context.Context, t *store.Tx) error {
		for _, x := range slices.SortedFunc(slices.Values(holds), func(a, b Hold) int { return a.Shard - b.Shard }) {
			var mine []int // locked by its key: what is being written under the hold comes before
			err := t.NewRaw("SELECT shard FROM shards WHERE shard = ? AND token = ?"+h.store.Locking("UPDATE"), x.Shard, x.Token).Scan(ctx, &mine)
			if err != nil {
				return err
			}
			if len(mine) == 0 {
				continue
			}
			if _, err := t.NewRaw("UPDATE shards SET owner = '', token = token + 1, held_until = 0 WHERE shard = ?", x.Shard).Exec(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("give back %d shards: %w", len(holds), err)
	}
	return nil
}

// Leave says that the replica is gone: the others need not wait to find out.
func (h *Hooks) Leave(ctx context.Context, replica string) error {
	_, err := h.store.Leases().NewRaw("DELETE FROM replicas WHERE id = ?", replica).Exec(ctx)
	return err
}

// stillHeld is which of the holds are still good. On PostgreSQL they stay so until the transaction ends: whoever takes or gives a
// shard locks its key, and only they do; to renew it does not wait for this, nor this for that.
func stillHeld(ctx context.Context, t *store.Tx, holds []Hold) ([]int, error) {
	if len(holds) == 0 {
		return nil, nil
	}
	q := t.NewSelect().ModelTableExpr("shards").Column("shard", "token").Order("shard")
	if t.Remote() {
		q = q.For("KEY SHARE")
	}
	shards := make([]int, len(holds))
	for i, h := range holds {
		shards[i] = h.Shard
	}
	var now []Hold
	if err := q.Where("shard IN (?)", bun.List(shards)).Scan(ctx, &now); err != nil {
		return nil, fmt.Errorf("read who holds %d shards: %w", len(shards), err)
	}
	var good []int
	for _, h := range now {
		if slices.Contains(holds, h) {
			good = append(good, h.Shard)
		}
	}
	return good, nil
}
