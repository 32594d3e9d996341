package transport

import (
	"context"
	"errors"
	"sort"
	"time"

	"github.com/99designs/gqlgen/graphql"
)

const (
	// A page is what so many numbers of a feed were made into: few, so that a member which missed
	// little has little made that it does not get, and enough that an execution's beginning costs
	// nothing beside what it makes. Where an operation selects less than one in sparse of what it
	// passes, a page is so many results, however many numbers they are from.
	pageNumbers = 64
	sparse      = 4

	// groupPages is how many bytes of pages a group keeps while members catch up, and allPages how many all groups keep. Who
	// comes after a page was dropped has it made again.
	groupPages = 1 << 20
	allPages   = 32 << 20

	// pageLife is for how long a page is given out: what it shows beside its events was read when it was made.
	pageLife = 10 * time.Second
)

// page is what an operation made of the numbers after one, up to the place at: once for all members that catch up there.
type page struct {
	made    chan struct{} // closed when what follows is set
	results []result
	at      Place
	bytes   int64
	failed  bool // nothing was made: whoever wants it runs alone, and so learns why
	until   time.Time
}

// pageAfter finds or makes a page with what comes after a number that the group has passed, or nil if ctx ends. Pages begin at
// multiples of pageNumbers, so that members find each other's; one that was cut short at the group's last number is gone on
// with from there.
func (g *group) pageAfter(ctx context.Context, seq int64) *page {
	for from := seq - seq%pageNumbers; ; {
		p := g.pageFrom(from)
		select {
		case <-p.made:
		case <-ctx.Done():
			return nil
		}
		if p.failed || p.at.Seq > seq {
			return p
		}
		from = p.at.Seq
	}
}

func (g *group) pageFrom(from int64) *page {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.pages[from]; p != nil && (p.until.IsZero() || time.Now().Before(p.until)) {
		return p
	}
	g.drop(from)
	p := &page{made: make(chan struct{})}
	if g.pages == nil {
		g.pages = map[int64]*page{}
	}
	g.pages[from] = p
	until := g.last
	if !g.sparse {
		until = min(until, from-from%pageNumbers+pageNumbers)
	}
	g.making.Go(func() { g.makePage(p, from, until) })
	return p
}

// makePage executes the operation for the numbers from one to another, for no member in particular: one that leaves meanwhile takes
// nothing from the others.
func (g *group) makePage(p *page, from, until int64) {
	var made collector
	var reached *Place
	func() {
		cursor := g.place(from).Cursor
		ctx, cancel := context.WithCancel(graphql.WithOperationContext(graphql.StartOperationTrace(g.ctx), copyOf(g.op)))
		defer cancel() // it may be stopped before its end
		defer func() {
			if v := recover(); v != nil {
				_ = presentPanic(ctx, g.exec, v)
			}
		}()
		_, reached = runner{exec: g.exec}.alone(ctx, copyOf(g.op), &course{instead: true, after: &cursor, bounded: true, until: until}, &made)
	}()
	g.all.Made.Add(int64(len(made.results)))
	g.mu.Lock()
	defer g.mu.Unlock()
	defer close(p.made)
	if reached == nil && len(made.results) == pageNumbers {
		reached = &made.results[pageNumbers-1].at
	}
	if p.failed = reached == nil; p.failed {
		if g.pages[from] == p {
			delete(g.pages, from)
		}
		return
	}
	g.sparse = int64(len(made.results))*sparse < reached.Seq-from
	p.results, p.at, p.bytes, p.until = made.results, *reached, made.bytes, time.Now().Add(pageLife)
	if g.pages[from] != p {
		return // nobody catches up any more
	}
	g.order = append(g.order, from)
	g.paged += p.bytes
	all := g.all.paged.Add(p.bytes)
	for len(g.order) > 1 && (g.paged > groupPages || all > allPages) {
		all -= g.drop(g.order[0])
	}
}

// drop forgets a page, and returns how many bytes it had; mu is held.
func (g *group) drop(from int64) (bytes int64) {
	p := g.pages[from]
	if p == nil {
		return 0
	}
	delete(g.pages, from)
	for i, f := range g.order {
		if f == from {
			g.order = append(g.order[:i], g.order[i+1:]...)
			break
		}
	}
	g.paged -= p.bytes
	g.all.paged.Add(-p.bytes)
	return p.bytes
}

// walk counts those who catch up. With the last one the pages go.
func (g *group) walk(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.walkers += n; g.walkers == 0 {
		for from := range g.pages {
			g.drop(from)
		}
		g.pages, g.order = nil, nil
	}
}

// since is what the group has to give after a member's place, and how far that goes: of what it remembers, or else a page. It is
// nil if there is none.
func (g *group) since(ctx context.Context, at Place) *page {
	g.mu.Lock()
	if at.Seq >= g.floor {
		i := sort.Search(len(g.memory), func(i int) bool { return g.memory[i].at.Seq > at.Seq })
		p := &page{results: append([]result(nil), g.memory[i:]...), at: at}
		if g.last > at.Seq {
			p.at = g.place(g.last)
		}
		g.mu.Unlock()
		return p
	}
	g.mu.Unlock()
	return g.pageAfter(ctx, at.Seq)
}

// collector is the sink of a page, until that is full.
type collector struct {
	results []result
	bytes   int64
}

var errPageFull = errors.New("the page is full")

func (c *collector) next(_ context.Context, body []byte, at Place) error {
	if len(c.results) == pageNumbers {
		return errPageFull
	}
	c.results = append(c.results, result{body, at})
	c.bytes += int64(len(body)) + frameOverhead
	return nil
}

func (c *collector) offer([]byte, Place) bool { return false }
func (c *collector) began(Place)              {}
func (c *collector) passed(Place)             {}
func (c *collector) slow()                    {}
