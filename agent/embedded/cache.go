package embedded

import (
	"sync"

	"parley/lru"
	"parley/store"
)

// version names what an index is made of.
type version struct {
	business, agent string
	number          int64
}

// cache keeps the indexes used last, within a number of bytes, of which one business takes a
// quarter from the others at most.
type cache struct {
	indexes *lru.Cache[version, func() *index]
}

func newCache(limit int) cache { return cache{lru.New[version, func() *index](limit, limit/4)} }

// index is the agent's index, built once for each of its versions as long as it is kept: by the
// first who needs it, while the others wait.
func (c cache) index(a *store.Agent) *index {
	v := version{a.BusinessID, a.ID, a.Version}
	built, ok := c.indexes.Get(v)
	if !ok {
		built = c.indexes.GetOrPut(a.BusinessID, v, sync.OnceValue(func() *index { return newIndex(a) }), estimate(a))
	}
	return built()
}

// estimate is about how many bytes an agent's index holds, the texts that it quotes included. It is
// needed before the index is built. Measured were 10 to 12 bytes for each of the demo agent's 8
// KiB, and 6.3 for each of 1 MiB.
func estimate(a *store.Agent) int {
	n := len(a.Prompt)
	for _, k := range a.Knowledge {
		n += len(k.Title) + len(k.Text)
	}
	return 2048 + perByte*n
}

// perByte is what a byte of text comes to in an index at most: itself, and its share of the terms,
// postings and spellings.
const perByte = 12
