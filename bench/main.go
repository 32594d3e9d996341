package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	benches := map[string]func(context.Context, string) error{"chat": benchChat, "idle": benchIdle, "turn": benchTurn}
	names := os.Args[1:]
	if len(names) == 0 {
		names = []string{"chat", "idle"}
	}
	if err := run(ctx, names, benches); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string, benches map[string]func(context.Context, string) error) error {
	dir, err := os.MkdirTemp("", "parley-bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "parley")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "parley")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build the server: %w", err)
	}
	fmt.Printf("%s, %d cores, %s/%s\n", runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	for _, name := range names {
		b := benches[name]
		if b == nil {
			return fmt.Errorf("there is no bench %q: chat, idle", name)
		}
		if err := b(ctx, binary); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
