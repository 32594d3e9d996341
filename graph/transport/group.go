package transport

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

const (
	// A group remembers so much of what it has last given out: a member that has caught up to somewhere in it can join.
	groupMemory = 256
	groupBytes  = 256 << 10

	// lagBytes is how much a group keeps for a member whose own queue is full, where the stream has no places to catch up by.
	lagBytes = 1 << 20
)

// Shared says how an operation shares its execution with others.
type Shared struct {
	Key     string          // equal for those alone that have the same results, whoever asks
	Context context.Context // what the execution runs in: nothing in it is any one member's
	// Place is the place of a number of its stream, where it has places: who missed something can catch up. Nil: it has none.
	Place func(seq int64) Place
}

// Groups lets equal subscriptions share one execution: each result is made once, and its bytes go to every member.
//
// Where the stream has places a member first catches up to where the group is, and joins there: it gets nothing at or below its
// place from the group, and everything after it. What members catch up by is made in pages, each once for all who want it at that
// time; each takes them at its own pace. A member that cannot take a result at once leaves the group and catches up again: it
// costs the others nothing. A group ends with its last member.
type Groups struct {
	// Of says whether an operation shares its execution, and with whom.
	Of func(ctx context.Context, op *graphql.OperationContext) (Shared, bool)

	// Made counts the results of subscriptions that were made, and Given those that were given to a client: one that is made
	// for a group is given to each of its members.
	Made, Given atomic.Int64

	paged atomic.Int64 // bytes of the groups' pages

	mu     sync.Mutex // guards what follows
	groups map[string]*group
}

// group is one execution and its members.
type group struct {
	all    *Groups
	exec   graphql.GraphExecutor
	op     *graphql.OperationContext
	place  func(seq int64) Place // nil: its stream has none
	ctx    context.Context       // what all that it makes is made in
	cancel context.CancelFunc
	making sync.WaitGroup // of pages
	users  int            // operations that are in it, or are to be; guarded by Groups.mu
	ready  chan struct{}  // closed when its resolver has begun
	ended  chan struct{}  // closed when the execution has ended
	errs   gqlerror.List  // what it ended with; set before ended is closed

	mu      sync.Mutex // guards what follows, and the members' fields; never held while waiting
	members map[*member]struct{}
	last    int64 // the number up to which all is given out
	floor   int64 // memory holds all that was given out with a higher number
	memory  []result
	bytes   int
	walkers int             // members that catch up
	pages   map[int64]*page // by the number that they begin after
	order   []int64         // of those that are made, oldest first
	paged   int64           // their bytes
	sparse  bool            // the last one had few results for its numbers
}

// result is what one item of a stream was made into.
type result struct {
	body []byte
	at   Place
}

// member is one client of a group.
type member struct {
	to     sink
	at     Place         // what it was last given
	full   chan struct{} // closed when it could not take a result, and so is a member no more
	lag    []result      // what it could not take yet, where there are no places
	lagged int           // bytes of lag
	behind bool          // lag is not all sent
	wake   chan struct{} // holds one: there is lag
}

