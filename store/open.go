package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/sqlitedialect"

	"modernc.org/sqlite" // the driver "sqlite", too
	sqlite3 "modernc.org/sqlite/lib"

	"parley/lru"
)

// Config is what a Store is opened with.
type Config struct {
	URL    string  // `file:…`, a SQLite file, or `postgres://…`
	Sealer *Sealer // encrypts secrets at rest. Nil: the key file beside the SQLite database, made when missing

	// Exclusive takes the SQLite file for one running server: a second server on the same file is refused, while
	// maintenance commands may work beside it.
	Exclusive bool

	SessionTTL    time.Duration           // sliding time-to-live of a session
	Retention     time.Duration           // how long events, deliveries and messages are kept
	MaxAgents     int                     // a business; 0: 1,000
	CheckURL      func(raw string) Faults // of a webhook
	CheckModelURL func(raw string) Faults
	CheckSchema   func(schema JSONObject) Faults // of a tool's parameters
	CheckPrompt   func(prompt string) Faults

	MaxCredentials int // live API keys and access tokens a business; 0: 100
	// Price is what a model costs just now: a run keeps what it cost when it ended. Nil: nothing is known of any.
	Price func(model string) (Price, bool)

	// Committed is told of the events of each committed batch, in order within a business. It must not block.
	Committed func([]*Event)

	Log *slog.Logger
}

// Outbox is what store asks of the deliveries of its events (package store/hook).
type Outbox interface {
	// DeliveriesFor queues what tells which endpoints want events of some kinds. What it returns adds the deliveries of the
	// events, once that was read, and may say ErrTooManyRows where the batch can be divided.
	DeliveriesFor(t *Tx, kinds []EventKind) func(events []*Event) error
	// SetAgentURL gives an agent its own webhook URL, changes it, or takes it away.
	SetAgentURL(ctx context.Context, t *Tx, agent *Agent, url OptionalString) error
	// Prune removes a bounded part of the deliveries of a business's events, oldest first, up to a number and never past what
	// still waits, unless force. It returns the number up to which there are none any more.
	Prune(ctx context.Context, t *Tx, business string, upTo int64, force bool) (int64, error)
	// PruneOld removes a bounded part of what is older than before and belongs to no event, and says whether there may be more.
	PruneOld(ctx context.Context, t *Tx, before Time) (more bool, err error)
}

// SetOutbox has deliveries made from now on. It comes before the first write.
func (s *Store) SetOutbox(o Outbox) { s.outbox = o }

// Store is an open database. Its methods are safe for concurrent use.
type Store struct {
	cfg    Config
	outbox Outbox
	db     *bun.DB // the writer: for SQLite a single connection
	read   *bun.DB // readers, beside the writer
	keyed  *bun.DB // of what every request reads: connections of their own, which need not wait behind lists
	fair   *fairReads

	checkpoints *bun.DB // of SQLite's log: a connection that waits for nobody for long
	leases      *bun.DB // on PostgreSQL one connection of their own, and the clock's: they must not wait behind whoever reads
	sealer      *Sealer
	batcher     *batcher
	aside       *batcher   // of what is written in bulk: on PostgreSQL over another connection, on SQLite the same
	pools       []*pool    // on PostgreSQL, beside that of db and read
	servers     generation // of PostgreSQL, that the URL has led to
	unlock      func() error
	log         *slog.Logger
	reach       reach
	tables      map[reflect.Type]*table

	authenticate   *sql.Stmt // what every request reads
	authenticating *Gather[*Credential]

	prepared statements

	agents *lru.Cache[string, *Agent] // of turns
	clock  atomic.Pointer[reading]    // of the database; nil for SQLite
}

