package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// profiler is laid over the server's package for a build with profiles, so that the product has no door for them.
const profiler = `package main

import (
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
)

func init() {
	f, err := os.Create(os.Getenv("BENCH_CPUPROFILE"))
	if err != nil {
		return
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGUSR2)
	_ = pprof.StartCPUProfile(f)
	go func() {
		<-stop
		pprof.StopCPUProfile()
		_ = f.Close()
		os.Exit(0)
	}()
}
`

// profiling writes a build overlay with the profiler into dir, and returns its path.
func profiling(ctx context.Context, dir string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "parley").Output()
	if err != nil {
		return "", err
	}
	source, overlay := filepath.Join(dir, "profiler.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(source, []byte(profiler), 0o600); err != nil {
		return "", err
	}
	raw, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(strings.TrimSpace(string(root)), "bench_profiler.go"): source},
	})
	if err != nil {
		return "", err
	}
	return overlay, os.WriteFile(overlay, raw, 0o600)
}
