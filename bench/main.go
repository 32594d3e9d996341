package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"parley/e2e/servers"
)

// benches are all there are, in the order in which they run.
var benches = []struct {
	name string
	run  func(context.Context, *rig) error
}{
	{"chat", benchChat},
	{"deliver", benchDeliver},
	{"fair", benchFair},
	{"backlog", benchBacklog},
	{"feed", benchFeed},
	{"turn", benchTurn},
	{"fanout", benchFanout},
	{"idle", benchIdle},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) == 2 && os.Args[1] == broadcastCommand {
		return broadcast()
	}
	modes := flag.String("mode", "both", "what Parley stands on: `embedded`, production or both")
	short := flag.Bool("short", false, "one quick round of each")
	profiles := flag.String("cpuprofile", "", "a `folder` for CPU profiles of the measured servers, one each")
	flag.Parse()
	if !slices.Contains([]string{embedded, production, "both"}, *modes) {
		return fmt.Errorf("there is no mode %q: embedded, production, both", *modes)
	}
	var names []string
	for _, b := range benches {
		names = append(names, b.name)
	}
	for _, name := range flag.Args() {
		if !slices.Contains(names, name) {
			return fmt.Errorf("there is no bench %q: %s", name, strings.Join(names, ", "))
		}
	}

	stage := newStage(ctx)
	defer stage.end()
	binary, err := build(ctx, stage, *profiles != "")
	if err != nil {
		return err
	}
	fmt.Printf("%s, %d cores, %s/%s\n", runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	for _, mode := range []string{embedded, production} {
		if *modes != mode && *modes != "both" {
			continue
		}
		r := &rig{mode: mode, binary: binary, rounds: 3, short: *short, warmup: time.Second, measure: 4 * time.Second, profiles: *profiles}
		if *short {
			r.measure = time.Second
		}
		if mode == production {
			err := stage.try(func() { r.postgres = servers.NewPostgres(stage); servers.Need(stage, "redis-server") })
			if errors.Is(err, errMissing) {
				fmt.Printf("production: skipped: %v\n", err)
				continue
			}
			if err != nil {
				return err
			}
		}
		for _, b := range benches {
			if flag.NArg() > 0 && !slices.Contains(flag.Args(), b.name) {
				continue
			}
			r.bench = b.name
			if err := b.run(ctx, r); err != nil {
				return fmt.Errorf("%s, %s: %w", b.name, mode, err)
			}
		}
	}
	return nil
}

// build builds the server.
func build(ctx context.Context, stage *stage, profiled bool) (binary string, err error) {
	var dir string
	if err := stage.try(func() { dir = stage.TempDir() }); err != nil {
		return "", err
	}
	binary = filepath.Join(dir, "parley")
	args := []string{"build", "-o", binary}
	if profiled {
		overlay, err := profiling(ctx, dir)
		if err != nil {
			return "", err
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "parley")...)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the server: %w", err)
	}
	return binary, nil
}
