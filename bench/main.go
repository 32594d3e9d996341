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
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"parley/e2e/servers"
)

// bench measures one thing in several shapes.
type bench struct {
	name   string
	shapes func(r *rig) []shape
}

// shape is what all sides are measured with.
type shape struct {
	name  string
	run   func(ctx context.Context, r *rig, of side) (figures, error)
	bare  func(ctx context.Context, r *rig) (figures, error) // the bare side; nil where there is none
	once  bool                                               // one round is enough, or takes long
	alone bool                                               // no round beside a busy process: it measures memory, or states
}

// benches are all there are, in the order in which they run.
var benches = []bench{
	{"chat", chatShapes},
	{"deliver", deliverShapes},
	{"fair", fairShapes},
	{"resume", resumeShapes},
	{"fanout", fanoutShapes},
	{"feed", feedShapes},
	{"turn", turnShapes},
	{"idle", idleShapes},
	{"growth", growthShapes},
	{"backlog", backlogShapes},
}

// children are what this program is instead of the bench when it is started with one of these words.
var children = map[string]func() error{"broadcast": broadcast, "spin": spin}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) == 2 && children[os.Args[1]] != nil {
		return children[os.Args[1]]()
	}
	r := &rig{warmup: time.Second}
	modes := flag.String("mode", "both", "what Parley stands on: `embedded`, production or both")
	server := flag.String("server", "", "the server `binary` to measure (default: this tree, built)")
	against := flag.String("against", "", "another server `binary`, measured in the same rounds")
	shapes := flag.String("shape", "", "only shapes whose names match this `pattern`")
	flag.IntVar(&r.rounds, "rounds", 4, "of each side")
	flag.BoolVar(&r.busy, "busy", false, "as many rounds again beside a process that keeps one core busy")
	flag.DurationVar(&r.measure, "measure", 4*time.Second, "how long a side is loaded in a round")
	flag.IntVar(&r.events, "events", 1_000_000, "growth: how many events are stored, against 10,000")
	flag.StringVar(&r.profiles, "cpuprofile", "", "a `folder` for CPU profiles of the server that is built here, one each")
	flag.Parse()
	if !slices.Contains([]string{embedded, production, "both"}, *modes) {
		return fmt.Errorf("there is no mode %q: embedded, production, both", *modes)
	}
	only, err := regexp.Compile(*shapes)
	if err != nil {
		return err
	}
	for _, name := range flag.Args() {
		if !slices.ContainsFunc(benches, func(b bench) bool { return b.name == name }) {
			return fmt.Errorf("there is no bench %q", name)
		}
	}
	stage := newStage(ctx)
	defer stage.end()
	if r.sides, err = sides(ctx, stage, *server, *against, r.profiles != ""); err != nil {
		return err
	}
	fmt.Printf("%s, %d cores, %s/%s\n", runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	for _, mode := range []string{embedded, production} {
		if *modes != mode && *modes != "both" {
			continue
		}
		r.mode = mode
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
			for _, s := range b.shapes(r) {
				if !only.MatchString(s.name) {
					continue
				}
				if err := r.compare(ctx, b.name, s); err != nil {
					return fmt.Errorf("%s, %s, %s: %w", b.name, mode, s.name, err)
				}
			}
		}
	}
	return nil
}

// sides are the servers to be measured: the one that is named, or this tree's, and the one that it is compared with.
func sides(ctx context.Context, on *stage, server, against string, profiled bool) (all []side, err error) {
	switch {
	case server == "":
		server, err = build(ctx, on, profiled)
	case profiled:
		err = errors.New("-cpuprofile needs a server that is built here: leave -server out")
	}
	if err != nil {
		return nil, err
	}
	for name, path := range map[string]*string{"server": &server, "against": &against} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err == nil {
			_, err = os.Stat(*path)
		}
		if err != nil {
			return nil, fmt.Errorf("-%s: %w", name, err)
		}
	}
	all = []side{{"server", server}}
	if against != "" {
		all = append(all, side{"against", against})
	}
	return all, nil
}

// build builds this tree's server.
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

// pause waits, or says that the bench was interrupted.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// until asks again, each few milliseconds, until it is done, for so long at most.
func until(ctx context.Context, within time.Duration, what string, done func() (bool, error)) error {
	for late := time.Now().Add(within); ; {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Now().After(late) {
			return fmt.Errorf("%s: not within %v", strings.TrimSpace(what), within)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}
