package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/migrate"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migrations that move JSON about, which the two databases take apart in words of their own.
//
//go:embed migrations/sqlite/*.sql
var sqliteMigrationFiles embed.FS

//go:embed migrations/postgres/*.sql
var postgresMigrationFiles embed.FS

// bringUp brings the schema to this binary's version. Every migration is one transaction with the mark that it was applied: an
// interrupted one is done by the next start. A database that a newer binary has touched is refused, since nothing is known of what
// its tables mean.
func (s *Store) bringUp(ctx context.Context) error {
	if !s.remote() {
		return migrateUp(ctx, s.db)
	}
	db, err := s.patientDB(ctx)
	if err != nil {
		return err
	}
	return errors.Join(s.migrateAlone(ctx, db), db.Close())
}

// migrateAlone migrates under the migration lock, all over one connection. It gives the lock back itself: a pooler may keep the
// session.
func (s *Store) migrateAlone(ctx context.Context, db *bun.DB) error {
	told := false
	for locked := false; ; { // by asking again and again: a statement would go on waiting there when this process is gone
		if err := db.NewRaw("SELECT pg_try_advisory_lock(?)", migrationLock).Scan(ctx, &locked); err != nil {
			return fmt.Errorf("wait for another server's migration: %w", err)
		}
		if locked {
			break
		}
		if !told {
			s.log.Info("wait for another server that migrates the database")
			told = true
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	err := refuseOldServers(ctx, db)
	if err == nil {
		err = migrateUp(ctx, db)
	}
	_, unlocking := db.ExecContext(ctx, "SELECT pg_advisory_unlock(?)", migrationLock)
	if err == nil && unlocking != nil {
		err = fmt.Errorf("give the migration lock back: %w", unlocking)
	}
	return err
}

// refuseOldServers refuses to migrate a database that a server is at work on whose deliveries were kept in other tables. One
// that was killed looks alive until its lease ends, which is waited for.
func refuseOldServers(ctx context.Context, db *bun.DB) error {
	for waited := false; ; waited = true {
		var old bool
		if err := db.NewRaw("SELECT to_regclass('fan_outs') IS NOT NULL AND to_regclass('replicas') IS NOT NULL").Scan(ctx, &old); err != nil || !old {
			return err
		}
		var left int64 // microseconds
		err := db.NewRaw(`SELECT COALESCE(MAX(alive_until), 0) - (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::BIGINT FROM replicas`).Scan(ctx, &left)
		switch {
		case err != nil:
			return fmt.Errorf("read which servers are alive: %w", err)
		case left <= 0:
			return nil
		case waited:
			return errors.New("a server of an earlier version is at work on this database: stop all of them, then start this one")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(left)*time.Microsecond + 100*time.Millisecond):
		}
	}
}

// migrationLock is the advisory lock under which one of the servers that start at once migrates; the others wait, and find it
// done. It goes with its connection: a server that dies holds up nobody.
const migrationLock = 0x7061726c6579 // "parley"

func migrateUp(ctx context.Context, db *bun.DB) error {
	migrations := migrate.NewMigrations()
	own := sqliteMigrationFiles
	if db.Dialect().Name() == dialect.PG {
		own = postgresMigrationFiles
	}
	if err := errors.Join(migrations.Discover(migrationFiles), migrations.Discover(own)); err != nil {
		return fmt.Errorf("read the migrations of this binary: %w", err)
	}
	m := migrate.NewMigrator(db, migrations, migrate.WithTableName("migrations"), migrate.WithLocksTableName("migration_locks"),
		migrate.WithMarkAppliedOnSuccess(true), migrate.WithUpsert(true), migrate.BeforeMigration(unapplied), migrate.AfterMigration(markApplied))
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
	for {
		switch _, err := m.Migrate(ctx); {
		case err == nil:
			return nil
		case !errors.Is(err, errApplied):
			return fmt.Errorf("migrate the database: %w", err)
		}
	}
}

var errApplied = errors.New("applied by another process")

// unapplied looks again, in the transaction that is to apply a migration, whether another process has applied it: one that opens the
// SQLite file at the same time, which there is no migration lock for. That transaction is the only one that writes.
func unapplied(ctx context.Context, tx bun.IConn, of *migrate.Migration) error {
	var applied bool
	if err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM migrations WHERE name = ?)", of.Name).Scan(&applied); err != nil {
		return err
	}
	if applied {
		return errApplied
	}
	return nil
}

// markApplied marks a migration in its own transaction. The migrator marks it once more, but only after that: a process that was
// killed in between would have it applied again by the next start, and few statements can be.
func markApplied(ctx context.Context, tx bun.IConn, of *migrate.Migration) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO migrations (name, group_id) VALUES (?, ?)", of.Name, of.GroupID)
	return err
}
