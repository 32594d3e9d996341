package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const ticks = 100 // a second, as /proc counts on all of Linux's common platforms

// spent is the CPU time of each process below this one, in seconds, with that of the children which it has waited for, under the
// child of ours that it descends from; this one's own is under its own id. It reads Linux's /proc.
func spent() map[int]float64 {
	parent, cpu, own := map[int]int{}, map[int]float64{}, os.Getpid()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended; whoever waited for it has its time
		}
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:])) // from the third field on
		parent[pid], _ = strconv.Atoi(f[1])
		for _, n := range f[11:15] { // user and system, its own and its children's
			t, _ := strconv.ParseFloat(n, 64)
			cpu[pid] += t / ticks
		}
	}
	all := map[int]float64{own: cpu[own]}
	for pid, t := range cpu {
		for p := pid; p > 1; p = parent[p] {
			if parent[p] == own {
				all[p] += t
				break
			}
		}
	}
	return all
}

// stack is the CPU time that the whole stack has spent, in seconds: all that this process has started, with whatever they have
// started, which is the server, PostgreSQL and Redis; but neither the load, which is this process, nor the spinner.
func (r *rig) stack() (seconds float64) {
	for pid, t := range spent() {
		if pid != os.Getpid() && pid != r.spinner {
			seconds += t
		}
	}
	return seconds
}

// watch tells how much of the machine others take: processes that this one has not started.
type watch struct {
	began     time.Time
	busy, own float64 // CPU seconds
}

func startWatch() *watch {
	busy, own := machine()
	return &watch{time.Now(), busy, own}
}

// others is their share since the start.
func (w *watch) others() float64 {
	busy, own := machine()
	return max(0, (busy-w.busy)-(own-w.own)) / (time.Since(w.began).Seconds() * float64(runtime.NumCPU()))
}

// machine is the CPU time that the machine has spent so far, and of it this process and all that it has started.
func machine() (busy, own float64) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	for i, f := range strings.Fields(strings.SplitN(string(raw), "\n", 2)[0]) {
		if n, err := strconv.ParseFloat(f, 64); err == nil && i != 4 && i != 5 && i < 9 { // 4 and 5: idle, and waiting for a disk
			busy += n / ticks
		}
	}
	for _, t := range spent() {
		own += t
	}
	return busy, own
}

// memoryOf is a process's resident memory, and the part of it that is its own rather than mapped files, in MB.
func memoryOf(pid int) (resident, own float64) {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(raw)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f kB", &kb); n == 1 {
			resident = kb / 1024
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %f kB", &kb); n == 1 {
			own = kb / 1024
		}
	}
	return resident, own
}
