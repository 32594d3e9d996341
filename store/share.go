package store

import (
	"github.com/uptrace/bun"
)

// What the rooms above, such as store/hook, share of this package.

// Reader is the connections for lists and everything else that is only read, beside the writer.
func (s *Store) Reader() *bun.DB { return s.read }

// Keyed are the connections for what is read by its key and is not to wait behind lists.
func (s *Store) Keyed() *bun.DB { return s.keyed }

// Leases is the connection for leases, which are not to wait behind anybody. On SQLite it is the writer.
func (s *Store) Leases() *bun.DB { return s.leases }

// Remote says whether other processes write to this database too, and a connection to it can be lost while it lives on.
func (s *Store) Remote() bool { return s.remote() }

// Sealer encrypts secrets at rest.
func (s *Store) Sealer() *Sealer { return s.sealer }

// Locking is the clause with which a query locks what it reads, where there are other writers.
func (s *Store) Locking(how string) string {
	if s.remote() {
		return " FOR " + how
	}
	return ""
}
