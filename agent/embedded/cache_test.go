package embedded

import (
	"fmt"
	"strings"
	"sync"
	"testing"

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

func TestTheCacheIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	const agents = 10
	text := strings.Repeat("tea ", 100)
	of := func(i int) *store.Agent { return &store.Agent{ID: fmt.Sprint(i), Prompt: text} }
	c := newCache(agents * estimate(of(0)))
	first := c.index(of(0))
	for i := range 100 {
		c.index(of(1 + i))
		if i < 50 && c.index(of(0)) != first {
			t.Fatal("the one used all the time was thrown out")
		}
		if c.size > c.limit || c.recent.Len() != len(c.of) {
			t.Fatalf("%d bytes are kept, %d are allowed; %d in a row, %d by name", c.size, c.limit, c.recent.Len(), len(c.of))
		}
	}
	if len(c.of) != agents || c.index(of(0)) == first {
		t.Errorf("%d agents are kept, and the one long unused may be among them", len(c.of))
	}
	huge := &store.Agent{ID: "huge", Prompt: strings.Repeat(text, 100)}
	if first, again := c.index(huge), c.index(huge); first != again {
		t.Error("an agent larger than the cache is indexed for each turn")
	}
}
