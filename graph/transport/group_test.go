package transport_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"

	"parley/graph/transport"
)

type tenantKey struct{}

// inTenant authenticates sockets by the tenant that their payload names.
func inTenant(ctx context.Context, payload map[string]any) (context.Context, error) {
	return context.WithValue(ctx, tenantKey{}, payload["tenant"]), nil
}

// grouping shares the subscriptions of a tenant that have the same document but for its cursor.
func grouping() *transport.Groups {
	return &transport.Groups{Of: func(ctx context.Context, op *graphql.OperationContext) (transport.Shared, bool) {
		query, _, _ := strings.Cut(op.RawQuery, "(")
		shared := transport.Shared{Key: fmt.Sprint(ctx.Value(tenantKey{}), strings.Trim(query, "{}")), Context: context.Background()}
		if strings.Contains(query, "numbers") {
			shared.Place = numberPlace
		}
		return shared, true
	}}
}

func (w *world) member(t *testing.T, tenant string) *client {
	t.Helper()
	c := w.dial(t, "graphql-transport-ws")
	c.send(`{"type":"connection_init","payload":{"tenant":"` + tenant + `"}}`)
	c.expect(`{"type":"connection_ack"}`)
	return c
}

func numberMessage(id string, n int64) string {
	return fmt.Sprintf(`{"id":"%s","type":"next","payload":{"data":{"numbers":%d}}}`, id, n)
}

func TestGroupsExecuteOnceForAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{Authenticate: inTenant, Groups: grouping()}, transport.HTTP{})
	var members []*client
	for i := range 20 {
		c := w.member(t, "one")
		c.subscribe(fmt.Sprint("id", i), `subscription{numbers(after:"c0")}`)
		members = append(members, c)
	}
	stranger := w.member(t, "two")
	stranger.subscribe("s", `subscription{numbers(after:"c0")}`)
	for { // until each has joined, what it gets may be of its own making
		w.log.add()
		last, _ := w.log.end()
		before := w.log.made.Load()
		for i, c := range members {
			for got := ""; got != numberMessage(fmt.Sprint("id", i), last); {
				var err error
				if got, err = c.receive(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for got := ""; got != numberMessage("s", last); {
			var err error
			if got, err = stranger.receive(); err != nil {
				t.Fatal(err)
			}
		}
		if made := w.log.made.Load() - before; made == 2 || last > 1000 {
			break
		}
	}
	from, _ := w.log.end()
	before := w.log.made.Load()
	for range 100 {
		w.log.add()
	}
	for n := from + 1; n <= from+100; n++ { // each once, in order, under its own id
		for i, c := range members {
			c.expect(numberMessage(fmt.Sprint("id", i), n))
		}
		stranger.expect(numberMessage("s", n))
	}
	if made := w.log.made.Load() - before; made != 200 {
		t.Errorf("100 events of 2 groups were executed %d times", made)
	}
}

// TestGroupsMakeWhatWasMissedOnce lets many members resume at once, from places of their own: each gets what it missed, and it was
// not made for each.
func TestGroupsMakeWhatWasMissedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{Groups: grouping()}, transport.HTTP{Events: &transport.SSE{Groups: grouping()}})
	const missed, viewers = 1000, 40
	w.log.gate, w.log.begun = make(chan struct{}), make(chan struct{}, viewers+1)
	for range missed {
		w.log.add()
	}
	var members []*client
	for i := range viewers {
		c := w.connect(t)
		c.subscribe("x", fmt.Sprintf(`subscription{numbers(after:"c%d")}`, i))
		members = append(members, c)
	}
	for range viewers + 1 { // each of them, and the group
		<-w.log.begun
	}
	close(w.log.gate)
	for i, c := range members {
		for n := i + 1; n <= missed; n++ {
			c.expect(numberMessage("x", int64(n)))
		}
	}
	if made := w.log.made.Load(); made > viewers*missed/8 {
		t.Errorf("%d results were made of %d numbers for %d members", made, missed, viewers)
	}
	w.log.add()
	for _, c := range members {
		c.expect(numberMessage("x", missed+1))
	}
}

// TestGroupsPassWhatIsNotWanted has a member resume far behind the few results that it missed: it
// costs no execution for each page of numbers between.
func TestGroupsPassWhatIsNotWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{Groups: grouping()}, transport.HTTP{})
	const numbers, wanted = 20_000, 100
	w.log.begun = make(chan struct{}, numbers)
	for range numbers {
		w.log.add()
	}
	c := w.connect(t)
	c.subscribe("x", fmt.Sprintf(`subscription{numbers(after:"c0",above:%d)}`, numbers-wanted))
	for n := numbers - wanted + 1; n <= numbers; n++ {
		c.expect(numberMessage("x", int64(n)))
	}
	if begun := len(w.log.begun); begun > 10 {
		t.Errorf("the operation was executed %d times", begun)
	}
	w.log.add()
	c.expect(numberMessage("x", numbers+1))
}

