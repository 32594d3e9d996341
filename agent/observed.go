package agent

import (
	"errors"
	"time"

	"parley/store"
)

// Asked is one call of a model.
type Asked struct {
	Provider store.ModelProvider
	Outcome  string // ok, failed, refused or timeout
	Took     time.Duration
	Usage    store.TokenUsage
}

// Ended is a turn that has ended, after it had begun.
type Ended struct {
	Outcome string // finished, or the reason word of its refusal
	Took    time.Duration
	Model   time.Duration // of that, the calls of its models, and the waits between them
	Tools   time.Duration // and of its tools
}

// tell tells of a call of a model.
func (t *thinker) tell(c choice, began time.Time, usage store.TokenUsage, err error) {
	if t.asked == nil {
		return
	}
	outcome := "ok"
	switch {
	case err == nil:
	case errors.Is(err, ErrModelTimeout):
		outcome = "timeout"
	case errors.Is(err, ErrModelRefused):
		outcome = "refused"
	default:
		outcome = "failed"
	}
	t.asked(Asked{c.agent.Model.Provider, outcome, time.Since(began), usage})
}

// ended tells of a turn that ended with what its caller is told.
func (r *Runner) ended(began time.Time, model, tools time.Duration, told error) {
	if r.cfg.Ended == nil {
		return
	}
	outcome := "finished"
	if told != nil {
		outcome = "internal"
		if refusal, ok := store.AsError(told); ok {
			outcome = refusal.Reason
		}
	}
	r.cfg.Ended(Ended{outcome, time.Since(began), model, tools})
}
