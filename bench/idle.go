package main

import (
	"context"
	"fmt"
	"time"
)

const (
	viewers  = 1000
	calmDown = 3 * time.Second // after what happened last, until the memory is read
)

// benchIdle measures the start on an empty folder, the memory of an idle server, and that of an idle subscriber.
func benchIdle(ctx context.Context, r *rig) error {
	s, err := r.start(ctx, "PARLEY_MAX_SOCKETS=10000")
	if err != nil {
		return err
	}
	defer s.end()
	if err := pause(ctx, calmDown); err != nil {
		return err
	}
	rss, own, err := memoryOf(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	fmt.Printf("idle, %s: start to /readyz %d ms (gate 1000), resident %.0f MB, of it anonymous %.0f MB (gate 60)\n",
		r.mode, s.start.Milliseconds(), rss/1024, own/1024)
	for range viewers {
		sub, err := s.subscribe()
		if err != nil {
			return err
		}
		go sub.read()
	}
	if err := pause(ctx, calmDown); err != nil {
		return err
	}
	now, _, err := memoryOf(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	fmt.Printf("idle, %s: %.0f KB for each of %d idle subscribers on WebSockets (gate 35)\n", r.mode, (now-rss)/viewers, viewers)
	return nil
}