// TestGroupsServeWhatIsKept has a member resume where retention has removed the beginning of its page.
func TestGroupsServeWhatIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{Groups: grouping()}, transport.HTTP{})
	for range 300 {
		w.log.add()
	}
	w.log.pruned = 70
	c := w.connect(t)
	c.subscribe("x", `subscription{numbers(after:"c70")}`)
	for n := int64(71); n <= 300; n++ {
		c.expect(numberMessage("x", n))
	}
	c.subscribe("y", `subscription{numbers(after:"c69")}`)
	c.expect(`{"id":"y","type":"error","payload":[{"message":"expired","extensions":{"code":"CURSOR_EXPIRED"}}]}`)
}

func TestGroupsAreJoinedWithoutAGapOrADouble(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{Groups: grouping()}, transport.HTTP{Events: &transport.SSE{Groups: grouping()}})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Microsecond):
				w.log.add()
			}
		}
	}()
	first := w.connect(t)
	first.subscribe("0", `subscription{numbers(after:"c0")}`)
	for i := range 20 {
		from := int64(i * 5)
		c := w.connect(t)
		c.subscribe("x", fmt.Sprintf(`subscription{numbers(after:"c%d")}`, from))
		for n := from + 1; n < from+300; n++ {
			c.expect(numberMessage("x", n))
		}
		_ = c.Close()
	}
	streamed := w.post(t, `subscription{numbers(after:"c7")}`)
	for n := 8; n < 300; n++ {
		streamed.expect(fmt.Sprintf(`event: next id: c%d data: {"data":{"numbers":%d}}`, n, n))
	}
	close(stop)
	<-stopped
}

func TestGroupsLeaveASlowMemberBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{Groups: grouping(), QueueBytes: 16 << 10, WriteTimeout: patience}, transport.HTTP{})
	fast, slow := w.connect(t), w.connect(t)
	fast.subscribe("f", `subscription{numbers(after:"c0")}`)
	slow.subscribe("s", `subscription{numbers(after:"c0")}`)
	const count = 10_000 // far more than its queue and the kernel hold
	for n := int64(1); n <= count; n++ {
		w.log.add()
		fast.expect(numberMessage("f", n))
	}
	for n := int64(1); n <= count; n++ { // it was skipped over nothing
		slow.expect(numberMessage("s", n))
	}
}

func TestGroupsEndWithTheirLastMember(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{Groups: grouping()}, transport.HTTP{})
	one, two := w.connect(t), w.connect(t)
	one.subscribe("1", `subscription{feed}`)
	feed := wait(t, "the feed", w.feeds)
	two.subscribe("2", `subscription{feed}`)
	two.send(`{"type":"ping"}`)
	for joined := false; !joined; { // the others' results go on meanwhile
		select {
		case feed.items <- "a":
			one.expect(`{"id":"1","type":"next","payload":{"data":{"feed":"a"}}}`)
		case <-w.feeds:
			t.Fatal("a second execution")
		}
		got, err := two.receive()
		if err != nil {
			t.Fatal(err)
		}
		joined = strings.Contains(got, "feed")
		if !joined {
			two.send(`{"type":"ping"}`)
		}
	}
	one.send(`{"type":"complete","id":"1"}`)
	one.send(`{"type":"ping"}`)
	one.expect(`{"type":"pong"}`)
	feed.items <- "b"
	for got := ""; !strings.Contains(got, `"b"`); {
		var err error
		if got, err = two.receive(); err != nil {
			t.Fatal(err)
		}
	}
	if feed.ctx.Err() != nil {
		t.Fatal("the execution ended before its last member")
	}
	two.send(`{"type":"complete","id":"2"}`)
	wait(t, "the end of the execution", feed.ctx.Done())

	// An execution that ends takes its members with it.
	one.subscribe("3", `subscription{feed}`)
	feed = wait(t, "a new execution", w.feeds)
	feed.items <- "c"
	feed.end()
	one.expect(`{"id":"3","type":"next","payload":{"data":{"feed":"c"}}}`)
	one.expect(`{"id":"3","type":"complete"}`)
	one.subscribe("4", `subscription{fail}`)
	one.expect(`{"id":"4","type":"error","payload":[{"message":"no stream","extensions":{"code":"PRESENTED"}}]}`)
	one.subscribe("5", `subscription{panics}`)
	one.expect(`{"id":"5","type":"error","payload":[{"message":"recovered","extensions":{"code":"PRESENTED"}}]}`)
}
