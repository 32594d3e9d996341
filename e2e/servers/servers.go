// Package servers starts the real servers that tests and benches need, PostgreSQL and Redis, from the installed binaries, on
// free ports of the loopback, with their data in a folder of the test's. Where a binary is missing the test is skipped with a
// line that says so; under CI=true that is a failure.
package servers

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// T is what a server is started for: a *testing.T, or whatever ends what was started on it. As there, Fatal, Fatalf and Skipf
// do not return.
type T interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	TempDir() string
	Cleanup(f func())
	Context() context.Context
}

// startWithin is how long a server may take to answer: a backstop, never a measure.
const startWithin = 60 * time.Second

// Missing skips a test for want of something, and says of what. Under CI=true the test fails.
func Missing(t T, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format+": CI must not skip this", args...)
	}
	t.Skipf(format, args...)
}

// Need finds a program that a test cannot do without.
func Need(t T, program string, folders ...string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	for _, pattern := range folders {
		if found, _ := filepath.Glob(filepath.Join(pattern, program)); len(found) > 0 {
			path, err = found[len(found)-1], nil
		}
	}
	if err != nil {
		Missing(t, "%s is not installed", program)
	}
	return path
}

// FreePort is an address that nobody listens on.
func FreePort(t T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Server is a running server, which a test may kill and start again.
type Server struct {
	t    T
	Addr string // host:port
	make func() *exec.Cmd
	cmd  *exec.Cmd
	done chan struct{}
}

// Up starts the server, again after a Kill, and waits until it accepts connections. One that ends at once is started once more:
// PostgreSQL does while processes of the one that was killed are still there.
func (s *Server) Up() {
	s.t.Helper()
	s.start()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(startWithin)
	for {
		if conn, err := net.Dial("tcp", s.Addr); err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("%s does not accept connections", s.cmd.Path)
		}
		select {
		case <-s.done:
			s.start()
		default:
		}
	}
}

func (s *Server) start() {
	s.t.Helper()
	s.cmd = s.make()
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.done = make(chan struct{})
	cmd, done := s.cmd, s.done
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
}

// Kill ends the server as a power cut would.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// Stop ends the server in good order, without waiting for its clients.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	<-s.done
}

// Signal sends the server a signal.
func (s *Server) Signal(sig os.Signal) error { return s.cmd.Process.Signal(sig) }

// Redis starts a Redis that keeps nothing on disk, with options of a test's own.
func Redis(t T, options ...string) *Server {
	t.Helper()
	return startRedis(t, options)
}

// RedisTLS starts a Redis that speaks TLS at an address beside its own, with a certificate that nobody knows.
func RedisTLS(t T) (addr string) {
	t.Helper()
	cert, key := Certificate(t)
	addr = FreePort(t)
	_, port, _ := net.SplitHostPort(addr)
	startRedis(t, []string{"--tls-auth-clients", "no", "--tls-cert-file", cert, "--tls-key-file", key, "--tls-port", port})
	return addr
}

// Certificate writes a certificate of 127.0.0.1 that nobody knows, and its key, into files.
func Certificate(t T) (cert, key string) {
	t.Helper()
	signed := httptest.NewTLSServer(nil)
	defer signed.Close()
	private, err := x509.MarshalPKCS8PrivateKey(signed.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		key:  {Type: "PRIVATE KEY", Bytes: private},
		cert: {Type: "CERTIFICATE", Bytes: signed.TLS.Certificates[0].Certificate[0]},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// Nginx starts one with a configuration of its http block, which listens on addr.
func Nginx(t T, addr, config string) *Server {
	t.Helper()
	program := Need(t, "nginx", "/usr/sbin")
	dir := t.TempDir()
	file := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf("daemon off;\npid %[1]s/pid;\nerror_log %[1]s/error.log;\nevents {}\nhttp {\naccess_log off;\n", dir)
	if os.Getuid() == 0 {
		text = "user root;\n" + text // so that its workers may use dir
	}
	for _, temporary := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text += fmt.Sprintf("%s_temp_path %s/%s;\n", temporary, dir, temporary)
	}
	if err := os.WriteFile(file, []byte(text+config+"\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, Addr: addr, make: func() *exec.Cmd {
		cmd := exec.Command(program, "-p", dir, "-c", file, "-e", filepath.Join(dir, "error.log"))
		cmd.Stderr = os.Stderr
		return cmd
	}}
	s.Up()
	t.Cleanup(s.Stop) // the master ends its workers
	return s
}

// RedisCluster starts a cluster of one node, which holds all slots, and refuses commands over more than one as any cluster does.
func RedisCluster(t T) *Server {
	t.Helper()
	s := startRedis(t, []string{"--cluster-enabled", "yes"})
	s.Command("CLUSTER ADDSLOTSRANGE 0 16383")
	return s
}

// RedisSentinel starts a Redis and a Sentinel that watches it under the name main, and returns the Sentinel.
func RedisSentinel(t T) (sentinel, redis *Server) {
	t.Helper()
	redis = startRedis(t, nil)
	host, port, _ := net.SplitHostPort(redis.Addr)
	program := Need(t, "redis-server")
	sentinel = &Server{t: t, Addr: FreePort(t)}
	_, own, _ := net.SplitHostPort(sentinel.Addr)
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %s\nbind 127.0.0.1\nsentinel monitor main %s %s 1\n", own, host, port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sentinel.make = func() *exec.Cmd { return exec.Command(program, config, "--sentinel") }
	sentinel.Up()
	t.Cleanup(sentinel.Kill)
	return sentinel, redis
}

func startRedis(t T, args []string) *Server {
	t.Helper()
	program := Need(t, "redis-server")
	s := &Server{t: t, Addr: FreePort(t)}
	_, port, _ := net.SplitHostPort(s.Addr)
	dir := t.TempDir()
	s.make = func() *exec.Cmd {
		return exec.Command(program, append([]string{
			"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", dir, "--logfile", filepath.Join(dir, "log"),
		}, args...)...)
	}
	s.Up()
	t.Cleanup(s.Kill)
	return s
}

// Command sends Redis one command, in its inline form, and takes an answer of one line.
func (s *Server) Command(line string) {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "%s\r\n", line); err != nil {
		s.t.Fatal(err)
	}
	if answer, err := bufio.NewReader(conn).ReadString('\n'); err != nil || answer[0] == '-' {
		s.t.Fatalf("%s: %s %v", line, answer, err)
	}
}

