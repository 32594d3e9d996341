package transport

import (
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

// queue is a first-in first-out list of frames. It is not safe for concurrent use: the writer's mutex guards it.
type queue struct {
	frames []frame
	taken  int // frames[:taken] are gone already
}

func (q *queue) push(f frame) {
	if q.taken > batchFrames && q.taken > len(q.frames)/2 { // move up, so that the slice grows with what waits alone
		n := copy(q.frames, q.frames[q.taken:])
		clear(q.frames[n:])
		q.frames, q.taken = q.frames[:n], 0
	}
	q.frames = append(q.frames, f)
}

func (q *queue) empty() bool { return q.taken == len(q.frames) }

func (q *queue) pop() (frame, bool) {
	if q.taken == len(q.frames) {
		return frame{}, false
	}
	f := q.frames[q.taken]
	q.frames[q.taken] = frame{}
	q.taken++
	if q.taken == len(q.frames) {
		q.taken = 0
		if q.frames = q.frames[:0]; cap(q.frames) > 4*batchFrames {
			q.frames = nil // a burst is over: an idle socket holds no memory for it
		}
	}
	return f, true
}
