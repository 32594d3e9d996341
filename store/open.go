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
)

// Config is what a Store is opened with.
type Config struct {
	URL    string  // `file:…`, a SQLite file, or `postgres://…`
	Sealer *Sealer // encrypts secrets at rest. Nil: the key file beside the SQLite database, made when missing

	// Exclusive takes the SQLite file for one running server: a second server on the same file is refused, while
	// maintenance commands may work beside it.
	Exclusive bool

	SessionTTL    time.Duration // sliding time-to-live of a session
	FirstLease    time.Duration // how long a fresh delivery is left to the stream before it is due in SQL
	Retention     time.Duration // how long events, deliveries and messages are kept
	MaxEndpoints  int           // enabled endpoints a business; 0: 100
	MaxAgents     int           // a business; 0: 1,000
	CheckURL      func(raw string) Faults
	CheckModelURL func(raw string) Faults
	CheckSchema   func(schema JSONObject) Faults // of a tool's parameters
	CheckPrompt   func(prompt string) Faults
	NewSecret     func() string // makes the signing secret of an endpoint

	MaxCredentials int // live API keys and access tokens a business; 0: 100
	// Price is what a model costs just now: a run keeps what it cost when it ended. Nil: nothing is known of any.
	Price func(model string) (Price, bool)

	// Ringing says whether the stream works just now. If not, fresh deliveries are due in SQL at once. Nil: it does not.
	Ringing func() bool
	// Committed is told of the events of each committed batch, in order within a business. It must not block.
	Committed func([]*Event)
	// EndpointsChanged is told of a business whose endpoints, or what waits for them, were changed, after the commit. It must
	// not block.
	EndpointsChanged func(business string)
	// DeliveriesWaiting is told of deliveries that were made due again, or of none in particular, after the commit. It must not
	// block.
	DeliveriesWaiting func(business string, deliveries ...string)
	// DeliveriesEnded is told of deliveries that ended because their endpoint did, after the commit. It must not block.
	DeliveriesEnded func(business string, deliveries ...string)
	// EndpointGrace is for how long an endpoint's deliveries may fail without one success before it is disabled; 0: 72 h.
	EndpointGrace time.Duration

	Log *slog.Logger
}

// Store is an open database. Its methods are safe for concurrent use.
type Store struct {
	cfg     Config
	db      *bun.DB // the writer: for SQLite a single connection
	read    *bun.DB // readers, beside the writer
	keyed   *bun.DB // of the hot reads: connections of their own, so that no list keeps a caller from being known
	fair    *fairReads
	leases  *bun.DB // on PostgreSQL one connection of their own, and the clock's: they must not wait behind whoever reads
	sealer  *Sealer
	batcher *batcher
	worker  *batcher  // of the delivery worker's writes: on PostgreSQL another connection's, on SQLite the same
	pools   []*bun.DB // beside those of db and read
	unlock  func() error
	log     *slog.Logger

	hotReads                 hot
	hotWrites                []string
	insertions               map[reflect.Type]*insertion
	outcomesSQL              *bulk
	turnsSQL, eventsSQL      *fused
	freshJobsSQL, targetsSQL string
	endpointsSQL             string
	fanOutsSQL               string
	lockFanOutsSQL           string
	healthSQL                string
	bornSQL                  *bulk
	forgetFanOutsSQL         *bulk
	batchSQL, numberAllSQL   *bulk // on PostgreSQL alone, as the next
	stepsSQL                 *fused

	opened  openedSecrets
	agents  agentCache
	clock   atomic.Pointer[reading] // of the database; nil for SQLite
	endings chan struct{}           // RunEndings is to look: one waits at most
}

// Open opens the database, brings its schema up to date, and starts the commit batcher. Close it after use.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxEndpoints == 0 {
		cfg.MaxEndpoints = 100
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
	if cfg.EndpointsChanged == nil {
		cfg.EndpointsChanged = func(string) {}
	}
	if cfg.DeliveriesWaiting == nil {
		cfg.DeliveriesWaiting = func(string, ...string) {}
	}
	if cfg.DeliveriesEnded == nil {
		cfg.DeliveriesEnded = func(string, ...string) {}
	}
	if cfg.EndpointGrace == 0 {
		cfg.EndpointGrace = 72 * time.Hour
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
	s := &Store{cfg: cfg, log: cfg.Log, unlock: func() error { return nil }, endings: make(chan struct{}, 1)}
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
		err = s.syncClock(ctx)
	}
	if err == nil {
		err = s.openSealer(ctx)
	}
	if err == nil {
		err = s.openHot(ctx)
	}
	if err == nil {
		err = s.startBatchers(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.closeConnections())
	}
	return s, nil
}

// startBatchers starts the writers. On PostgreSQL each has a connection of its own, on which its statements stay prepared.
func (s *Store) startBatchers(ctx context.Context) (err error) {
	if !s.remote() {
		s.batcher, err = s.startBatcher(ctx, s.db)
		s.worker = s.batcher
		return err
	}
	for _, b := range []**batcher{&s.batcher, &s.worker} {
		var db *bun.DB
		if db, err = s.anotherPool(1, byKey); err != nil {
			break
		}
		if *b, err = s.startBatcher(ctx, db); err != nil {
			break
		}
	}
	if err != nil && s.batcher != nil {
		s.batcher.stop()
	}
	return err
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
	if s.keyed, err = open("&_pragma=query_only(true)&_pragma=cache_size(-1024)", fileHotReaders); err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", path, err), s.read.Close(), s.db.Close(), s.unlock())
	}
	s.pools = append(s.pools, s.keyed)
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
	var err error
	if s.db, err = openPool(s.cfg.URL, readers, inOrder); err != nil {
		return err
	}
	s.fair = newFairReads(readers)
	s.read = s.db.WithQueryHook(s.fair)
	if s.leases, err = s.anotherPool(1); err == nil {
		s.keyed, err = s.anotherPool(hotReaders, byKey)
	}
	if err == nil {
		if err = s.db.PingContext(ctx); err != nil {
			u, _ := url.Parse(s.cfg.URL) // as openPool did
			err = fmt.Errorf("reach PostgreSQL at %s: %w", u.Host, err)
		}
	}
	if err != nil {
		return errors.Join(err, s.closeConnections())
	}
	return nil
}

// anotherPool opens a pool that is closed with the store.
func (s *Store) anotherPool(connections int, params ...map[string]any) (*bun.DB, error) {
	db, err := openPool(s.cfg.URL, connections, params...)
	if err == nil {
		s.pools = append(s.pools, db)
	}
	return db, err
}

// The connections to PostgreSQL beside those of the leases and the batchers. What every turn and every delivery reads does not wait
// behind lists.
const (
	readers    = 14
	hotReaders = 6
)

// The same of a SQLite file.
const (
	fileReaders    = 4
	fileHotReaders = 2
)

// remote says whether a connection to the database can be lost while the database lives on.
func (s *Store) remote() bool { return IsPostgres(s.cfg.URL) }

// Ping answers whether the database can be read.
func (s *Store) Ping(ctx context.Context) error {
	var one int
	return s.read.NewRaw("SELECT 1").Scan(ctx, &one)
}

// Close commits what waits, and closes the database.
func (s *Store) Close() error {
	s.batcher.stop()
	s.worker.stop()
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
