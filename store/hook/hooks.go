package hook

import (
	"context"
	"log/slog"
	"reflect"
	"time"

	"parley/store"
)

// Config is what Hooks are opened with.
type Config struct {
	Store         *store.Store
	CheckURL      func(raw string) store.Faults // of a webhook; nil: none has any
	NewSecret     func() string                 // makes the signing secret of an endpoint
	MaxEndpoints  int                           // enabled endpoints a business, agents' own among them; 0: 100
	EndpointGrace time.Duration                 // how long deliveries may fail without one success before their endpoint is disabled; 0: 72 h

	// Changed is told of a business whose endpoints changed, or for which something is due now, after the commit. It must
	// not block. Nil: nobody is told.
	Changed func(business string)
	// DeliveriesChanged is told of deliveries that changed, after the commit. It must not block. Nil: nobody is told.
	DeliveriesChanged func(business string, ids ...string)

	Log *slog.Logger
}

// Hooks are the endpoints and deliveries of a store. Its methods are safe for concurrent use.
type Hooks struct {
	cfg    Config
	store  *store.Store
	opened openedSecrets
	sweep  chan struct{} // the sweeper is to look: one waits at most
}

// New makes the hooks of a store, which has deliveries made from then on.
func New(cfg Config) *Hooks {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxEndpoints == 0 {
		cfg.MaxEndpoints = 100
	}
	if cfg.EndpointGrace == 0 {
		cfg.EndpointGrace = 72 * time.Hour
	}
	if cfg.CheckURL == nil {
		cfg.CheckURL = func(string) store.Faults { return nil }
	}
	if cfg.Changed == nil {
		cfg.Changed = func(string) {}
	}
	if cfg.DeliveriesChanged == nil {
		cfg.DeliveriesChanged = func(string, ...string) {}
	}
	h := &Hooks{cfg: cfg, store: cfg.Store, sweep: make(chan struct{}, 1)}
	h.store.Table(reflect.TypeFor[birth](), "")
	h.store.Table(reflect.TypeFor[Attempt](), " ON CONFLICT DO NOTHING")
	h.store.SetOutbox(h)
	return h
}

// changed tells of a business whose endpoints are changed by the transaction.
func (h *Hooks) changed(t *store.Tx, business string) {
	t.After(func() { h.cfg.Changed(business) })
}

// nudge has the sweeper look at once.
func (h *Hooks) nudge() {
	select {
	case h.sweep <- struct{}{}:
	default: // it is about to
	}
}

// change runs a transaction of its own statements.
func (h *Hooks) change(business string, size int, apply func(ctx context.Context, t *store.Tx) error) error {
	return h.store.Change(business, size, apply)
}
