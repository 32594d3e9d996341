package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	limit = time.Minute // of a bench in one mode
	quiet = 0.10        // the machine's share that others may take in a round that counts
)

// round runs both sides once, and returns what is to be printed of it and its results.
type round func(ctx context.Context) (line string, results []float64, err error)

// repeat runs rounds until as many as wanted had the machine to themselves, or the time is over. It returns the medians of
// those that did, or of all if none did, and says which.
func (r *rig) repeat(ctx context.Context, f round) (medians []float64, note string, err error) {
	var all, calm [][]float64
	var longest time.Duration
	for began := time.Now(); len(calm) < r.rounds && (len(all) == 0 || !r.short && time.Since(began)+longest < limit); {
		w, start := startWatch(), time.Now()
		line, results, err := f(ctx)
		if err != nil {
			return nil, "", err
		}
		others := w.others()
		fmt.Printf("%s, %s: %s   (others took %.0f %% of the machine)\n", r.bench, r.mode, line, 100*others)
		longest = max(longest, time.Since(start))
		all = append(all, results)
		if others <= quiet {
			calm = append(calm, results)
		}
	}
	note = fmt.Sprintf("%d of %d rounds, those with a quiet machine", len(calm), len(all))
	if len(calm) == 0 {
		calm, note = all, fmt.Sprintf("%d rounds, none with a quiet machine: it says little", len(all))
	}
	for i := range calm[0] {
		var of []float64
		for _, results := range calm {
			of = append(of, results[i])
		}
		medians = append(medians, median(of))
	}
	return medians, note, nil
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	if n := len(of); n%2 == 0 {
		return (of[n/2-1] + of[n/2]) / 2
	}
	return of[len(of)/2]
}

// watch tells how much of the machine others take: processes that this one has not started. It reads Linux's /proc; elsewhere
// it knows of nobody.
type watch struct {
	began     time.Time
	busy, own float64 // CPU seconds
}

func startWatch() *watch {
	busy, own, _ := cpu()
	return &watch{time.Now(), busy, own}
}

// others is their share since the start.
func (w *watch) others() float64 {
	busy, own, err := cpu()
	if err != nil {
		return 0
	}
	return max(0, (busy-w.busy)-(own-w.own)) / (time.Since(w.began).Seconds() * float64(runtime.NumCPU()))
}

const ticks = 100 // a second, as /proc counts on all of Linux's common platforms

// cpuOf is the CPU time that a process has spent so far, in seconds.
func cpuOf(pid int) float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:])) // from the third field on
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / ticks
}

// cpu is the CPU time that the machine has spent, and that of this process and all that it has started, so far.
func cpu() (busy, own float64, err error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(strings.SplitN(string(raw), "\n", 2)[0])
	if len(fields) < 9 {
		return 0, 0, errors.New("/proc/stat is short")
	}
	for i, f := range fields[1:9] { // user nice system idle iowait irq softirq steal
		if n, err := strconv.ParseFloat(f, 64); err == nil && i != 3 && i != 4 {
			busy += n / ticks
		}
	}
	parent, spent := map[int]int{}, map[int]float64{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended; whoever waited for it has its time
		}
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:])) // from the third field on
		parent[pid], _ = strconv.Atoi(f[1])
		for _, n := range f[11:15] { // its own, and that of the children it has waited for
			t, _ := strconv.ParseFloat(n, 64)
			spent[pid] += t / ticks
		}
	}
	for pid, t := range spent {
		for p := pid; p > 1; p = parent[p] {
			if p == os.Getpid() {
				own += t
				break
			}
		}
	}
	return busy, own, nil
}
