package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"parley/e2e/servers"
)

// What Parley stands on.
const (
	embedded   = "embedded"   // SQLite and the Redis in the process
	production = "production" // PostgreSQL and Redis
)

// rig is what a bench measures with.
type rig struct {
	mode     string
	sides    []side
	postgres *servers.Postgres // of production
	rounds   int
	busy     bool // rounds beside the spinner, too
	warmup   time.Duration
	measure  time.Duration // of one side in one round
	events   int           // that are stored, in growth

	title    string // of what is measured
	spinner  int    // its process
	profiles string // the folder for profiles, or none
	started  int    // servers
}

// server is a Parley in a folder of its own, on a database and a Redis of its own.
type server struct {
	*stage
	rig      *rig
	cmd      *exec.Cmd
	pid      atomic.Int64
	log      string
	url      string
	database string        // where it is, as the drivers of this program understand it
	start    time.Duration // from the exec to the first 200 of /readyz
}

// business is one that a server serves, with an agent of its own.
type business struct{ key, token, agent string }

// demo is the one that every server has.
var demo = business{"sk_bench_0123456789abcdefghijklmnop", "at_bench_0123456789abcdefghijklmnop", "demo"}

// emptyDatabase makes a PostgreSQL database, which goes with the stage, and returns its URL.
func (r *rig) emptyDatabase(on *stage) (url string, err error) {
	r.started++
	name := fmt.Sprint("bench", r.started)
	if err := r.admin(on.ctx, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	on.Cleanup(func() { _ = r.admin(context.WithoutCancel(on.ctx), "DROP DATABASE "+name+" WITH (FORCE)") })
	return r.postgres.URL(name), nil
}

func (r *rig) checkpoint(ctx context.Context) error { return r.admin(ctx, "CHECKPOINT") }

func (r *rig) admin(ctx context.Context, statement string) error {
	db, err := sql.Open("pgx", r.postgres.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for began := time.Now(); ; {
		if _, err = db.ExecContext(ctx, statement); err == nil || time.Since(began) > 10*time.Second || ctx.Err() != nil {
			return err // it is starting up, or its template is busy
		}
		_ = pause(ctx, 50*time.Millisecond)
	}
}

// start starts a side's server on an empty database.
func (r *rig) start(ctx context.Context, of side, env ...string) (s *server, err error) {
	s = &server{stage: newStage(ctx), rig: r}
	defer func() {
		if err != nil {
			s.end()
		}
	}()
	var dir, redis, addr string
	err = s.try(func() {
		dir, addr = s.TempDir(), servers.FreePort(s)
		if r.mode == production {
			redis = servers.Redis(s).Addr
		}
	})
	if err != nil {
		return nil, err
	}
	s.url, s.log, s.database = "http://"+addr, filepath.Join(dir, "log"), filepath.Join(dir, "parley.db")
	s.cmd = exec.CommandContext(ctx, of.binary)
	s.cmd.Dir = dir
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PARLEY_") && !strings.HasPrefix(kv, "OPENAI_") && !strings.HasPrefix(kv, "ANTHROPIC_") {
			s.cmd.Env = append(s.cmd.Env, kv)
		}
	}
	s.cmd.Env = append(s.cmd.Env, "PARLEY_ADDR="+addr, "PARLEY_BOOTSTRAP_API_KEY="+demo.key, "PARLEY_BOOTSTRAP_TOKEN="+demo.token,
		"PARLEY_ALLOW_PRIVATE_WEBHOOKS=true", "PARLEY_MAX_SOCKETS=10000")
	s.cmd.Env = append(s.cmd.Env, env...)
	if r.mode == production {
		if s.database, err = r.emptyDatabase(s.stage); err != nil {
			return nil, err
		}
		s.cmd.Env = append(s.cmd.Env, "PARLEY_DATABASE_URL="+s.database, "PARLEY_REDIS_URL=redis://"+redis,
			"PARLEY_SECRET_KEY="+base64.StdEncoding.EncodeToString(make([]byte, 32)))
	}
	if r.profiles != "" && of.name == "server" {
		profile, err := filepath.Abs(filepath.Join(r.profiles, strings.NewReplacer(", ", "-", " ", "_").Replace(r.title)+fmt.Sprintf("-%d.pprof", r.started)))
		if err != nil {
			return nil, err
		}
		r.started++
		s.cmd.Env = append(s.cmd.Env, "BENCH_CPUPROFILE="+profile)
	}
	s.Cleanup(s.complain)
	s.Cleanup(s.stop)
	return s, s.up()
}

