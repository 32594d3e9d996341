package lru_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"parley/lru"
)

// size makes an entry count for 1 KiB.
const size = 1024 - lru.Overhead

func kept(c *lru.Cache[string, int], format string, n int) (found []int) {
	for i := range n {
		if v, ok := c.Get(fmt.Sprintf(format, i)); ok && v == i {
			found = append(found, i)
		}
	}
	return found
}

func TestWhatWasUsedLongestAgoGoes(t *testing.T) {
	t.Parallel()
	c := lru.New[string, int](4<<10, 4<<10)
	for i := range 4 {
		c.Put("", fmt.Sprint(i), i, size)
	}
	c.Get("0")
	c.Put("", "2", 2, size)
	c.GetOrPut("", "1", 0, size)
	c.Put("", "4", 4, size) // for 3
	c.Put("", "5", 5, size) // for 0
	if got := fmt.Sprint(kept(c, "%d", 6)); got != "[1 2 4 5]" {
		t.Errorf("kept are %s", got)
	}
}

func TestBytesAreBounded(t *testing.T) {
	t.Parallel()
	for _, of := range []int{0, 1, size, 3 * size} {
		c := lru.New[string, int](64<<10, 16<<10)
		for i := range 1000 {
			c.Put(fmt.Sprint(i%7), fmt.Sprint(i), i, of)
		}
		if n, most := len(kept(c, "%d", 1000)), (64<<10)/(of+lru.Overhead); n > most || n < most-1 {
			t.Errorf("%d entries of %d bytes are kept, there is room for %d", n, of, most)
		}
	}
}

func TestAPutReplaces(t *testing.T) {
	t.Parallel()
	c := lru.New[string, int](4<<10, 2<<10)
	c.Put("a", "k", 1, size)
	c.Put("b", "k", 2, size)
	if v, ok := c.Get("k"); !ok || v != 2 {
		t.Errorf("got %d, %v", v, ok)
	}
	if v := c.GetOrPut("a", "k", 3, size); v != 2 {
		t.Errorf("got %d, which was not kept", v)
	}
	c.Put("b", "k", 4, 2<<10) // with what it takes to keep it this is more than a share
	if v, ok := c.Get("k"); ok {
		t.Errorf("got %d", v)
	}
	if v := c.GetOrPut("a", "k", 5, size); v != 5 {
		t.Errorf("got %d", v)
	}
	c.Delete("k")
	c.Delete("k")
	if v, ok := c.Get("k"); ok {
		t.Errorf("got %d, which was deleted", v)
	}
	for i := range 4 { // what was replaced and deleted holds no room
		c.Put("a", fmt.Sprint(i), i, size)
	}
	if n := len(kept(c, "%d", 4)); n != 4 {
		t.Errorf("%d are kept, there is room for 4", n)
	}
}

// TestAnOwnerTakesAShareAtMost has one fill the cache again and again.
func TestAnOwnerTakesAShareAtMost(t *testing.T) {
	t.Parallel()
	c := lru.New[string, int](16<<10, 4<<10)
	flood := func() {
		for i := range 1000 {
			c.Put("a", fmt.Sprintf("a%d", i), i, size)
		}
	}
	flood()
	if n := len(kept(c, "a%d", 1000)); n != 16 {
		t.Errorf("an owner alone keeps %d, there is room for 16", n)
	}
	for i := range 12 {
		c.Put(fmt.Sprint("b", i%3), fmt.Sprintf("b%d", i), i, size)
	}
	if n := len(kept(c, "a%d", 1000)); n != 4 {
		t.Errorf("%d are left of who used theirs longest ago, want 4", n)
	}
	flood()
	if n := len(kept(c, "b%d", 12)); n != 12 {
		t.Errorf("%d of the others' 12 are left", n)
	}
	for i := range 100 { // and another one, who has nothing yet, takes a share and no more
		c.Put("c", fmt.Sprintf("c%d", i), i, size)
	}
	if c, others := len(kept(c, "c%d", 100)), len(kept(c, "b%d", 12))+len(kept(c, "a%d", 1000)); c != 4 || others != 12 {
		t.Errorf("a newcomer keeps %d, the others %d", c, others)
	}
}

func TestWhatIsDearIsMadeOnce(t *testing.T) {
	t.Parallel()
	c := lru.New[int, func() int](1<<20, 1<<20)
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			of := c.GetOrPut("", 1, sync.OnceValue(func() int { return int(made.Add(1)) }), size)
			if of() != 1 {
				t.Error("it was made twice")
			}
		})
	}
	wg.Wait()
}

// TestManyAtOnce is for the race detector; and whatever they did, the bound holds.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	c := lru.New[string, int](32<<10, 8<<10)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1)) //nolint:gosec // no secret
			for range 5000 {
				n := random.IntN(100)
				key, owner := fmt.Sprint(n), fmt.Sprint(random.IntN(5))
				switch random.IntN(4) {
				case 0:
					c.Delete(key)
				case 1:
					c.Put(owner, key, n, size)
				case 2:
					if v := c.GetOrPut(owner, key, n, size); v != n {
						t.Errorf("%s: got %d", key, v)
					}
				default:
					if v, ok := c.Get(key); ok && v != n {
						t.Errorf("%s: got %d", key, v)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := len(kept(c, "%d", 100)); n > 32 {
		t.Errorf("%d are kept, there is room for 32", n)
	}
	for i := range 32 {
		c.Put(fmt.Sprint(i), fmt.Sprintf("x%d", i), i, size)
	}
	if n := len(kept(c, "x%d", 32)); n != 32 {
		t.Errorf("%d of the last 32 are kept", n)
	}
}
