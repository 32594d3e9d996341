package transport_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"parley/graph/transport"
)

// What a subscriber costs is counted, not timed. Its other end is in this process too, so it is made to cost nothing: a bare
// connection that is read into one buffer.

// bareMember is a member of a group that sends and reads bytes, and allocates nothing for it.
func (w *world) bareMember(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	masked := func(text string) []byte { // with a mask of zeros
		if len(text) > 125 {
			t.Fatal("too long for a short frame")
		}
		return append([]byte{0x81, 0x80 | byte(len(text)), 0, 0, 0, 0}, text...)
	}
	hello := "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: graphql-transport-ws\r\n\r\n"
	query := `{"id":"1","type":"subscribe","payload":{"query":"subscription{numbers(after:\"c0\")}"}}`
	for _, step := range []struct {
		send []byte
		want string
	}{
		{[]byte(hello), "\r\n\r\n"}, {masked(`{"type":"connection_init"}`), `{"type":"connection_ack"}`}, {masked(query), numberMessage("1", 1)},
	} {
		if _, err := conn.Write(step.send); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for b := make([]byte, 1); !bytes.HasSuffix(got, []byte(step.want)); got = append(got, b...) {
			if _, err := conn.Read(b); err != nil {
				t.Fatalf("wanted %s, got %q, %v", step.want, got, err)
			}
		}
	}
	return conn
}

func TestADeliveredMessageCostsFewAllocations(t *testing.T) {
	const members, events = 100, 200
	w := newWorld(t, &transport.WebSocket{Groups: grouping()}, transport.HTTP{})
	w.log.add() // so that each member can see that it has begun
	conns := make([]net.Conn, members)
	for i := range conns {
		conns[i] = w.bareMember(t)
	}
	last := int64(1)
	// Each event reaches all before the next one: none shares a write with another, which costs most.
	deliver := func() {
		w.log.add()
		last++
		want := len(numberMessage("1", last)) + 2 // a short frame's head
		for _, conn := range conns {
			if _, err := io.ReadFull(conn, buffer[:want]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 100 { // until everyone has joined, and buffers are there
		deliver()
	}
	var before, after runtime.MemStats
	made := w.log.made.Load()
	runtime.ReadMemStats(&before)
	for range events {
		deliver()
	}
	runtime.ReadMemStats(&after)
	if each := float64(after.Mallocs-before.Mallocs) / (members * events); each > 3 {
		t.Errorf("a delivered message takes %.2f allocations", each)
	} else {
		t.Logf("a delivered message takes %.2f allocations", each)
	}
	if made = w.log.made.Load() - made; made != events {
		t.Errorf("%d events for one group were executed %d times", events, made)
	}
}

// buffer is what bare members are read into.
var buffer [4096]byte

func TestAnIdleSubscriberCostsLittleMemory(t *testing.T) {
	const members = 200
	w := newWorld(t, &transport.WebSocket{Groups: grouping()}, transport.HTTP{})
	w.log.add()
	held := func() uint64 {
		http.DefaultClient.CloseIdleConnections()
		runtime.GC()
		runtime.GC() // what pools held goes with the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	for range 10 { // what is made once
		w.bareMember(t)
	}
	before := held()
	for range members {
		w.bareMember(t)
	}
	each := float64(held()-before) / members / 1024
	if each > 35 {
		t.Errorf("an idle subscriber holds %.1f KB", each)
	}
	t.Logf("an idle subscriber holds %.1f KB", each)
}
