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
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/driver/pgdriver"

	"parley/alive"
)

// A server that falls asleep in the middle of a transaction would keep its locks, and with them its shards, from those that are
// awake: PostgreSQL ends a session that leaves a transaction alone for as long as a shard's lease.
//
// To compile a query takes longer than any of ours runs.
var always = map[string]any{"idle_in_transaction_session_timeout": fmt.Sprint(ShardLease.Milliseconds()), "jit": "off"}

// byKey is how the connections plan on which statements stay prepared. These find rows by their keys. To plan anew each time, as
// PostgreSQL likes to where arrays are given, takes longer than most of them run: so plans stay, but not for long. While a table is
// empty it costs nothing to read an index of it as a whole, and that plan must not be there any more when it has grown.
var byKey = map[string]any{
	"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "plan_cache_mode": "force_generic_plan",
}

// inOrder is how all else is planned: lists are read by an index, in its order, and what is looked up for each of their rows by its key. As
// long as statistics lag behind, or a table is small, PostgreSQL would rather sort a business's deliveries, or read all endpoints
// again for each of 100,000 of them, which took 12 s.
var inOrder = map[string]any{"enable_seqscan": "off", "enable_bitmapscan": "off"}

// newConnector reads a database URL, and never says a password that stands in it.
func newConnector(raw, as string) (*pgdriver.Connector, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.User != nil && u.User.Username() == "" { // the driver panics at a user without a name
		return nil, errors.New("the database URL does not parse as postgres://user:password@host/database")
	}
	made, err := pgdriver.NewDriver().OpenConnector(raw)
	if err != nil {
		return nil, fmt.Errorf("the database URL: %w", err)
	}
	connector := made.(*pgdriver.Connector)
	connector.Config().AppName = as
	return connector, nil
}

func openPool(url string, connections int, params ...map[string]any) (*bun.DB, error) {
	connector, err := newConnector(url, "parley")
	if err != nil {
		return nil, err
	}
	set := connector.Config().ConnParams // of the URL
	if set == nil {
		set = map[string]any{}
	}
	for _, p := range append(params, always) {
		maps.Copy(set, p)
	}
	connector.Config().ConnParams = set
	dial := connector.Config().Dialer
	connector.Config().Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if to, ok := ctx.Value(dialled{}).(*net.Conn); ok {
			*to = conn
		}
		return conn, err
	}
	_, plansStay := set["plan_cache_mode"]
	db := sql.OpenDB(pgConnector{connector, plansStay})
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return bun.NewDB(db, pgdialect.New()), nil
}

// pgConnector makes connections that end with their first failure, and are not used again when their other end has closed them. The
// driver sees to the first for plain statements, and not for prepared ones: a connection that had timed out there would go back to
// the pool with its answer still to come, and give it to whoever asks next.
type pgConnector struct {
	*pgdriver.Connector
	plansStay bool
}

// dialled is the key of a context under which the dialler leaves the bare connection.
type dialled struct{}

// Plans stay for longer and longer, up to plansStayFor: tables grow fastest when they are new.
const (
	plansStayFirst = 100 * time.Millisecond
	plansStayFor   = 10 * time.Second
)

func (c pgConnector) Connect(ctx context.Context) (driver.Conn, error) {
	pg := new(pgConn)
	conn, err := c.Connector.Connect(context.WithValue(ctx, dialled{}, &pg.bare))
	if err != nil {
		return nil, err
	}
	pg.Conn = conn.(*pgdriver.Conn)
	if c.plansStay {
		pg.plansStay, pg.planAt = plansStayFirst, time.Now().Add(plansStayFirst)
	}
	return pg, nil
}

type pgConn struct {
	*pgdriver.Conn
	bare net.Conn // below what encrypts it

	planAt    time.Time // when it is to plan anew; zero: whenever PostgreSQL thinks best
	plansStay time.Duration
}

// check ends the connection after a failure that is not the database's own word on a statement.
func (c *pgConn) check(err error) error {
	var said pgdriver.Error
	if err == nil || errors.As(err, &said) && !fatal(said) {
		return err
	}
	_ = c.Close()
	return err
}

// fatal says whether PostgreSQL ended the connection with this error.
func fatal(said pgdriver.Error) bool { return said.Field('V') == "FATAL" || said.Field('V') == "PANIC" }

// ResetSession is asked before the pool gives the connection out again.
func (c *pgConn) ResetSession(ctx context.Context) error {
	if !alive.Idle(c.bare) {
		return driver.ErrBadConn
	}
	if !c.planAt.IsZero() && time.Now().After(c.planAt) {
		c.plansStay = min(2*c.plansStay, plansStayFor)
		c.planAt = time.Now().Add(c.plansStay)
		if _, err := c.ExecContext(ctx, "DISCARD PLANS", nil); err != nil {
			return driver.ErrBadConn
		}
	}
	return c.Conn.ResetSession(ctx)
}

func (c *pgConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.BeginTx(ctx, options)
	return tx, c.check(err)
}

func (c *pgConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	result, err := c.Conn.ExecContext(ctx, query, args)
	return result, c.check(err)
}

func (c *pgConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	rows, err := c.Conn.QueryContext(ctx, query, args)
	return rows, c.check(err)
}

func (c *pgConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

func (c *pgConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	stmt, err := c.Conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, c.check(err)
	}
	return &pgStmt{stmt, c}, nil
}

type pgStmt struct {
	driver.Stmt
	conn *pgConn
}

// Close does nothing: statements live as long as their connections, and asking for the end of each would take a round trip.
func (s *pgStmt) Close() error { return nil }

func (s *pgStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if !s.conn.IsValid() {
		return nil, driver.ErrBadConn
	}
	result, err := s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
	return result, s.conn.check(err)
}

func (s *pgStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if !s.conn.IsValid() {
		return nil, driver.ErrBadConn
	}
	rows, err := s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
	if err != nil {
		return nil, s.conn.check(err)
	}
	return &pgRows{rows, s.conn}, nil
}

type pgRows struct {
	driver.Rows
	conn *pgConn
}

func (r *pgRows) Next(to []driver.Value) error {
	err := r.Rows.Next(to)
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return r.conn.check(err)
}

func (r *pgRows) Close() error { return r.conn.check(r.Rows.Close()) }
