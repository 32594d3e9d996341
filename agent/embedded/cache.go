package embedded

import (
	"container/list"
	"sync"

	"parley/store"
)

// version names what an index is made of.
type version struct {
	business, agent string
	number          int64
}

// cache keeps the indexes used last, within a number of bytes. It is safe for concurrent use.
type cache struct {
	limit int

	mu     sync.Mutex // guards what follows; never held while an index is built
	of     map[version]*list.Element
	recent *list.List // of *cached, the one used last in front
	size   int
}

type cached struct {
	version version
	size    int
	index   func() *index // built by the first who needs it; the others wait
}

func newCache(limit int) *cache {
	return &cache{limit: limit, of: map[version]*list.Element{}, recent: list.New()}
}

// index is the agent's index, built once for each of its versions as long as it is kept.
func (c *cache) index(a *store.Agent) *index {
	return c.entry(a).index()
}

func (c *cache) entry(a *store.Agent) *cached {
	v := version{a.BusinessID, a.ID, a.Version}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.of[v]; e != nil {
		c.recent.MoveToFront(e)
		return e.Value.(*cached)
	}
	made := &cached{v, estimate(a), sync.OnceValue(func() *index { return newIndex(a) })}
	c.of[v] = c.recent.PushFront(made)
	c.size += made.size
	for c.size > c.limit && c.recent.Len() > 1 { // the one that is asked for stays, however large it is
		last := c.recent.Remove(c.recent.Back()).(*cached)
		delete(c.of, last.version)
		c.size -= last.size
	}
	return made
}

// estimate is about how many bytes an agent's index holds, the texts that it quotes included. It is needed before the index is
// built. Measured were 10 to 12 bytes for each of the demo agent's 8 KiB, and 6.3 for each of 1 MiB.
func estimate(a *store.Agent) int {
	n := len(a.Prompt)
	for _, k := range a.Knowledge {
		n += len(k.Title) + len(k.Text)
	}
	return 2048 + perByte*n
}

// perByte is what a byte of text comes to in an index at most: itself, and its share of the terms, postings and spellings.
const perByte = 12