// Postgres is a running PostgreSQL.
type Postgres struct {
	*Server
}

// Kill ends PostgreSQL with all its processes, as a power cut would: a backend may answer for a moment without its postmaster.
func (p *Postgres) Kill() {
	p.Pause()
	p.each(syscall.SIGKILL)
	p.Server.Kill()
}

// Pause stops the postmaster and all its processes where they are; Resume lets them go on.
func (p *Postgres) Pause() {
	_ = p.Signal(syscall.SIGSTOP) // first: it makes no new ones
	p.each(syscall.SIGSTOP)
}

// Resume ends a Pause.
func (p *Postgres) Resume() {
	p.each(syscall.SIGCONT)
	_ = p.Signal(syscall.SIGCONT)
}

// each signals the postmaster's children: each has a process group of its own.
func (p *Postgres) each(sig syscall.Signal) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		var pid, parent int
		var state string
		i := strings.LastIndexByte(string(raw), ')') // its name, in parentheses, may hold anything
		if _, err := fmt.Sscan(string(raw[:i]), &pid); err != nil {
			continue
		}
		if _, err := fmt.Sscan(string(raw[i+1:]), &state, &parent); err == nil && parent == p.cmd.Process.Pid {
			_ = syscall.Kill(pid, sig)
		}
	}
}

// URL is the address of one of its databases.
func (p *Postgres) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", p.Addr, database)
}

// debian keeps some of PostgreSQL's programs here.
const debian = "/usr/lib/postgresql/*/bin"

// StartPostgres starts a PostgreSQL in dir, which is to be removed afterwards, as an unprivileged user where this process is
// root: PostgreSQL refuses root. Kill it after use.
func StartPostgres(t T, dir string) *Postgres {
	t.Helper()
	return startPostgres(t, dir, Need(t, "initdb", debian), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
}

// Standby starts a hot standby of a PostgreSQL in dir, which is to be removed afterwards. Kill it after use.
func (p *Postgres) Standby(t T, dir string) *Postgres {
	t.Helper()
	host, port, _ := net.SplitHostPort(p.Addr)
	return startPostgres(t, dir, Need(t, "pg_basebackup", debian), "-h", host, "-p", port, "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "--no-sync")
}

// startPostgres starts a PostgreSQL on the data that a program makes.
func startPostgres(t T, dir, program string, args ...string) *Postgres {
	t.Helper()
	postgres := Need(t, "postgres", debian)
	as := func(cmd *exec.Cmd) *exec.Cmd { return cmd }
	if os.Getuid() == 0 {
		uid, gid := nobody(t)
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		as = func(cmd *exec.Cmd) *exec.Cmd {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
			cmd.Dir = dir
			return cmd
		}
	}
	data := filepath.Join(dir, "data")
	if out, err := as(exec.Command(program, append(args, "-D", data)...)).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
	s := &Server{t: t, Addr: FreePort(t)}
	_, port, _ := net.SplitHostPort(s.Addr)
	s.make = func() *exec.Cmd {
		return as(exec.Command(postgres, "-D", data, "-p", port, "-k", dir, "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=400",
			"-c", "shared_buffers=64MB", "-c", "logging_collector=off"))
	}
	s.Up()
	return &Postgres{s}
}

// PgBouncer starts one in front of a database of a Postgres, as its package configures it but for the mode, and returns the
// database's URL by way of it.
func PgBouncer(t T, database, mode string) string {
	t.Helper()
	program := Need(t, "pgbouncer", "/usr/sbin")
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, Addr: FreePort(t)}
	_, port, _ := net.SplitHostPort(s.Addr)
	dir, err := os.MkdirTemp("", "parley-pgbouncer") // t.TempDir's parent is closed to the user that it runs as
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\n* = host=%s port=%s user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %s\nunix_socket_dir =\n"+
		"auth_type = any\npool_mode = %s\ndefault_pool_size = 40\n", u.Hostname(), u.Port(), port, mode)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.make = func() *exec.Cmd {
		cmd := exec.Command(program, "-q", file)
		if os.Getuid() == 0 {
			uid, gid := nobody(t)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		}
		return cmd
	}
	s.Up()
	t.Cleanup(s.Kill)
	u.Host = s.Addr
	return u.String()
}

// nobody is the user without rights.
func nobody(t T) (uid, gid int) {
	t.Helper()
	raw, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Split(line, ":"); len(f) > 3 && f[0] == "nobody" {
			uid, err = strconv.Atoi(f[2])
			if err == nil {
				gid, err = strconv.Atoi(f[3])
			}
			if err != nil {
				t.Fatal(err)
			}
			return uid, gid
		}
	}
	t.Fatal("there is no user nobody to run PostgreSQL as")
	return 0, 0
}
