package graph

import (
	"context"
	"sync"
	"time"

	"parley/store"
)

// verdictTime is how long it counts that a credential held. With the 3.3 s between a connection's looks at its own, a revoked one
// closes its connections within the 5 s that are promised.
const verdictTime = time.Second

// verdicts ask for all connections of a credential at once whether it has been revoked: a thousand viewers of one dashboard ask
// the database once a second, not each for itself.
type verdicts struct {
	ask func(ctx context.Context) (revoked bool)

	mu sync.Mutex // guards of
	of map[string]*verdict
}

type verdict struct {
	mu      sync.Mutex // guards what follows; held while asking, so that one asks and the others wait for it
	at      time.Time
	revoked bool
}

func (v *verdicts) revoked(ctx context.Context) bool {
	viewer, err := store.ViewerOf(ctx)
	if err != nil {
		return v.ask(ctx)
	}
	is := v.forCredential(viewer.Credential.ID)
	is.mu.Lock()
	defer is.mu.Unlock()
	if !is.revoked && time.Since(is.at) >= verdictTime {
		is.revoked, is.at = v.ask(ctx), time.Now()
	}
	return is.revoked
}

func (v *verdicts) forCredential(id string) *verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	is := v.of[id]
	if is == nil {
		if v.of == nil || len(v.of) >= 1000 { // those of connections that are gone; the others are asked for again
			v.of = map[string]*verdict{}
		}
		is = new(verdict)
		v.of[id] = is
	}
	return is
}
