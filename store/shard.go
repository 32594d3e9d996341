package store

import (
	"context"
	"errors"
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
	err = s.inTxOn(ctx, s.leases, func(ctx context.Context, t *tx) error {
		held = nil
		_, err := t.NewRaw("INSERT INTO replicas (id, alive_until) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until",
			replica, t.now.Add(ShardLease)).Exec(ctx)
		if err != nil {
			return err
		}
		if held, err = s.renew(ctx, t, replica); err != nil {
			return err
		}
		_, err = t.NewRaw("DELETE FROM replicas WHERE id IN (SELECT id FROM replicas WHERE alive_until < ? ORDER BY id"+
			s.locking("UPDATE SKIP LOCKED")+")", t.now).Exec(ctx) // one that is locked is about to say that it lives
		if err != nil {
			return err
		}
		var alive int
		if err := t.NewRaw("SELECT COUNT(*) FROM replicas").Scan(ctx, &alive); err != nil {
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

// inTx runs a transaction of its own beside the batcher's, and repeats it where the database rolled it back for the sake of another
// one. What locks many rows belongs here: in a batch it would hold them while other writes wait for theirs.
func (s *Store) inTx(ctx context.Context, do func(ctx context.Context, t *tx) error) error {
	return s.inTxOn(ctx, s.db, do)
}

func (s *Store) inTxOn(ctx context.Context, db *bun.DB, do func(ctx context.Context, t *tx) error) error {
	for collisions := 0; ; collisions++ {
		var over []*Delivery
		err := db.RunInTx(ctx, nil, func(ctx context.Context, bunTx bun.Tx) error {
			t := &tx{Tx: bunTx, remote: s.remote(), now: s.Now()}
			err := do(ctx, t)
			if err == nil {
				err = t.noteChanges(ctx)
			}
			over = t.over
			return err
		})
		if err == nil || lost(err) { // then they may have ended
			s.tellEnded(over)
		}
		if !s.remote() || !collided(err) || collisions >= maxCollisions {
			return err
		}
	}
}

// locking is the clause with which a query locks what it reads, where there are other writers.
func (s *Store) locking(how string) string {
	if s.remote() {
		return " FOR " + how
	}
	return ""
}

// KeepShards renews holds, and says nothing of whether their replica lives: for one that is about to end.
func (s *Store) KeepShards(ctx context.Context, holds []Hold) error {
	err := s.inTxOn(ctx, s.leases, func(ctx context.Context, t *tx) error {
		good, err := stillHeld(ctx, t, s.remote(), holds)
		if err != nil || len(good) == 0 {
			return err
		}
		_, err = t.NewRaw("UPDATE shards SET held_until = ? WHERE shard IN (?) AND held_until > ?", t.now.Add(s.shardLease()), bun.List(good), t.now).Exec(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("keep %d shards: %w", len(holds), err)
	}
	return nil
}

// renew passes over a shard that is locked: it is being handed back, and may be for long.
func (s *Store) renew(ctx context.Context, t *tx, replica string) (held []Hold, err error) {
	err = t.NewRaw("UPDATE shards SET held_until = ? WHERE shard IN (SELECT shard FROM shards WHERE owner = ? AND held_until > ? ORDER BY shard"+
		s.locking("NO KEY UPDATE SKIP LOCKED")+") RETURNING shard, token", t.now.Add(s.shardLease()), replica, t.now).Scan(ctx, &held)
	return held, err
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
	err := s.inTx(ctx, func(ctx context.Context, t *tx) error {
		taken = nil
		free := t.NewSelect().ModelTableExpr("shards").Column("shard").Order("shard").Limit(int64(limit))
		if s.Shared() {
			free = free.Where("held_until <= ?", t.now).For("UPDATE SKIP LOCKED")
		}
		var shards []int
		if err := free.Scan(ctx, &shards); err != nil || len(shards) == 0 {
			return err
		}
		err := t.NewRaw("UPDATE shards SET owner = ?, token = token + 1, held_until = ? WHERE shard IN (?) RETURNING shard, token",
			replica, t.now.Add(s.shardLease()), bun.List(shards)).Scan(ctx, &taken)
		if err != nil {
			return err
		}
		return s.freeDeliveries(ctx, t, shards)
	})
	if err != nil {
		return nil, fmt.Errorf("take %d shards for %s: %w", limit, replica, err)
	}
	return taken, nil
}

// GiveShards hands shards back, with what is still in flight there, for another replica to take at once. Each goes in a commit of
// its own: nobody who waits for one of them holds up another.
func (s *Store) GiveShards(ctx context.Context, holds []Hold) error {
	var errs []error
	for _, h := range holds {
		if err := s.giveShard(ctx, h); err != nil {
			errs = append(errs, fmt.Errorf("give back shard %d: %w", h.Shard, err))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) giveShard(ctx context.Context, hold Hold) error {
	return s.inTx(ctx, func(ctx context.Context, t *tx) error {
		var mine []int
		err := t.NewRaw("SELECT shard FROM shards WHERE shard = ? AND token = ?"+s.locking("UPDATE"), hold.Shard, hold.Token).Scan(ctx, &mine)
		if err != nil || len(mine) == 0 {
			return err
		}
		if err := s.freeDeliveries(ctx, t, mine); err != nil {
			return err
		}
		_, err = t.NewRaw("UPDATE shards SET owner = '', token = token + 1, held_until = 0 WHERE shard = ?", hold.Shard).Exec(ctx)
		return err
	})
}

// Leave says that the replica is gone: the others need not wait to find out.
func (s *Store) Leave(ctx context.Context, replica string) error {
	_, err := s.leases.NewRaw("DELETE FROM replicas WHERE id = ?", replica).Exec(ctx)
	return err
}

// freeDeliveries frees what is in flight in shards: for those never tried it is their sequence that counts from now on. What is
// leased has an instant: a backlog that is due at 0, however long, is passed over in the index.
func (s *Store) freeDeliveries(ctx context.Context, t *tx, shards []int) error {
	if err := s.unfoldAll(ctx, t, true, "", "shard IN (?)", bun.List(shards)); err != nil {
		return err
	}
	_, err := t.NewRaw(`UPDATE deliveries AS delivery SET leased = ?, next_attempt_at = `+dueAgainSQL+`
		WHERE id IN (SELECT id FROM deliveries WHERE leased AND next_attempt_at > 0 AND endpoint_id IN (SELECT id FROM endpoints WHERE shard IN (?))
			ORDER BY id`+s.locking("UPDATE")+`)`, false, bun.List(shards)).Exec(ctx)
	if err != nil {
		return fmt.Errorf("free the deliveries of %d shards: %w", len(shards), err)
	}
	return nil
}

// stillHeld is which of the holds are still good. On PostgreSQL they stay so until the transaction ends: whoever takes or gives a
// shard locks its key, and only they do; to renew it does not wait for this, nor this for that.
func stillHeld(ctx context.Context, tx bun.IDB, lock bool, holds []Hold) ([]int, error) {
	if len(holds) == 0 {
		return nil, nil
	}
	q := tx.NewSelect().ModelTableExpr("shards").Column("shard", "token").Order("shard")
	if lock {
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