func newMember(to sink) *member {
	return &member{to: to, full: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// enter finds or begins the group of an operation; leave it after use. Without places m is a member from here on, so that it
// gets the execution's first result.
func (t *Groups) enter(exec graphql.GraphExecutor, op *graphql.OperationContext, shared Shared, m *member) *group {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[shared.Key]
	var begin func()
	if g == nil {
		ctx, cancel := context.WithCancel(shared.Context)
		begun := &group{
			all: t, exec: exec, op: copyOf(op), place: shared.Place, ctx: ctx, cancel: cancel,
			ready: make(chan struct{}), ended: make(chan struct{}), members: map[*member]struct{}{},
		}
		if t.groups == nil {
			t.groups = map[string]*group{}
		}
		t.groups[shared.Key] = begun
		g, begin = begun, func() {
			defer close(begun.ended)
			begun.errs = begun.run()
			t.forget(shared.Key, begun)
		}
	}
	g.users++
	if g.place == nil {
		g.join(m)
	}
	if begin != nil {
		go begin()
	}
	return g
}

// copyOf is the same operation, with nothing of the request that it came by.
func copyOf(op *graphql.OperationContext) *graphql.OperationContext {
	return &graphql.OperationContext{
		RawQuery: op.RawQuery, Variables: op.Variables, OperationName: op.OperationName, Doc: op.Doc, Extensions: op.Extensions,
		Operation: op.Operation, DisableIntrospection: op.DisableIntrospection, RecoverFunc: op.RecoverFunc,
		ResolverMiddleware: op.ResolverMiddleware, RootResolverMiddleware: op.RootResolverMiddleware, Stats: op.Stats,
	}
}

func (t *Groups) leave(key string, g *group) {
	t.mu.Lock()
	g.users--
	last := g.users == 0
	if last && t.groups[key] == g {
		delete(t.groups, key)
	}
	t.mu.Unlock()
	if last {
		g.cancel()
		<-g.ended
		g.making.Wait()
	}
}

// forget makes who comes later begin a new group.
func (t *Groups) forget(key string, g *group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.groups[key] == g {
		delete(t.groups, key)
	}
}

// run is the execution.
func (g *group) run() (errs gqlerror.List) {
	exec, op := g.exec, copyOf(g.op)
	begun := false
	begin := func() {
		if !begun {
			begun = true
			close(g.ready)
		}
	}
	c := &course{instead: true, passed: g.pass, began: func(at Place) { g.last, g.floor = at.Seq, at.Seq }} // nobody else is there before ready
	ctx := withCourse(graphql.WithOperationContext(graphql.StartOperationTrace(g.ctx), op), c)
	defer begin()
	defer func() {
		if v := recover(); v != nil {
			errs = presentPanic(ctx, exec, v)
		}
	}()
	responses, ctx := exec.DispatchOperation(ctx, op)
	begin()
	for {
		resp := responses(ctx)
		if resp == nil {
			break
		}
		at := c.take()
		if len(resp.Data) == 0 && len(resp.Errors) > 0 {
			return resp.Errors
		}
		body, err := encodeResponse(resp)
		if err != nil {
			return present(ctx, exec, err)
		}
		g.all.Made.Add(1)
		g.give(result{body, at})
		c.sent()
	}
	if err, _ := c.end(); err != nil {
		return present(ctx, exec, err)
	}
	return nil
}

// give gives a result to every member, and waits for none.
func (g *group) give(r result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.place != nil {
		g.remember(r)
	}
	given := int64(0)
	for m := range g.members {
		switch {
		case g.place != nil && r.at.Seq <= m.at.Seq: // it has that
		case g.hand(m, r):
			given++
		default:
			delete(g.members, m)
			close(m.full)
		}
	}
	g.all.Given.Add(given)
}

// pass notes that up to a place there is nothing more to give out.
func (g *group) pass(at Place) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = max(g.last, at.Seq)
	for m := range g.members {
		if at.Seq > m.at.Seq {
			m.at = at
			m.to.passed(at)
		}
	}
}

func (g *group) remember(r result) {
	g.last = r.at.Seq
	g.memory = append(g.memory, r)
	g.bytes += len(r.body)
	drop := 0
	for ; len(g.memory)-drop > groupMemory || g.bytes > groupBytes && drop < len(g.memory); drop++ {
		g.bytes -= len(g.memory[drop].body)
		g.floor = g.memory[drop].at.Seq
	}
	if drop > 0 {
		n := copy(g.memory, g.memory[drop:])
		clear(g.memory[n:])
		g.memory = g.memory[:n]
	}
}

// hand gives a member one result; mu is held. It is false if the member cannot take it.
func (g *group) hand(m *member, r result) bool {
	if !m.behind && m.to.offer(r.body, r.at) {
		m.at = r.at
		return true
	}
	if g.place != nil || m.lagged+len(r.body)+frameOverhead > lagBytes {
		return false
	}
	m.lag, m.behind = append(m.lag, r), true
	m.lagged += len(r.body) + frameOverhead
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// reached is the number up to which all is given out.
func (g *group) reached() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// remembers says whether the group has all that comes after a place.
func (g *group) remembers(at Place) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return at.Seq >= g.floor
}

// join makes m a member from its place on. It is false if the group does not remember all that comes after it, or m could
// not take it.
func (g *group) join(m *member) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.place != nil {
		if m.at.Seq < g.floor {
			return false
		}
		for _, r := range g.memory {
			if r.at.Seq > m.at.Seq && !g.hand(m, r) {
				return false
			}
		}
	}
	g.members[m] = struct{}{}
	return true
}

