package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// side is who is measured: a server binary, or the bare side, which is in this program.
type side struct {
	name   string
	binary string
}

// figure is one number that a side has in a round.
type figure struct {
	name  string
	value float64
}

type figures []figure

func (f figures) value(name string) (float64, bool) {
	for _, g := range f {
		if g.name == name {
			return g.value, true
		}
	}
	return 0, false
}

func (f figures) String() string {
	var all []string
	for _, g := range f {
		all = append(all, g.name+" "+digits(g.value))
	}
	return strings.Join(all, ", ")
}

// digits writes three of them, or as many as there are before the point.
func digits(x float64) string {
	switch {
	case x >= 100 || x <= -100 || x == 0:
		return fmt.Sprintf("%.0f", x)
	case x >= 10 || x <= -10:
		return fmt.Sprintf("%.1f", x)
	case x >= 1 || x <= -1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3f", x)
}

// compare measures all sides in rounds, in turns: A B, B A, A B, … A machine's pace drifts by a factor of two within an hour, so
// each ratio is one of two neighbours, and what is told is the median of the ratios with the least and the greatest.
func (r *rig) compare(ctx context.Context, bench string, s shape) error {
	loads := []string{"quiet"}
	if r.busy && !s.alone {
		loads = append(loads, "busy")
	}
	all := slices.Clone(r.sides)
	if s.bare != nil {
		all = append(all, side{name: "bare"})
	}
	rounds := r.rounds
	if s.once {
		rounds = 1
	}
	for _, load := range loads {
		r.title = fmt.Sprintf("%s, %s, %s, %s", bench, r.mode, s.name, load)
		results := map[string][]figures{}
		others := 0.0
		for n := range rounds {
			turn := slices.Clone(all)
			if n%2 == 1 {
				slices.Reverse(turn)
			}
			for _, of := range turn {
				f, taken, err := r.round(ctx, s, of, load == "busy")
				if err != nil {
					return fmt.Errorf("%s: %w", of.name, err)
				}
				fmt.Printf("  %s, %s: %v   (others took %.0f %% of the machine)\n", r.title, of.name, f, 100*taken)
				results[of.name] = append(results[of.name], f)
				others = max(others, taken)
			}
		}
		fmt.Printf("%s: %d rounds, others took at most %.0f %% of the machine\n", r.title, rounds, 100*others)
		report(all, results)
	}
	return nil
}

// round measures one side.
func (r *rig) round(ctx context.Context, s shape, of side, busy bool) (f figures, others float64, err error) {
	if r.mode == production {
		if err := r.checkpoint(ctx); err != nil { // what the side before has left to be written is not this one's
			return nil, 0, err
		}
	}
	if busy {
		stop, err := r.startSpinning(ctx)
		if err != nil {
			return nil, 0, err
		}
		defer stop()
	}
	w := startWatch()
	if of.binary == "" {
		f, err = s.bare(ctx, r)
	} else {
		f, err = s.run(ctx, r, of)
	}
	return f, w.others(), err
}

// report prints the medians of all sides, and what the first is of each other.
func report(all []side, results map[string][]figures) {
	first := results[all[0].name]
	for _, g := range first[0] {
		line := fmt.Sprintf("    %-50s", g.name)
		for _, of := range all {
			var values, ratios []float64
			for n, f := range results[of.name] {
				x, ok := f.value(g.name)
				if !ok {
					continue
				}
				values = append(values, x)
				if mine, ok := first[n].value(g.name); ok && x != 0 {
					ratios = append(ratios, mine/x)
				}
			}
			if len(values) == 0 {
				continue
			}
			line += fmt.Sprintf("  %s %8s", of.name, digits(median(values)))
			if of != all[0] && len(ratios) > 0 {
				line += fmt.Sprintf("  ratio %.2f (%.2f to %.2f)", median(ratios), slices.Min(ratios), slices.Max(ratios))
			}
		}
		fmt.Println(line)
	}
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	if n := len(of); n%2 == 0 {
		return (of[n/2-1] + of[n/2]) / 2
	}
	return of[len(of)/2]
}

// timesOf are the figures of how long something took, in milliseconds.
func timesOf(what string, took []time.Duration, percentiles ...int) (f figures) {
	if len(took) == 0 {
		return nil
	}
	slices.Sort(took)
	for _, p := range percentiles {
		f = append(f, figure{fmt.Sprintf("%s, p%d, ms", what, p), ms(took[len(took)*p/100])})
	}
	return f
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// child starts this program as one of its children, which ends when its stdin does. What it prints first is returned.
func child(ctx context.Context, on *stage, word string) (in io.Writer, said string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	cmd := exec.CommandContext(ctx, self, word)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	on.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	said, err = bufio.NewReader(out).ReadString('\n')
	return stdin, strings.TrimSpace(said), err
}

// spin says its process's id, and keeps one core busy until its stdin ends.
func spin() error {
	fmt.Println(os.Getpid())
	go func() {
		for { //nolint:staticcheck // that is what it is for
		}
	}()
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// startSpinning has a process of this program keep one core busy, until stop.
func (r *rig) startSpinning(ctx context.Context) (stop func(), err error) {
	on := newStage(ctx)
	_, pid, err := child(ctx, on, "spin")
	if err == nil {
		r.spinner, err = strconv.Atoi(pid)
	}
	if err != nil {
		on.end()
		return nil, err
	}
	return func() { on.end(); r.spinner = 0 }, nil
}
