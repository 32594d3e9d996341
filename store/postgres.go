package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// PostgreSQL is reached by pgx, under database/sql and bun. Queries of bun hold their values, and are not prepared (exec
// mode): pgx would keep a statement for each text. What the batchers run is prepared by its text, in Tx.Send.

// A server that falls asleep in the middle of a transaction would keep its locks, and with them its shards, from those that are
// awake: PostgreSQL ends a session that leaves a transaction alone for as long as idleInTransaction.
//
// To compile a query takes longer than any of ours runs.
var always = map[string]string{"idle_in_transaction_session_timeout": strconv.FormatInt(idleInTransaction.Milliseconds(), 10), "jit": "off"}

const idleInTransaction = 3 * time.Second

// byKey is how the connections plan on which statements stay prepared: these find rows by their keys, and to plan anew each
// time takes longer than most of them run.
var byKey = map[string]string{
	"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "plan_cache_mode": "force_generic_plan",
}

// inOrder is how all else is planned: lists are read by an index, in its order, and what is looked up for each of their rows by its key. As
// long as statistics lag behind, or a table is small, PostgreSQL would rather sort a business's deliveries, or read all endpoints
// again for each of 100,000 of them, which took 12 s.
var inOrder = map[string]string{"enable_seqscan": "off", "enable_bitmapscan": "off"}

// answerWithin is how long PostgreSQL may be silent in the middle of a statement: a peer that hangs does not end its
// connections. It is longer than any query may take. A migration may take as long as it takes.
var answerWithin = 12 * time.Second

// pool is a pool of connections.
type pool struct{ *bun.DB }

var errDatabaseURL = errors.New("the database URL does not parse as postgres://user:password@host/database")

// postgresConfig reads a database URL, and never says a password that stands in it.
func postgresConfig(raw, as string) (*pgx.ConnConfig, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil && u.User.Username() == "" {
		return nil, errDatabaseURL
	}
	cfg, err := pgx.ParseConfig(raw)
	if err != nil {
		const quoted = "`: " // what is wrong comes after the URL
		if i := strings.LastIndex(err.Error(), quoted); i >= 0 {
			return nil, fmt.Errorf("the database URL: %s", err.Error()[i+len(quoted):])
		}
		return nil, errDatabaseURL
	}
	cfg.RuntimeParams["application_name"] = as
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.ConnectTimeout = 5 * time.Second
	// An address may lead to a standby for a moment, while its roles are changed: nothing could be written there.
	cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	return cfg, nil
}

// openPool opens a pool of some connections to PostgreSQL. A connection is used again only if its other end has not closed
// it, and if nothing was heard since of another server that takes its place (Store.moved).
func openPool(raw string, connections int, age *generation, params ...map[string]string) (*pool, error) {
	cfg, err := postgresConfig(raw, "parley")
	if err != nil {
		return nil, err
	}
	var set strings.Builder // with SET: a pooler, which may give each connection a session of its own, takes no other way
	for _, p := range append(params, always) {
		for _, name := range slices.Sorted(maps.Keys(p)) {
			fmt.Fprintf(&set, "SET %s = '%s';", name, p[name])
		}
	}
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &patientConn{Conn: conn, patience: answerWithin}, nil
	}
	db := stdlib.OpenDB(*cfg, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }),
		stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
			conn.PgConn().CustomData()[generationKey] = age.now()
			return conn.PgConn().Exec(ctx, set.String()).Close()
		}),
		stdlib.OptionResetSession(func(_ context.Context, conn *pgx.Conn) error {
			if conn.PgConn().CustomData()[generationKey] != age.now() || !idle(conn.PgConn().Conn()) {
				return driver.ErrBadConn
			}
			return nil
		}))
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return &pool{bun.NewDB(db, pgdialect.New())}, nil
}

// patientDB is one connection to PostgreSQL on which a statement may take as long as it takes: an
// index over a large table takes minutes. It ends with ctx, and a server that does not answer any
// more is noticed by the network's probes.
func (s *Store) patientDB(ctx context.Context) (*bun.DB, error) {
	cfg, err := postgresConfig(s.cfg.URL, "parley migration")
	if err != nil {
		return nil, err
	}
	var dialed atomic.Bool
	dialer := net.Dialer{Timeout: cfg.ConnectTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeEvery, Interval: probeEvery}}
	cfg.DialFunc = func(dialing context.Context, network, addr string) (net.Conn, error) {
		if dialed.Swap(true) { // what was locked over the first connection is not any more
			return nil, errors.New("the connection was lost")
		}
		conn, err := dialer.DialContext(dialing, network, addr)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	}
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(1) // the lock is the connection's
	return bun.NewDB(db, pgdialect.New()), nil
}