func (g *group) quit(m *member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.members, m)
}

// catchUp sends what a member could not take before.
func (g *group) catchUp(ctx context.Context, m *member) error {
	for {
		g.mu.Lock()
		lag := m.lag
		m.lag, m.lagged = nil, 0
		m.behind = len(lag) > 0
		g.mu.Unlock()
		if len(lag) == 0 {
			return nil
		}
		for _, r := range lag {
			if err := m.to.next(ctx, r.body, r.at); err != nil {
				return err
			}
		}
	}
}

// together runs an operation for one client as a member of its group.
func (r runner) together(ctx context.Context, op *graphql.OperationContext, c *course, shared Shared, to sink) gqlerror.List {
	m := newMember(to)
	g := r.groups.enter(r.exec, op, shared, m)
	defer r.groups.leave(shared.Key, g)
	if g.place == nil {
		errs, _ := g.stay(ctx, m)
		return errs
	}
	select {
	case <-g.ready:
	case <-ctx.Done():
		return cutOff()
	}
	// It begins by itself, and ends there: so it learns of its place, or why it has none.
	if errs, over := r.reach(ctx, op, c, 0, m); over {
		return errs
	}
	for {
		if g.join(m) {
			if errs, over := g.stay(ctx, m); over {
				return errs
			}
			m = &member{to: to, at: m.at, full: make(chan struct{}), wake: m.wake}
		}
		if errs, over := r.follow(ctx, op, g, m); over {
			return errs
		}
	}
}

// reach runs the operation for one member alone, up to a number, and says whether it is over by that.
func (r runner) reach(ctx context.Context, op *graphql.OperationContext, c *course, until int64, m *member) (errs gqlerror.List, over bool) {
	c.bounded, c.until = true, until
	var reached *Place
	aside(func() { errs, reached = r.alone(ctx, op, c, m.to) })
	if reached == nil {
		return errs, true
	}
	m.at = *reached
	return nil, false
}

// follow takes a member that is behind its group until it can join, or could a moment ago. It says whether the operation is over.
func (r runner) follow(ctx context.Context, op *graphql.OperationContext, g *group, m *member) (errs gqlerror.List, over bool) {
	g.walk(1)
	defer g.walk(-1)
	for {
		p := g.since(ctx, m.at)
		if p == nil {
			return cutOff(), true
		}
		if p.failed {
			if errs, over := r.reach(ctx, op, &course{instead: true, after: &m.at.Cursor}, g.reached(), m); over {
				return errs, true
			}
			continue
		}
		for _, result := range p.results {
			if result.at.Seq <= m.at.Seq { // it has that
				continue
			}
			if m.to.next(ctx, result.body, result.at) != nil {
				return cutOff(), true
			}
			r.groups.Given.Add(1)
			m.at = result.at
		}
		if p.at.Seq > m.at.Seq {
			m.at = p.at
			m.to.passed(p.at)
		}
		if g.remembers(m.at) {
			return nil, false
		}
	}
}

// stay waits for the end of a membership, and says whether that of the operation has come with it.
func (g *group) stay(ctx context.Context, m *member) (errs gqlerror.List, over bool) {
	defer g.quit(m)
	for {
		select {
		case <-ctx.Done():
			return cutOff(), true
		case <-g.ended:
			return g.errs, true
		case <-m.full:
			if g.place != nil {
				return nil, false
			}
			m.to.slow()
			return cutOff(), true
		case <-m.wake:
			if g.catchUp(ctx, m) != nil {
				return cutOff(), true
			}
		}
	}
}

func cutOff() gqlerror.List {
	return gqlerror.List{refusal(codeUnavailable, "the operation was cut off: subscribe again")}
}
