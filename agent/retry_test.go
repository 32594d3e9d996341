package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/store"
)

var (
	errAway    = fmt.Errorf("%w: status 503", ErrModelFailed)
	errRefused = fmt.Errorf("%w: %w: status 401", ErrModelFailed, ErrModelRefused)
	errSlow    = fmt.Errorf("%w: %w", ErrModelTimeout, context.DeadlineExceeded)
)

// busy is a failure whose server asks to wait.
func busy(wait time.Duration) error {
	return fmt.Errorf("%w: %w", ErrModelFailed, RetryAfter(wait))
}

func TestWhatFollowsAFailure(t *testing.T) {
	t.Parallel()
	const ever = time.Duration(math.MaxInt64)
	for name, c := range map[string]struct {
		asked  int
		err    error
		heard  bool
		left   time.Duration
		jitter float64
		wait   time.Duration
		again  bool
	}{
		"once":                          {asked: 1, err: errAway, left: ever, wait: 500 * time.Millisecond, again: true},
		"once, with jitter":             {asked: 1, err: errAway, left: ever, jitter: 0.5, wait: 750 * time.Millisecond, again: true},
		"twice":                         {asked: 2, err: errAway, left: ever, wait: time.Second, again: true},
		"twice, with jitter":            {asked: 2, err: errAway, left: ever, jitter: 0.9, wait: 1900 * time.Millisecond, again: true},
		"three times":                   {asked: 3, err: errAway, left: ever},
		"refused":                       {asked: 1, err: errRefused, left: ever},
		"out of time":                   {asked: 1, err: errSlow, left: ever},
		"not the model's fault":         {asked: 1, err: context.Canceled, left: ever},
		"the caller heard a part":       {asked: 1, err: errAway, heard: true, left: ever},
		"asked to wait for longer":      {asked: 1, err: busy(7 * time.Second), left: ever, wait: 7 * time.Second, again: true},
		"asked to wait for less":        {asked: 2, err: busy(time.Millisecond), left: ever, wait: time.Second, again: true},
		"the wait just fits":            {asked: 1, err: busy(7 * time.Second), left: 7*time.Second + 1, wait: 7 * time.Second, again: true},
		"the wait ends at the deadline": {asked: 1, err: busy(7 * time.Second), left: 7 * time.Second, wait: 7 * time.Second},
		"the backoff goes beyond it":    {asked: 1, err: errAway, left: 499 * time.Millisecond, wait: 500 * time.Millisecond},
	} {
		if wait, again := next(c.asked, c.err, c.heard, c.left, c.jitter); wait != c.wait || again != c.again {
			t.Errorf("%s: after %v again: %v, want %v: %v", name, wait, again, c.wait, c.again)
		}
	}
}

// scripted is a model that does one thing after the other.
type scripted struct {
	does  []func(context.Context, Request) (Reply, error)
	asked []time.Time
	keys  []string
	names []string
}

func (s *scripted) Generate(ctx context.Context, req Request) (Reply, error) {
	s.asked = append(s.asked, time.Now())
	s.keys = append(s.keys, req.APIKey)
	s.names = append(s.names, string(req.Agent.Model.Provider))
	return s.does[min(len(s.asked), len(s.does))-1](ctx, req)
}

func fails(err error) func(context.Context, Request) (Reply, error) {
	return func(context.Context, Request) (Reply, error) { return Reply{}, err }
}

func says(text string) func(context.Context, Request) (Reply, error) {
	return func(context.Context, Request) (Reply, error) { return Reply{Text: text}, nil }
}

func hangs(ctx context.Context, _ Request) (Reply, error) {
	<-ctx.Done()
	return Reply{}, errSlow
}

// breaks tells a part of its text before it fails.
func breaks(_ context.Context, req Request) (Reply, error) {
	req.Text("Hel\x00lo")
	return Reply{}, errAway
}

func thinking(models ...*scripted) *thinker {
	t := &thinker{log: slog.New(slog.DiscardHandler)}
	for i, m := range models {
		settings := store.Model{Provider: store.ModelProvider(fmt.Sprint(i))}
		t.choices = append(t.choices, choice{m, &store.Agent{Model: settings}, fmt.Sprintf("key %d", i)})
	}
	return t
}