const probeEvery = 15 * time.Second

const generationKey = "parley generation"

// generation counts the times that the database's address was found to lead to another server.
type generation struct {
	mu sync.Mutex // guards n
	n  int
}

func (g *generation) now() int {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

func (g *generation) next() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
}

// moved has all connections made anew, each before it is used again: the server at their other end takes no writes.
func (s *Store) moved() { s.servers.next() }

// patientConn ends a read that nothing comes of. Its own deadlines, which pgx sets where a context ends, come first.
type patientConn struct {
	net.Conn
	patience time.Duration

	mu  sync.Mutex // guards set
	set bool       // a deadline of pgx's is in force
}

func (c *patientConn) Read(b []byte) (int, error) {
	c.mu.Lock()
	if !c.set {
		_ = c.Conn.SetReadDeadline(time.Now().Add(c.patience))
	}
	c.mu.Unlock()
	return c.Conn.Read(b)
}

func (c *patientConn) SetDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = !at.IsZero()
	return c.Conn.SetDeadline(at)
}

func (c *patientConn) SetReadDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set = !at.IsZero()
	return c.Conn.SetReadDeadline(at)
}

// NetConn is the bare connection.
func (c *patientConn) NetConn() net.Conn { return c.Conn }

// idle says whether a connection may be used again: nothing has come over it, not even its end.
func idle(conn net.Conn) bool {
	for {
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return alive(conn)
		}
		conn = below.NetConn()
	}
}

// collided says whether the database rolled a transaction back for the sake of another replica's: it is to be repeated.
func collided(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001")
}

// atStandby says whether the server that was asked takes no writes.
func atStandby(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "25006"
}

// endAtStandby ends a connection whose server takes no writes: the next one may lead to one that does.
func endAtStandby(ctx context.Context, conn *pgx.Conn, err error) error {
	if atStandby(err) {
		_ = conn.Close(ctx)
	}
	return err
}

// full says whether the database has no room left: PostgreSQL's class 53 is of all resources that can run out.
func full(err error, pg *pgconn.PgError) bool {
	if pg != nil {
		return strings.HasPrefix(pg.Code, "53")
	}
	var lite *sqlite.Error
	return errors.As(err, &lite) && lite.Code()&0xff == sqlite3.SQLITE_FULL
}

// diskFull says whether there is no room on the database's disk: of what else can run out, connections
// and memory, it is full as well.
func diskFull(err error) bool {
	if pg := pgError(err); pg != nil {
		return pg.Code == "53100"
	}
	return full(err, nil)
}

// lost says whether err tells of a lost connection, rather than being the database's own word on a statement.
func lost(err error) bool { return lostOf(err, pgError(err)) }

// pgError is PostgreSQL's own word in an error, if there is one.
func pgError(err error) (pg *pgconn.PgError) {
	_ = errors.As(err, &pg)
	return pg
}

func lostOf(err error, pg *pgconn.PgError) bool {
	if pg != nil {
		return pg.Severity == "FATAL" || pg.Severity == "PANIC" || pg.Code == "25006" ||
			strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "57P") // connection exceptions, shutdown
	}
	var network net.Error
	var connecting *pgconn.ConnectError
	return errors.As(err, &network) || errors.As(err, &connecting) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) || errors.Is(err, context.DeadlineExceeded) ||
		err != nil && pgconn.SafeToRetry(err)
}

// oneLine is an error of pgx for people. It has a line for each address, and twice for one that is tried with TLS and without.
func oneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		lines = append(lines, strings.TrimSpace(line))
	}
	head, rest := lines[0], slices.Compact(lines[1:])
	return strings.TrimSpace(head + " " + strings.Join(rest, "; "))
}

// refusePooler says what to do where the URL leads to a pooler that gives each transaction another session: advisory locks,
// settings and prepared statements are the session's, and would be found by others or by nobody.
func (s *Store) refusePooler(ctx context.Context) error {
	var pids [2]int
	for i := range pids {
		conn, err := s.db.Conn(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }() // both are open at once: they are two sessions, or take turns with one
		if err := conn.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pids[i]); err != nil {
			return err
		}
	}
	if pids[0] == pids[1] {
		return errors.New("the database URL leads to a pooler in transaction mode, whose clients share sessions: " +
			"connect to PostgreSQL itself, or set the pooler's pool_mode to session")
	}
	return nil
}
