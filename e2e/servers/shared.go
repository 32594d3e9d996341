package servers

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"os"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
)

// shared is a PostgreSQL for all tests of a package, each of which has a database of its own in it. The first that needs it
// starts it.
var shared struct {
	once sync.Once
	dir  string
	*Postgres
}

// Database makes an empty database in the package's PostgreSQL, and returns its URL. TestMain must call StopShared.
func Database(t T) string {
	t.Helper()
	Need(t, "initdb", debian)
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "parley-postgres")
		if err != nil {
			t.Fatal(err)
		}
		shared.dir = dir
		shared.Postgres = StartPostgres(t, dir)
	})
	if shared.Postgres == nil {
		t.Fatal("PostgreSQL did not start")
	}
	return shared.Database(t)
}

// NewPostgres starts a PostgreSQL of the test's own, which it may kill and start again.
func NewPostgres(t T) *Postgres {
	t.Helper()
	p := StartPostgres(t, folder(t))
	t.Cleanup(p.Kill)
	return p
}

// NewStandby starts a hot standby of a PostgreSQL.
func NewStandby(t T, of *Postgres) *Postgres {
	t.Helper()
	p := of.Standby(t, folder(t))
	t.Cleanup(p.Kill)
	return p
}

func folder(t T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "parley-postgres") // t.TempDir's parent is closed to the user that PostgreSQL runs as
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Database makes an empty database, and returns its URL.
func (p *Postgres) Database(t T) string {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text())
	db, err := sql.Open("pgx", p.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for {
		_, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name)
		if err == nil {
			return p.URL(name)
		}
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "57P03" && pg.Code != "55006" { // starting up, or the template is busy
			t.Fatal(err)
		}
	}
}

// StopShared ends what Database started.
func StopShared() {
	if shared.Postgres != nil {
		shared.Kill()
	}
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
}
