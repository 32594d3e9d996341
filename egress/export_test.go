package egress

import "net"

// Resolve has the guard's dialers look names up with r.
func (g *Guard) Resolve(r *net.Resolver) { g.guarded.Resolver, g.free.Resolver = r, r }

// Sweep does at once what happens each sweepEvery.
func (t Transport) Sweep() { t.kept.sweep() }

// Waiting is how many connections and targets are kept.
func (t Transport) Waiting() (connections, targets int) {
	t.kept.mu.Lock()
	defer t.kept.mu.Unlock()
	return t.kept.idle.Len(), len(t.kept.targets)
}
