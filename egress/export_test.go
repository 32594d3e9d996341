package egress

import "net"

// Resolve has the guard's dialers look names up with r.
func (g *Guard) Resolve(r *net.Resolver) { g.guarded.Resolver, g.free.Resolver = r, r }