// Open opens the database, brings its schema up to date, and starts the commit batcher. Close it after use.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxAgents == 0 {
		cfg.MaxAgents = 1000
	}
	if cfg.MaxCredentials == 0 {
		cfg.MaxCredentials = 100
	}
	if cfg.Price == nil {
		cfg.Price = func(string) (Price, bool) { return Price{}, false }
	}
	none := func(string) Faults { return nil }
	if cfg.CheckURL == nil {
		cfg.CheckURL = none
	}
	if cfg.CheckModelURL == nil {
		cfg.CheckModelURL = none
	}
	if cfg.CheckPrompt == nil {
		cfg.CheckPrompt = none
	}
	if cfg.CheckSchema == nil {
		cfg.CheckSchema = func(JSONObject) Faults { return nil }
	}
	s := &Store{cfg: cfg, log: cfg.Log, reach: reach{log: cfg.Log}, unlock: func() error { return nil }, prepared: statements{of: map[string]*sql.Stmt{}}, agents: newAgentCache()}
	var err error
	switch {
	case IsPostgres(cfg.URL):
		err = s.openPostgres(ctx)
	case strings.HasPrefix(cfg.URL, "file:"):
		err = s.openSQLite(ctx)
	default:
		err = errors.New("the database URL is neither file:… nor postgres://…")
	}
	if err != nil {
		return nil, err
	}
	err = s.bringUp(ctx)
	if err == nil {
		err = s.SyncClock(ctx)
	}
	if err == nil {
		err = s.openSealer(ctx)
	}
	if err == nil {
		err = s.prepareReads(ctx)
	}
	if err == nil {
		s.openTables()
		err = s.startBatchers()
	}
	if err != nil {
		return nil, errors.Join(err, s.closeConnections())
	}
	return s, nil
}

// startBatchers starts the writers. On PostgreSQL each has a connection of its own, on which its statements stay prepared.
func (s *Store) startBatchers() error {
	if !s.remote() {
		s.batcher = s.startBatcher(&pool{s.db})
		s.aside = s.batcher
		return nil
	}
	chats, err := s.anotherPool(1, byKey)
	if err != nil {
		return err
	}
	aside, err := s.anotherPool(1, byKey)
	if err != nil {
		return err
	}
	s.batcher, s.aside = s.startBatcher(chats), s.startBatcher(aside)
	return nil
}

// prepareReads prepares what every request reads.
func (s *Store) prepareReads(ctx context.Context) (err error) {
	s.authenticate, err = s.keyed.DB.PrepareContext(ctx, s.authenticateSQL()) //nolint:sqlclosecheck // it lives as long as its pool
	if err != nil {
		return fmt.Errorf("prepare how to authenticate: %w", err)
	}
	s.authenticating = NewGather(2, authenticateLimit, s.credentialsOf)
	return nil
}

// IsPostgres says whether a database URL names PostgreSQL.
func IsPostgres(raw string) bool {
	return strings.HasPrefix(raw, "postgres://") || strings.HasPrefix(raw, "postgresql://")
}

// SQLitePath is the file of a SQLite URL.
func SQLitePath(raw string) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(raw, "file:"), "?")
	if rest, ok := strings.CutPrefix(path, "//"); ok {
		path = rest
	}
	if p, err := url.PathUnescape(path); err == nil {
		path = p
	}
	return path
}

func (s *Store) openSQLite(ctx context.Context) error {
	path := SQLitePath(s.cfg.URL)
	if path == "" || strings.Contains(path, ":memory:") {
		return errors.New("the SQLite database must be a file, as in file:parley.db")
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || !info.IsDir() {
		return fmt.Errorf("the folder of the SQLite database, %s, cannot be read", filepath.Dir(path))
	}
	if s.cfg.Exclusive {
		unlock, err := lockFile(path + ".lock")
		if err != nil {
			return fmt.Errorf("the database %s is in use by another server: %w", path, err)
		}
		s.unlock = unlock
	}
	if err := createPrivate(path); err != nil {
		return errors.Join(fmt.Errorf("make the SQLite database %s: %w", path, err), s.unlock())
	}
	// FULL with WAL syncs the log at each commit: what was answered survives a power cut. _txlock=immediate takes the
	// write lock at BEGIN, so that no transaction fails half way for having read first.
	dsn := "file:" + (&url.URL{Path: path}).EscapedPath() + "?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(5000)" +
		"&_pragma=wal_autocheckpoint(4000)&_txlock=immediate"
	open := func(extra string, connections int) (*bun.DB, error) {
		db, err := sql.Open("sqlite", dsn+extra)
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(connections)
		db.SetMaxIdleConns(connections)
		return bun.NewDB(db, sqlitedialect.New()), nil
	}
	var err error
	if s.db, err = open("&_pragma=cache_size(-8192)", 1); err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	if err = pingSQLite(ctx, s.db); err != nil {
		return errors.Join(fmt.Errorf("open the SQLite database %s: %w", path, err), s.db.Close(), s.unlock())
	}
	s.leases = s.db
	if s.read, err = open("&_pragma=query_only(true)&_pragma=cache_size(-2048)", fileReaders); err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", path, err), s.db.Close(), s.unlock())
	}
	if s.keyed, err = open("&_pragma=query_only(true)&_pragma=cache_size(-1024)", fileKeyedReaders); err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", path, err), s.db.Close(), s.read.Close(), s.unlock())
	}
	if s.checkpoints, err = open("&_pragma=busy_timeout(200)", 1); err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", path, err), s.db.Close(), s.read.Close(), s.keyed.Close(), s.unlock())
	}
	s.pools = append(s.pools, &pool{s.keyed}, &pool{s.checkpoints})
	s.fair = newFairReads(fileReaders)
	s.read = s.read.WithQueryHook(s.fair)
	return nil
}

