package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

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
	binary   string
	postgres *servers.Postgres // of production
	rounds   int               // that had the machine to themselves
	short    bool              // one round, whatever it had
	warmup   time.Duration
	measure  time.Duration // of one side in one round

	bench    string // that runs
	profiles string // the folder for profiles, or none
	started  int    // servers
}

// server is a Parley in a folder of its own, on a database and a Redis of its own.
type server struct {
	*stage
	cmd   *exec.Cmd
	log   string
	url   string
	pid   atomic.Int64
	start time.Duration // from the exec to the first 200 of /readyz
}

const (
	apiKey = "sk_bench_key"
	token  = "at_bench_0123456789"
)

// database makes an empty PostgreSQL database, and returns its URL.
func (r *rig) database(on *stage) (url string, err error) {
	err = on.try(func() { url = r.postgres.Database(on) })
	return url, err
}

func (r *rig) start(ctx context.Context, env ...string) (s *server, err error) {
	on := newStage(ctx)
	defer func() {
		if err != nil {
			on.end()
		}
	}()
	s = &server{stage: on}
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
	s.cmd, s.url, s.log = exec.CommandContext(ctx, r.binary), "http://"+addr, filepath.Join(dir, "log")
	s.cmd.Dir = dir
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PARLEY_") && !strings.HasPrefix(kv, "OPENAI_") {
			s.cmd.Env = append(s.cmd.Env, kv)
		}
	}
	s.cmd.Env = append(s.cmd.Env, "PARLEY_ADDR="+addr, "PARLEY_BOOTSTRAP_API_KEY="+apiKey, "PARLEY_BOOTSTRAP_TOKEN="+token,
		"PARLEY_ALLOW_PRIVATE_WEBHOOKS=true")
	s.cmd.Env = append(s.cmd.Env, env...)
	if r.mode == production {
		database, err := r.database(s.stage)
		if err != nil {
			return nil, err
		}
		s.cmd.Env = append(s.cmd.Env, "PARLEY_DATABASE_URL="+database, "PARLEY_REDIS_URL=redis://"+redis,
			"PARLEY_SECRET_KEY="+base64.StdEncoding.EncodeToString(make([]byte, 32)))
	}
	if r.profiles != "" {
		r.started++
		profile, err := filepath.Abs(filepath.Join(r.profiles, fmt.Sprintf("%s-%s-%d.pprof", r.bench, r.mode, r.started)))
		if err != nil {
			return nil, err
		}
		s.cmd.Env = append(s.cmd.Env, "BENCH_CPUPROFILE="+profile)
	}
	s.Cleanup(s.complain)
	return s, s.up(r.profiles != "")
}

// restart kills the process, and starts another one in its place.
func (s *server) restart() error {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	again := exec.CommandContext(s.ctx, s.cmd.Path)
	again.Dir, again.Env = s.cmd.Dir, s.cmd.Env
	s.cmd = again
	return s.up(false)
}

// up starts the process and waits until it is ready.
func (s *server) up(profiled bool) error {
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
	cmd := s.cmd
	s.Cleanup(func() {
		if profiled { // it writes its profile and ends
			_ = cmd.Process.Signal(syscall.SIGUSR2)
			late := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
			defer late.Stop()
		} else {
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()
	})
	for time.Since(began) < 10*time.Second {
		if res, err := http.Get(s.url + "/readyz"); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				s.start = time.Since(began)
				return nil
			}
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // it measures a start: nothing announces it
	}
	return fmt.Errorf("the server is not ready within 10 s")
}

// complain prints what the server has logged but for the warning that each start with private webhooks gives: a run with
// trouble is no measurement.
func (s *server) complain() {
	raw, err := os.ReadFile(s.log)
	if err != nil {
		return
	}
	shown := 0
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, "PARLEY_ALLOW_PRIVATE_WEBHOOKS") || strings.Contains(line, "level=INFO") || shown > 10 {
			continue
		}
		shown++
		fmt.Fprint(os.Stderr, "  server: ", line)
	}
}

// register registers a webhook endpoint.
func (s *server) register(url string, types ...string) error {
	return s.registerAs(token, url, types...)
}

func (s *server) registerAs(token, url string, types ...string) error {
	_, err := s.postAs(token, "/v1/webhooks", map[string]any{"url": url, "events": types})
	return err
}

// post sends a document with the access token, and returns the answer.
func (s *server) post(path string, doc any) ([]byte, error) { return s.postAs(token, path, doc) }

func (s *server) postAs(token, path string, doc any) ([]byte, error) {
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s: %d %.200s", path, res.StatusCode, answer)
	}
	return answer, err
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

// memoryOf is a process's resident memory, and the part of it that is its own rather than mapped files, in KB.
func memoryOf(pid int) (rss, own float64, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(raw)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kb); n == 1 {
			rss = kb
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kb); n == 1 {
			own = kb
		}
	}
	return rss, own, nil
}
