package store

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/uptrace/bun"
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
const ShardLease = 8 * time.Second

// forever is the lease where there is nobody to share with.
const forever = 100 * 365 * 24 * time.Hour

// Shared says whether other replicas may work on this database: those of PostgreSQL share its shards by leases that must be
// renewed. The one server of a SQLite file has them all, from its start to its end.
func (s *Store) Shared() bool { return s.remote() }

// RenewShards says that the replica lives, and renews what it holds. It returns that, and how many shards are its fair share.
func (s *Store) RenewShards(ctx context.Context, replica string) (held []Hold, share int, err error) {
	if err := s.syncClock(ctx); err != nil {
		return nil, 0, err
	}
	now := s.Now()
	err = s.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.NewRaw("INSERT INTO replicas (id, alive_until) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until",
			replica, now.Add(ShardLease)).Exec(ctx)
		if err != nil {
			return err
		}
		err = tx.NewRaw("UPDATE shards SET held_until = ? WHERE owner = ? AND held_until > ? RETURNING shard, token",
			now.Add(s.shardLease()), replica, now).Scan(ctx, &held)
		if err != nil {
			return err
		}
		if _, err := tx.NewRaw("DELETE FROM replicas WHERE alive_until < ?", now).Exec(ctx); err != nil {
			return err
		}
		var alive int
		if err := tx.NewRaw("SELECT COUNT(*) FROM replicas").Scan(ctx, &alive); err != nil {
			return err
		}
		share = (Shards + alive - 1) / alive
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("renew the shards of %s: %w", replica, err)
	}
	return held, share, nil
}

func (s *Store) shardLease() time.Duration {
	if s.Shared() {
		return ShardLease
	}
	return forever
}

// TakeShards takes up to so many shards that nobody holds any longer. What their last holder left in flight is free again in
// the same commit. On SQLite everything is free: whoever held it is gone.
func (s *Store) TakeShards(ctx context.Context, replica string, limit int) ([]Hold, error) {
	var taken []Hold
	err := s.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		taken = nil
		now := s.Now()
		free := tx.NewSelect().ModelTableExpr("shards").Column("shard").Order("shard").Limit(int64(limit))
		if s.Shared() {
			free = free.Where("held_until <= ?", now).For("UPDATE SKIP LOCKED")
		}
		var shards []int
		if err := free.Scan(ctx, &shards); err != nil || len(shards) == 0 {
			return err
		}
		err := tx.NewRaw("UPDATE shards SET owner = ?, token = token + 1, held_until = ? WHERE shard IN (?) RETURNING shard, token",
			replica, now.Add(s.shardLease()), bun.List(shards)).Scan(ctx, &taken)
		if err != nil {
			return err
		}
		return freeDeliveries(ctx, tx, shards)
	})
	if err != nil {
		return nil, fmt.Errorf("take %d shards for %s: %w", limit, replica, err)
	}
	return taken, nil
}

// GiveShards hands shards back, with what is still in flight there, for another replica to take at once.
func (s *Store) GiveShards(ctx context.Context, holds []Hold) error {
	err := s.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		lock := ""
		if s.remote() { // what is being written under these holds comes first
			lock = "UPDATE"
		}
		mine, err := stillHeldFor(ctx, tx, lock, holds)
		if err != nil || len(mine) == 0 {
			return err
		}
		if err := freeDeliveries(ctx, tx, mine); err != nil {
			return err
		}
		_, err = tx.NewRaw("UPDATE shards SET owner = '', token = token + 1, held_until = 0 WHERE shard IN (?)", bun.List(mine)).Exec(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("give back %d shards: %w", len(holds), err)
	}
	return nil
}

// Leave says that the replica is gone: the others need not wait to find out.
func (s *Store) Leave(ctx context.Context, replica string) error {
	_, err := s.db.NewRaw("DELETE FROM replicas WHERE id = ?", replica).Exec(ctx)
	return err
}

// freeDeliveries frees what is in flight in shards: for those never tried it is their sequence that counts from now on.
func freeDeliveries(ctx context.Context, tx bun.IDB, shards []int) error {
	_, err := tx.NewRaw(`UPDATE deliveries SET leased = ?, next_attempt_at = CASE WHEN attempts = 0 AND trigger_name = 'automatic' THEN 0 ELSE created_at END
		WHERE leased AND next_attempt_at IS NOT NULL AND endpoint_id IN (SELECT id FROM endpoints WHERE shard IN (?))`,
		false, bun.List(shards)).Exec(ctx)
	if err != nil {
		return fmt.Errorf("free the deliveries of %d shards: %w", len(shards), err)
	}
	return nil
}

// stillHeld is which of the holds are still good. On PostgreSQL they stay so until the transaction ends; it keeps nobody from
// renewing them meanwhile, however long it takes.
func stillHeld(ctx context.Context, tx bun.IDB, lock bool, holds []Hold) ([]int, error) {
	if lock {
		return stillHeldFor(ctx, tx, "KEY SHARE", holds)
	}
	return stillHeldFor(ctx, tx, "", holds)
}

func stillHeldFor(ctx context.Context, tx bun.IDB, lock string, holds []Hold) ([]int, error) {
	if len(holds) == 0 {
		return nil, nil
	}
	q := tx.NewSelect().ModelTableExpr("shards").Column("shard", "token").Order("shard")
	if lock != "" {
		q = q.For(lock)
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

// holdsOf are the holds under which jobs were read, each once.
func holdsOf(jobs []*Job) []Hold {
	var holds []Hold
	for _, j := range jobs {
		if !slices.Contains(holds, j.Hold()) {
			holds = append(holds, j.Hold())
		}
	}
	return holds
}
