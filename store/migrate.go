package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/migrate"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// bringUp brings the schema to this binary's version. Every migration is one transaction of statements that can be run
// again, and counts as applied only after it: an interrupted one is finished by the next start. A database that a newer
// binary has touched is refused, since nothing is known of what its tables mean.
func (s *Store) bringUp(ctx context.Context) error {
	if !s.remote() {
		return migrateUp(ctx, s.db)
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer func() { _ = conn.Close() }()
	for locked := false; !locked; { // by asking again and again: a statement that waits would run into the driver's timeout
		if err := conn.NewRaw("SELECT pg_try_advisory_lock(?)", migrationLock).Scan(ctx, &locked); err != nil {
			return fmt.Errorf("wait for another server's migration: %w", err)
		}
		if !locked {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	err = migrateUp(ctx, s.db)
	_, unlock := conn.NewRaw("SELECT pg_advisory_unlock(?)", migrationLock).Exec(context.WithoutCancel(ctx))
	return errors.Join(err, unlock)
}

// migrationLock is the advisory lock under which one of the servers that start at once migrates; the others wait, and find it
// done. It goes with its connection: a server that dies holds up nobody.
const migrationLock = 0x7061726c6579 // "parley"

func migrateUp(ctx context.Context, db *bun.DB) error {
	migrations := migrate.NewMigrations()
	if err := migrations.Discover(migrationFiles); err != nil {
		return fmt.Errorf("read the migrations of this binary: %w", err)
	}
	m := migrate.NewMigrator(db, migrations, migrate.WithTableName("migrations"), migrate.WithLocksTableName("migration_locks"),
		migrate.WithMarkAppliedOnSuccess(true), migrate.WithUpsert(true))
	if err := m.Init(ctx); err != nil {
		return fmt.Errorf("prepare the migrations table: %w", err)
	}
	newer, err := m.MissingMigrations(ctx)
	if err != nil {
		return fmt.Errorf("read the applied migrations: %w", err)
	}
	if len(newer) > 0 {
		names := make([]string, len(newer))
		for i, n := range newer {
			names[i] = n.Name
		}
		return fmt.Errorf("the database was made by a newer version of Parley (it has migration %s, which this binary does not know): run that version",
			strings.Join(names, ", "))
	}
	if _, err := m.Migrate(ctx); err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return nil
}
