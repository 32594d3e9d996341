package embedded

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"parley/lru"
	"parley/store"
)

func TestAnIndexIsBuiltOnceUnderConcurrentFirstUse(t *testing.T) {
	t.Parallel()
	c := newCache(1 << 20)
	a := &store.Agent{ID: "a", Version: 1, Prompt: "We sell tea."}
	built := make([]*index, 50)
	var wg sync.WaitGroup
	for i := range built {
		wg.Go(func() { built[i] = c.index(a) })
	}
	wg.Wait()
	for _, x := range built {
		if x != built[0] {
			t.Fatal("an index was built twice")
		}
	}
	next := *a
	next.Version++
	if c.index(&next) == built[0] {
		t.Error("the next version has the index of the one before")
	}
}

// TestTheCacheIsBoundedInBytes: what is used all the time stays, of what was used once as much as
// there is room for.
func TestTheCacheIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	const agents = 10
	text := strings.Repeat("tea ", 100)
	of := func(i int) *store.Agent { return &store.Agent{ID: fmt.Sprint(i), Prompt: text} }
	c := newCache(agents * (estimate(of(0)) + lru.Overhead))
	first := c.index(of(0))
	built := make([]*index, 100)
	for i := range built {
		built[i] = c.index(of(1 + i))
		if c.index(of(0)) != first {
			t.Fatal("the one used all the time was thrown out")
		}
	}
	stayed := 0
	for i := range built {
		if kept, ok := c.indexes.Get(version{agent: of(1 + i).ID}); ok && kept() == built[i] {
			stayed++
		}
	}
	if stayed != agents-1 {
		t.Errorf("%d agents are kept besides, want %d", stayed, agents-1)
	}
}

// TestTheLargestAgentIsKept: one with 1 MiB of knowledge, the most that there may be, is not
// indexed for each turn.
func TestTheLargestAgentIsKept(t *testing.T) {
	t.Parallel()
	largest := &store.Agent{ID: "largest", Knowledge: []store.Knowledge{{Title: "tea", Text: strings.Repeat("tea ", 1<<18)}}}
	c := newCache(cacheBytes)
	if first := c.index(largest); first != c.index(largest) {
		t.Error("it was indexed twice")
	}
}