// pingSQLite connects. Where two open a new file, each to write its log ahead, SQLite refuses one of them at once, however patient it was
// told to be.
func pingSQLite(ctx context.Context, db *bun.DB) error {
	for began := time.Now(); ; {
		err := db.PingContext(ctx)
		var refused *sqlite.Error
		if !errors.As(err, &refused) || refused.Code()&0xff != sqlite3.SQLITE_BUSY || time.Since(began) > busyPatience {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

const busyPatience = 5 * time.Second // of SQLite's own, too: busy_timeout

// createPrivate makes a missing file, which its owner alone may read: it will hold conversations. SQLite takes an empty file
// for a new database, and gives the files beside it, -wal and -shm, the same mode. A file that is there is not so much as
// opened: closing it would drop the locks that SQLite holds on it elsewhere in this process.
func createPrivate(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return nil // whatever else is wrong with it, SQLite words it
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

func (s *Store) openPostgres(ctx context.Context) error {
	readers, err := openPool(s.cfg.URL, mostReaders, &s.servers, inOrder)
	if err != nil {
		return err
	}
	s.db = readers.DB
	s.fair = newFairReads(mostReaders)
	s.read = s.db.WithQueryHook(s.fair)
	var of *pool
	if of, err = s.anotherPool(1); err == nil {
		s.leases = of.DB
		of, err = s.anotherPool(keyedReaders, byKey)
	}
	if err == nil {
		s.keyed = of.DB
		if err = s.db.PingContext(ctx); err != nil {
			u, _ := url.Parse(s.cfg.URL) // as openPool did
			err = fmt.Errorf("reach PostgreSQL at %s: %s", u.Host, oneLine(err))
		}
	}
	if err == nil {
		err = s.refusePooler(ctx)
	}
	if err != nil {
		return errors.Join(err, s.closeConnections())
	}
	return nil
}

// anotherPool opens a pool that is closed with the store.
func (s *Store) anotherPool(connections int, params ...map[string]string) (*pool, error) {
	of, err := openPool(s.cfg.URL, connections, &s.servers, params...)
	if err == nil {
		s.pools = append(s.pools, of)
	}
	return of, err
}

// The connections to PostgreSQL beside those of the leases and the batchers. What every turn and every delivery reads does not wait
// behind lists.
const (
	mostReaders  = 14
	keyedReaders = 6
)

// The same of a SQLite file.
const (
	fileReaders      = 4
	fileKeyedReaders = 2
)

// remote says whether a connection to the database can be lost while the database lives on.
func (s *Store) remote() bool { return IsPostgres(s.cfg.URL) }

// Ping answers whether the database takes writes. A server that does not, which PostgreSQL's address may lead to for a
// moment, is left for whatever the address leads to next.
func (s *Store) Ping(ctx context.Context) error { return s.pingOver(ctx, s.read) }

func (s *Store) pingOver(ctx context.Context, db *bun.DB) error {
	if !s.remote() {
		var one int
		return db.NewRaw("SELECT 1").Scan(ctx, &one)
	}
	var standby bool
	if err := db.NewRaw("SELECT pg_is_in_recovery()").Scan(ctx, &standby); err != nil {
		return err
	}
	if standby {
		s.moved()
		return errors.New("the database is a standby, which takes no writes")
	}
	return nil
}

// Close commits what waits, and closes the database.
func (s *Store) Close() error {
	s.batcher.stop()
	s.aside.stop()
	return s.closeConnections()
}

func (s *Store) closeConnections() error {
	var err error
	if s.read != s.db {
		err = s.read.Close()
	}
	for _, db := range s.pools {
		err = errors.Join(err, db.Close())
	}
	return errors.Join(err, s.db.Close(), s.unlock())
}
