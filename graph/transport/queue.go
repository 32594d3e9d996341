package transport

import (
	"cmp"
	"encoding/binary"

	"github.com/gorilla/websocket"
)

const (
	// frameOverhead is what a queued frame costs beside its bytes: a client that asks for a million empty pongs is bounded
	// too.
	frameOverhead = 128

	// One write to the network carries so many frames, or so many bytes, whichever comes first: system calls are what a
	// fan-out spends its time on, and beyond this the copying is.
	batchFrames = 16
	batchBytes  = 64 << 10
)

// frame is one WebSocket frame that waits to be written. Its three parts are joined only then, so that the body of an
// event can be shared by all the sockets that it goes to, each with its own head.
type frame struct {
	op               *operation // whose message it is; nil for the socket's own
	opcode           byte
	head, body, tail []byte
	held             int64  // what it holds of the queue's bytes
	cursor           string // where the client resumes once it has this; empty: as before
	urgent           bool   // goes out before what is queued: pings and pongs, which have no order to keep
}

func textFrame(op *operation, text []byte) frame {
	return frame{op: op, opcode: websocket.TextMessage, body: text}
}

func (f *frame) size() int { return len(f.head) + len(f.body) + len(f.tail) }

// append encodes the frame as RFC 6455, section 5.2, has it from a server: final, unmasked, uncompressed.
func (f *frame) append(dst []byte) []byte {
	dst = append(dst, 0x80|f.opcode)
	switch n := f.size(); {
	case n < 126:
		dst = append(dst, byte(n))
	case n < 1<<16:
		dst = binary.BigEndian.AppendUint16(append(dst, 126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, 127), uint64(n))
	}
	dst = append(dst, f.head...)
	dst = append(dst, f.body...)
	return append(dst, f.tail...)
}

// queue is a first-in first-out list. It is not safe for concurrent use: the mutex of whose it is guards it.
type queue[T any] struct {
	items []T
	taken int // items[:taken] are gone already
	keep  int // so much room is kept when it runs empty; 0: for a few batches, as an idle socket holds no memory for a burst
}

func (q *queue[T]) push(item T) {
	if q.taken > batchFrames && q.taken > len(q.items)/2 { // move up, so that the slice grows with what waits alone
		n := copy(q.items, q.items[q.taken:])
		clear(q.items[n:])
		q.items, q.taken = q.items[:n], 0
	}
	q.items = append(q.items, item)
}

func (q *queue[T]) empty() bool { return q.taken == len(q.items) }

func (q *queue[T]) pop() (item T, ok bool) {
	if q.empty() {
		return item, false
	}
	var none T
	item, q.items[q.taken] = q.items[q.taken], none
	q.taken++
	if q.empty() {
		q.taken = 0
		if q.items = q.items[:0]; cap(q.items) > cmp.Or(q.keep, 4*batchFrames) {
			q.items = nil // a burst is over
		}
	}
	return item, true
}
