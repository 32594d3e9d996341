// Package lru holds what was used last, within a number of bytes.
//
// A Cache is safe for concurrent use, never blocks for longer than a few steps, and holds no more
// than its limit: each entry counts for the size that its caller tells, and for what it takes to
// keep it. When there is no room, what was used longest ago goes.
//
// Entries have owners, for a service that many share. As long as there is room, an owner may fill
// all of it. When there is none, an owner that holds more than its share makes room with its own
// entries: so all that one of them puts in takes at most a share from the others, and an entry that
// is larger than a share is not kept. Whose entries have no owners passes "" for each, and the
// limit as the share.
package lru

import (
	"container/list"
	"sync"
)

// Overhead is what an entry counts for besides its size: its places in a map and two lists.
const Overhead = 256

// Cache is made by New.
type Cache[K comparable, V any] struct {
	limit, share int

	mu      sync.Mutex // guards what follows
	held    int        // bytes
	entries map[K]*entry[K, V]
	recent  *list.List // of *entry, the one used last in front
	owners  map[string]*owner
}

type owner struct {
	held   int
	recent *list.List // of its entries, as in Cache
}

type entry[K comparable, V any] struct {
	key          K
	value        V
	size         int
	owner        string
	inAll, inOwn *list.Element
}

// New makes a cache of so many bytes, of which an owner may take so many from the others.
func New[K comparable, V any](limit, share int) *Cache[K, V] {
	return &Cache[K, V]{
		limit: limit, share: min(share, limit), entries: map[K]*entry[K, V]{}, recent: list.New(), owners: map[string]*owner{},
	}
}

// Get finds what is kept under the key, and has it used now.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.get(key)
}

// Put keeps the owner's value in the place of what is kept under the key, whoever's that is.
func (c *Cache[K, V]) Put(owner string, key K, value V, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.put(owner, key, value, size)
}

// GetOrPut finds what is kept under the key, and otherwise keeps the value: all who ask at once get
// the same. For what takes long to make the value is a sync.OnceValue: the first one makes it, with
// no lock held, and the others wait.
func (c *Cache[K, V]) GetOrPut(owner string, key K, value V, size int) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, ok := c.get(key); ok {
		return kept
	}
	c.put(owner, key, value, size)
	return value
}

// Delete forgets what is kept under the key.
func (c *Cache[K, V]) Delete(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil {
		c.remove(e)
	}
}

func (c *Cache[K, V]) get(key K) (value V, ok bool) {
	e := c.entries[key]
	if e == nil {
		return value, false
	}
	c.recent.MoveToFront(e.inAll)
	c.owners[e.owner].recent.MoveToFront(e.inOwn)
	return e.value, true
}

func (c *Cache[K, V]) put(name string, key K, value V, size int) {
	if old := c.entries[key]; old != nil {
		c.remove(old)
	}
	size += Overhead
	if size > c.share {
		return
	}
	o := c.owners[name]
	if o == nil {
		o = &owner{recent: list.New()}
		c.owners[name] = o
	}
	e := &entry[K, V]{key: key, value: value, size: size, owner: name}
	e.inAll, e.inOwn = c.recent.PushFront(e), o.recent.PushFront(e)
	c.entries[key] = e
	o.held += size
	for c.held += size; c.held > c.limit; {
		from := c.recent
		if o.held > c.share {
			from = o.recent
		}
		c.remove(from.Back().Value.(*entry[K, V])) // never e, which is no larger than a share
	}
}

func (c *Cache[K, V]) remove(e *entry[K, V]) {
	o := c.owners[e.owner]
	c.recent.Remove(e.inAll)
	o.recent.Remove(e.inOwn)
	delete(c.entries, e.key)
	c.held -= e.size
	if o.held -= e.size; o.held == 0 {
		delete(c.owners, e.owner)
	}
}
