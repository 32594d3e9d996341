package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"parley/store"
)

const (
	maxAsked     = 3                      // times that one model is asked for one step: what is still away then is away for longer than anyone waits
	firstBackoff = 500 * time.Millisecond // doubled each time, and up to as much again on top, so that those who failed together come back apart
)

// next decides what follows when a model was asked so many times and failed: whether it is asked again, and after how long.
// A refused request is refused again. A text of which the caller has heard the beginning would begin anew. A wait that ends
// after the turn's deadline, left from now, is not begun: the caller is told at once.
func next(asked int, err error, heard bool, left time.Duration, jitter float64) (wait time.Duration, again bool) {
	if asked >= maxAsked || heard || !errors.Is(err, ErrModelFailed) || errors.Is(err, ErrModelRefused) {
		return 0, false
	}
	wait = firstBackoff << (asked - 1)
	wait += time.Duration(jitter * float64(wait))
	var told RetryAfter
	if errors.As(err, &told) {
		wait = max(wait, time.Duration(told))
	}
	return wait, wait < left
}

// fallsBack decides whether a model's failure is its fallback's turn. A refused request is not: it is the business's to
// mend, and nothing that one model declines is brought to another.
func fallsBack(err error, heard bool) bool {
	return !heard && !errors.Is(err, ErrModelRefused) && (errors.Is(err, ErrModelFailed) || errors.Is(err, ErrModelTimeout))
}

// choice is a model that may make the steps of a turn.
type choice struct {
	model  Model
	agent  *store.Agent // with the settings of this model
	apiKey string
}

// choices are the agent's model and its fallback, if it has one.
func (r *Runner) choices(agent *store.Agent) ([]choice, error) {
	var out []choice
	for settings := &agent.Model; settings != nil; settings = settings.Fallback {
		as := *agent
		as.Model = *settings
		model := r.cfg.Models[settings.Provider]
		if model == nil {
			return nil, fmt.Errorf("agent %s: no model for the provider %q", agent.ID, settings.Provider)
		}
		key, err := r.cfg.Store.ModelKey(&as)
		if err != nil {
			return nil, err
		}
		out = append(out, choice{model, &as, key})
	}
	return out, nil
}

// thinker makes the steps of one turn with the first of its choices that does not fail. A turn that had to fall back stays
// with the fallback: what was away a step ago is not waited for again.
type thinker struct {
	choices []choice
	log     *slog.Logger  // with the run's id
	asked   func(Asked)   // nil: nobody is told
	took    time.Duration // all steps so far
}

// step makes one step, all of it before ctx ends. The request's agent and key are those of the choice.
func (t *thinker) step(ctx context.Context, req Request) (Reply, error) {
	defer func(began time.Time) { t.took += time.Since(began) }(time.Now())
	heard := false
	if text := req.Text; text != nil {
		req.Text = func(delta string) {
			if delta = withoutNUL(delta); delta != "" {
				heard = true
				text(delta)
			}
		}
	}
	for asked := 1; ; asked++ {
		c := t.choices[0]
		req.Agent, req.APIKey = c.agent, c.apiKey
		began := time.Now()
		reply, err := generate(ctx, c.model, req)
		t.tell(c, began, reply.Usage, err)
		if err == nil || ctx.Err() != nil {
			return reply, err
		}
		left := time.Duration(math.MaxInt64)
		if deadline, ok := ctx.Deadline(); ok {
			left = time.Until(deadline)
		}
		wait, again := next(asked, err, heard, left, rand.Float64())
		switch {
		case again:
			t.log.Warn("a model failed, and is asked again", "model", modelName(c.agent), "wait", wait, "error", brief(err))
			select {
			case <-ctx.Done():
				return Reply{}, err
			case <-time.After(wait):
			}
		case len(t.choices) > 1 && fallsBack(err, heard):
			t.log.Warn("a model failed, and its fallback is asked", "model", modelName(c.agent), "error", brief(err))
			t.choices = t.choices[1:]
			asked = 0
		default:
			return Reply{}, err
		}
	}
}

// generate asks the model, and takes a panic or a reply with nothing in it for a failure.
func generate(ctx context.Context, model Model, req Request) (reply Reply, err error) {
	defer func() {
		if p := recover(); p != nil {
			reply, err = Reply{}, fmt.Errorf("%w: panic: %v", ErrModelFailed, p)
		}
	}()
	reply, err = model.Generate(ctx, req)
	if err != nil {
		return reply, err
	}
	reply.Text = withoutNUL(reply.Text)
	for i := range reply.Calls {
		reply.Calls[i].ID, reply.Calls[i].Name = withoutNUL(reply.Calls[i].ID), withoutNUL(reply.Calls[i].Name)
	}
	if strings.TrimSpace(reply.Text) == "" && len(reply.Calls) == 0 {
		return reply, fmt.Errorf("%w: an empty reply", ErrModelFailed)
	}
	return reply, nil
}

// withoutNUL drops what no database keeps alike.
func withoutNUL(s string) string { return strings.ReplaceAll(s, "\x00", "") }
