package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

// server is a Parley in a folder of its own.
type server struct {
	cmd   *exec.Cmd
	dir   string
	url   string
	start time.Duration // from the exec to the first 200 of /readyz
}

const apiKey = "sk_bench_key"

func startServer(ctx context.Context, binary string, env ...string) (*server, error) {
	dir, err := os.MkdirTemp("", "parley-bench-run")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	s := &server{dir: dir, url: "http://" + addr, cmd: exec.CommandContext(ctx, binary)}
	s.cmd.Dir = dir
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PARLEY_") && !strings.HasPrefix(kv, "OPENAI_") {
			s.cmd.Env = append(s.cmd.Env, kv)
		}
	}
	s.cmd.Env = append(append(s.cmd.Env, "PARLEY_ADDR="+addr, "PARLEY_BOOTSTRAP_API_KEY="+apiKey, "PARLEY_BOOTSTRAP_TOKEN=at_bench"), env...)
	s.cmd.Stderr = os.Stderr
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for time.Since(began) < 10*time.Second {
		if res, err := http.Get(s.url + "/readyz"); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				s.start = time.Since(began)
				return s, nil
			}
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // it measures a start: nothing announces it
	}
	s.stop()
	return nil, fmt.Errorf("the server is not ready within 10 s")
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

// memory is the server's resident memory, and the part of it that is its own rather than mapped files, in MB.
func (s *server) memory() (rss, own float64, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(raw)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kb); n == 1 {
			rss = kb / 1024
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kb); n == 1 {
			own = kb / 1024
		}
	}
	return rss, own, nil
}

// benchIdle measures the start on an empty folder and the memory of an idle server.
func benchIdle(ctx context.Context, binary string) error {
	s, err := startServer(ctx, binary)
	if err != nil {
		return err
	}
	defer s.stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(3 * time.Second):
	}
	rss, own, err := s.memory()
	if err != nil {
		return err
	}
	fmt.Printf("idle: start to /readyz %d ms (gate: under 1000), resident %.0f MB, of it anonymous %.0f MB (gate: under 60)\n",
		s.start.Milliseconds(), rss, own)
	return nil
}