func TestAStepIsRepeatedUnderOneDeadline(t *testing.T) {
	t.Parallel()
	type outcome struct {
		text           string
		err            error
		first, second  int // times asked
		atLeast, below time.Duration
	}
	always := func(do ...func(context.Context, Request) (Reply, error)) *scripted { return &scripted{does: do} }
	for name, c := range map[string]struct {
		first, second *scripted // second: the fallback
		stream        bool
		want          outcome
	}{
		"at once":                     {always(says("Hi")), nil, false, outcome{"Hi", nil, 1, 0, 0, 1}},
		"the second time":             {always(fails(errAway), says("Hi")), nil, false, outcome{"Hi", nil, 2, 0, 500 * time.Millisecond, time.Second}},
		"the third time":              {always(fails(errAway), fails(errAway), says("Hi")), nil, true, outcome{"Hi", nil, 3, 0, 1500 * time.Millisecond, 3 * time.Second}},
		"never":                       {always(fails(errAway)), nil, false, outcome{"", errAway, 3, 0, 1500 * time.Millisecond, 3 * time.Second}},
		"an empty reply":              {always(says(" \n\x00"), says("Hi\x00")), nil, false, outcome{"Hi", nil, 2, 0, 500 * time.Millisecond, time.Second}},
		"a panic":                     {always(func(context.Context, Request) (Reply, error) { panic("x") }), nil, false, outcome{"", ErrModelFailed, 3, 0, 1500 * time.Millisecond, 3 * time.Second}},
		"refused":                     {always(fails(errRefused)), always(says("No")), false, outcome{"", errRefused, 1, 0, 0, 1}},
		"asked to wait":               {always(fails(busy(20*time.Second)), says("Hi")), nil, false, outcome{"Hi", nil, 2, 0, 20 * time.Second, 20*time.Second + 1}},
		"asked to wait too long":      {always(fails(busy(time.Hour))), nil, false, outcome{"", ErrModelFailed, 1, 0, 0, 1}},
		"a hang":                      {always(hangs), always(says("No")), false, outcome{"", ErrModelTimeout, 1, 0, time.Minute, time.Minute + 1}},
		"broken off after a part":     {always(breaks), always(says("No")), true, outcome{"", errAway, 1, 0, 0, 1}},
		"the fallback":                {always(fails(errAway)), always(says("Ho")), false, outcome{"Ho", nil, 3, 1, 1500 * time.Millisecond, 3 * time.Second}},
		"the fallback, tried again":   {always(fails(errAway)), always(fails(errAway), says("Ho")), false, outcome{"Ho", nil, 3, 2, 2 * time.Second, 4 * time.Second}},
		"the fallback of a slow one":  {always(fails(errSlow)), always(says("Ho")), true, outcome{"Ho", nil, 1, 1, 0, 1}},
		"the fallback, for no time":   {always(fails(busy(time.Hour))), always(says("Ho")), false, outcome{"Ho", nil, 1, 1, 0, 1}},
		"the fallback fails as well":  {always(fails(errAway)), always(fails(errRefused)), false, outcome{"", errRefused, 3, 1, 1500 * time.Millisecond, 3 * time.Second}},
		"a fallback that breaks off":  {always(fails(errSlow)), always(breaks), true, outcome{"", errAway, 1, 1, 0, 1}},
		"a fallback that never comes": {always(fails(errAway)), always(hangs), false, outcome{"", ErrModelTimeout, 3, 1, time.Minute, time.Minute + 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				models := []*scripted{c.first}
				if c.second != nil {
					models = append(models, c.second)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var req Request
				var heard strings.Builder
				if c.stream {
					req.Text = func(delta string) { heard.WriteString(delta) }
				}
				begin := time.Now()
				reply, err := thinking(models...).step(ctx, req)
				took := time.Since(begin)
				if reply.Text != c.want.text || !errors.Is(err, c.want.err) || (err == nil) != (c.want.err == nil) {
					t.Errorf("got %q, %v", reply.Text, err)
				}
				if took < c.want.atLeast || took >= c.want.below {
					t.Errorf("after %v, want %v to %v", took, c.want.atLeast, c.want.below)
				}
				if len(c.first.asked) != c.want.first || c.second != nil && len(c.second.asked) != c.want.second {
					t.Errorf("asked %d times, and %v", len(c.first.asked), c.second)
				}
				if strings.Contains(heard.String(), "\x00") {
					t.Errorf("heard %q", heard.String())
				}
				if c.second != nil && c.want.second > 0 && (c.second.keys[0] != "key 1" || c.second.names[0] != "1") {
					t.Errorf("the fallback was asked with %q as %q", c.second.keys[0], c.second.names[0])
				}
			})
		})
	}
}

func TestATurnStaysWithItsFallback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away, there := &scripted{does: []func(context.Context, Request) (Reply, error){fails(errAway)}}, &scripted{does: []func(context.Context, Request) (Reply, error){says("Ho")}}
		turn := thinking(away, there)
		for range 3 {
			if reply, err := turn.step(t.Context(), Request{}); reply.Text != "Ho" || err != nil {
				t.Fatalf("got %q, %v", reply.Text, err)
			}
		}
		if diff := cmp.Diff([]int{3, 3}, []int{len(away.asked), len(there.asked)}); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAnInterruptedWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		model := &scripted{does: []func(context.Context, Request) (Reply, error){fails(busy(time.Hour))}}
		done := make(chan error, 1)
		go func() {
			_, err := thinking(model).step(ctx, Request{})
			done <- err
		}()
		synctest.Wait() // it sleeps
		begin := time.Now()
		cancel()
		if err := <-done; !errors.Is(err, ErrModelFailed) || time.Since(begin) != 0 || len(model.asked) != 1 {
			t.Errorf("after %v, asked %d times: %v", time.Since(begin), len(model.asked), err)
		}
	})
}

func TestCallsAreAReplyWithoutAText(t *testing.T) {
	t.Parallel()
	model := &scripted{does: []func(context.Context, Request) (Reply, error){func(context.Context, Request) (Reply, error) {
		return Reply{Calls: []Call{{ID: "a\x00", Name: "x\x00y"}}}, nil
	}}}
	reply, err := thinking(model).step(t.Context(), Request{})
	if diff := cmp.Diff([]Call{{ID: "a", Name: "xy"}}, reply.Calls); diff != "" || err != nil {
		t.Error(err, diff)
	}
}
