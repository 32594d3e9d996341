package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	idleViewers   = 1000
	missed        = 1002                  // events that those who resume have missed: 334 chats'
	idlePace      = 50 * time.Millisecond // between chats
	loadedClients = 8
)

// idleShapes measure the start on an empty database, the memory of an idle server, and that of an idle viewer.
func idleShapes(*rig) []shape {
	return []shape{{name: fmt.Sprintf("%d viewers", idleViewers), once: true, alone: true, run: func(ctx context.Context, r *rig, of side) (figures, error) {
		s, err := r.start(ctx, of)
		if err != nil {
			return nil, err
		}
		defer s.end()
		if err := pause(ctx, calmDown); err != nil {
			return nil, err
		}
		resident, own := memoryOf(s.cmd.Process.Pid)
		vs, err := s.connect(idleViewers)
		if err == nil {
			err = errors.Join(vs.subscribe(feedOf("")), pause(ctx, calmDown))
		}
		if err != nil {
			return nil, err
		}
		now, _ := memoryOf(s.cmd.Process.Pid)
		return figures{
			{"start to /readyz, ms", ms(s.start)},
			{"resident, MB", resident},
			{"of it anonymous, MB", own},
			{"an idle viewer, KB", (now - resident) * 1024 / idleViewers},
		}, vs.err(nil)
	}}}
}

// resumeShapes measure what it costs to send a thousand viewers, who all run the same operation, what all of them have missed.
func resumeShapes(*rig) (all []shape) {
	for _, n := range []int64{100, 1000} {
		all = append(all, shape{name: fmt.Sprintf("%d viewers, %d events", n, missed), run: func(ctx context.Context, r *rig, of side) (figures, error) {
			s, err := r.start(ctx, of)
			if err != nil {
				return nil, err
			}
			defer s.end()
			data, err := s.query(demo, "{ feedCursor }")
			if err != nil {
				return nil, err
			}
			if err := repeat(ctx, s.url, demo, clients, missed/perChat); err != nil {
				return nil, err
			}
			vs, err := s.connect(int(n))
			if err != nil {
				return nil, err
			}
			if err := pause(ctx, calmDown); err != nil {
				return nil, err
			}
			cpu, began := r.stack(), time.Now()
			if err := vs.subscribe(feedOf(fmt.Sprintf("(after: %q)", data["feedCursor"]))); err != nil {
				return nil, err
			}
			if err := vs.await(ctx, missed); err != nil {
				return nil, err
			}
			took := time.Since(began).Seconds()
			return figures{
				{"CPU of the stack a message, µs", (r.stack() - cpu) / float64(n*missed) * 1e6},
				{"messages a second", float64(n*missed) / took},
			}, nil
		}})
	}
	return all
}

// feedShapes measure the time from an event's commit to a viewer's socket, idle and under load. An event's timestamp is taken as
// its transaction begins: the median of the time from there, less the mean of what the server's transactions took, is the time
// from the commit.
func feedShapes(*rig) []shape {
	return []shape{{name: "one viewer", run: func(ctx context.Context, r *rig, of side) (figures, error) {
		s, err := r.start(ctx, of)
		if err != nil {
			return nil, err
		}
		defer s.end()
		vs, err := s.connect(1)
		if err != nil {
			return nil, err
		}
		var mu sync.Mutex // guards what follows
		var came []arrival
		vs.all[0].heard = func(at time.Time, message []byte) {
			if stamp, err := stampOf(message); err == nil {
				mu.Lock()
				defer mu.Unlock()
				came = append(came, arrival{at, stamp})
			}
		}
		if err := vs.subscribe(feedOf("")); err != nil {
			return nil, err
		}
		var clock time.Duration // how far the clock of the timestamps is ahead of ours at most
		part := func(what string, load func() error) (figures, error) {
			mu.Lock()
			came = nil
			mu.Unlock()
			from, err := s.metrics()
			if err != nil {
				return nil, err
			}
			if err := errors.Join(load(), pause(ctx, idlePace)); err != nil {
				return nil, err
			}
			to, err := s.metrics()
			commit := 1000 * (to["parley_commit_seconds_total"] - from["parley_commit_seconds_total"]) / (to["parley_commits_total"] - from["parley_commits_total"])
			mu.Lock()
			defer mu.Unlock()
			var took []time.Duration
			for _, a := range came {
				took = append(took, a.at.Sub(a.stamp)+clock)
			}
			f := timesOf(what+": transaction's begin to socket", took, 50, 99)
			if len(f) == 0 {
				return nil, fmt.Errorf("%s: no event came", what)
			}
			return append(f, figure{what + ": commit to socket, p50, ms", f[0].value - commit}), err
		}
		var sent []time.Time
		idle := func() error {
			session := ""
			for until := time.Now().Add(r.measure); time.Now().Before(until); {
				sent = append(sent, time.Now())
				var err error
				if session, err = say(ctx, s.url, demo, session, question); err != nil {
					return err
				}
				if err := pause(ctx, idlePace); err != nil {
					return err
				}
			}
			if r.mode == production {
				// There it is the database's clock as the server has estimated it. No transaction begins before its chat was sent.
				mu.Lock()
				defer mu.Unlock()
				for i := range min(len(sent), len(came)/perChat) {
					if d := came[i*perChat].stamp.Sub(sent[i]); i == 0 || d < clock {
						clock = d
					}
				}
			}
			return nil
		}
		f, err := part("idle", idle)
		if err != nil {
			return nil, err
		}
		loaded, err := part("8 clients", func() error {
			_, err := flatOut(ctx, s.url, []business{demo}, loadedClients, r.measure, nil)
			return err
		})
		return append(f, loaded...), vs.err(err)
	}}}
}
