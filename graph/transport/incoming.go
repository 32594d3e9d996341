package transport

import (
	"bufio"
	"net"
	"net/http"
)

// incoming is the connection of a socket as gorilla has it, which reads from it alone: what is
// written, close frames too, is the writer's, who knows whether a frame is half sent.
type incoming struct {
	net.Conn
	buffer *bufio.Reader // what gorilla reads from
	read   int64         // bytes that the buffer has taken
	frame  int64         // where the frame after the last message, ping or pong begins
	muted  bool          // the handshake is over
	spoke  bool          // gorilla would have sent a close frame
}

func (in *incoming) Read(p []byte) (int, error) {
	n, err := in.Conn.Read(p)
	in.read += int64(n)
	return n, err
}

func (in *incoming) Write(p []byte) (int, error) {
	if !in.muted {
		return in.Conn.Write(p)
	}
	in.spoke = true
	return len(p), nil
}

// position is how many bytes gorilla has taken.
func (in *incoming) position() int64 { return in.read - int64(in.buffer.Buffered()) }

// ended notes that a message, a ping or a pong has ended.
func (in *incoming) ended() { in.frame = in.position() }

// oneByteClose is the length of a close frame with half of a code, which gorilla takes for one
// without: head, mask, a byte.
const oneByteClose = 2 + 4 + 1

// brokenClose says, when a close frame without a code has ended, whether it holds a single byte
// (RFC 6455, section 5.5.1).
func (in *incoming) brokenClose() bool { return in.position()-in.frame == oneByteClose }

// hijacker finds the connection below middleware that wraps the ResponseWriter and can be
// unwrapped.
type hijacker struct {
	http.ResponseWriter
	in *incoming
}

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, early, err := http.NewResponseController(h.ResponseWriter).Hijack()
	// Gorilla refuses what came before the handshake was over.
	if err != nil || early.Reader.Buffered() > 0 {
		return conn, early, err
	}
	h.in.Conn = conn
	h.in.buffer = bufio.NewReaderSize(h.in, readBuffer)
	return h.in, bufio.NewReadWriter(h.in.buffer, early.Writer), nil
}