// up starts the process, and waits until it is ready.
func (s *server) up() error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	s.cmd.Stderr = log
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.pid.Store(int64(s.cmd.Process.Pid))
	err = until(s.ctx, time.Minute, "the server is ready", func() (bool, error) {
		res, err := http.Get(s.url + "/readyz")
		if err != nil {
			return false, nil //nolint:nilerr // it does not listen yet
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK, nil
	})
	s.start = time.Since(began)
	return err
}

// stop kills the process; one with a profile writes that before it ends.
func (s *server) stop() {
	if s.cmd.Process == nil {
		return
	}
	if s.rig.profiles != "" {
		_ = s.cmd.Process.Signal(syscall.SIGUSR2)
		late := time.AfterFunc(5*time.Second, func() { _ = s.cmd.Process.Kill() })
		defer late.Stop()
	} else {
		_ = s.cmd.Process.Kill()
	}
	_ = s.cmd.Wait()
}

// restart kills the process, does something meanwhile, and starts another one in its place.
func (s *server) restart(meanwhile func() error) error {
	s.stop()
	again := exec.CommandContext(s.ctx, s.cmd.Path)
	again.Dir, again.Env = s.cmd.Dir, s.cmd.Env
	s.cmd = again
	if meanwhile != nil {
		if err := meanwhile(); err != nil {
			return err
		}
	}
	return s.up()
}

// complain prints what the server has logged of trouble: a run with any is no measurement.
func (s *server) complain() {
	raw, _ := os.ReadFile(s.log)
	shown := 0
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, "PARLEY_ALLOW_PRIVATE_WEBHOOKS") || strings.Contains(line, "level=INFO") || shown > 5 {
			continue
		}
		shown++
		fmt.Fprintf(os.Stderr, "  server: %.300s\n", strings.TrimSpace(line))
	}
}

// business makes another business, with an agent.
func (s *server) business(name string) (b business, err error) {
	create := exec.CommandContext(s.ctx, s.cmd.Path, "business", "create", name)
	create.Dir, create.Env = s.cmd.Dir, s.cmd.Env
	out, err := create.Output()
	if err != nil {
		return b, fmt.Errorf("make a business: %w", err)
	}
	var id string
	if _, err := fmt.Sscanf(string(out), "business %s\nAPI key %s\naccess token %s\n", &id, &b.key, &b.token); err != nil {
		return b, fmt.Errorf("make a business: %q: %w", out, err)
	}
	made, err := s.query(b, `mutation { createAgent(input: {name: "bench"}) { id } }`)
	if err == nil {
		b.agent = idOf(made["createAgent"])
	}
	return b, err
}

// idOf is the id of an object, read from JSON.
func idOf(object any) string {
	fields, _ := object.(map[string]any)
	s, _ := fields["id"].(string)
	return s
}

// register registers a business's webhook endpoint, and returns its id.
func (s *server) register(b business, url string, types ...string) (id string, err error) {
	made, err := s.query(b, fmt.Sprintf(`mutation { createWebhookEndpoint(input: {url: %q, events: [%s]}) { endpoint { id } } }`, url, strings.Join(types, " ")))
	if err != nil {
		return "", err
	}
	return idOf(made["createWebhookEndpoint"].(map[string]any)["endpoint"]), nil
}

// client is the load's, for all requests.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}

// errRefused says that the server has refused a GraphQL operation.
var errRefused = errors.New("refused")

// query runs a GraphQL operation, and returns its data.
func (s *server) query(b business, query string) (map[string]any, error) {
	var answer struct {
		Data   map[string]any
		Errors []struct{ Message string }
	}
	raw, err := send(s.ctx, s.url+"/graphql", http.Header{"Authorization": {"Bearer " + b.token}}, map[string]any{"query": query})
	if err == nil {
		err = json.Unmarshal(raw, &answer)
	}
	if err == nil && len(answer.Errors) > 0 {
		err = fmt.Errorf("%w: %v: %.100s", errRefused, answer.Errors[0].Message, query)
	}
	return answer.Data, err
}

// send POSTs a document, and returns the answer.
func send(ctx context.Context, url string, header http.Header, doc any) ([]byte, error) {
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s: %d %.200s", url, res.StatusCode, answer)
	}
	return answer, err
}

// metrics are the server's, by name.
func (s *server) metrics() (map[string]float64, error) {
	res, err := http.Get(s.url + "/metrics")
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	all := map[string]float64{}
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if x, err := strconv.ParseFloat(value, 64); err == nil {
			all[name] = x
		}
	}
	return all, err
}

// listen serves h on a free port until the stage ends, and returns its URL.
func listen(on *stage, h http.Handler) (url string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	srv := &http.Server{Handler: h}
	go func() { _ = srv.Serve(l) }()
	on.Cleanup(func() { _ = srv.Close() })
	return "http://" + l.Addr().String(), nil
}
