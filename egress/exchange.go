package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxExchanged = 32 << 10 // bytes of a body that the kernels take in, even if the other end answers without having read it
	usualHead    = 2 << 10  // bytes of an answer that are read at once
)

// errLongHead reads as net/http has it.
var errLongHead = errors.New("egress: server response headers exceeded 64 KiB; aborted")

// wire is a connection that speaks HTTP/1.1, in the hands of one request, or idle.
type wire struct {
	to    target
	conn  net.Conn
	bare  net.Conn             // conn, or what is below its TLS
	tls   *tls.ConnectionState // nil: none
	in    *bufio.Reader
	left  int64     // bytes that may still be read
	asked bool      // it has carried a request
	used  bool      // it was idle, or another's
	since time.Time // when it became idle
}

// Read implements io.Reader, for in.
func (w *wire) Read(p []byte) (int, error) {
	if w.left <= 0 {
		return 0, errLongHead
	}
	n, err := w.conn.Read(p[:min(int64(len(p)), w.left)])
	w.left -= int64(n)
	return n, err
}

// exchange sends the request and reads the head of its answer, in this goroutine. The connection goes back to the pool with the
// last byte of the answer, if it may carry another request; once the request's context ends, it is closed.
func (k *kept) exchange(w *wire, req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	body := &answerBody{pool: k, wire: w, ctx: ctx, unwatch: context.AfterFunc(ctx, func() { _ = w.bare.Close() })}
	resp, err := w.exchange(req, traceOf(ctx))
	if err != nil {
		return nil, body.end(err)
	}
	resp.TLS = w.tls
	body.keep = !resp.Close && resp.StatusCode >= http.StatusOK
	if resp.Body == http.NoBody {
		_ = body.end(io.EOF)
		return resp, nil
	}
	body.rest, resp.Body = resp.Body, body
	return resp, nil
}

func (w *wire) exchange(req *http.Request, trace *httptrace.ClientTrace) (*http.Response, error) {
	w.asked = true
	if err := w.write(req); err != nil {
		return nil, err
	}
	w.left = maxHeader
	if _, err := w.in.Peek(1); err != nil {
		return nil, err
	}
	if trace.GotFirstResponseByte != nil {
		trace.GotFirstResponseByte()
	}
	for { // interim answers count for the header's length, too
		resp, err := http.ReadResponse(w.in, req)
		switch {
		case err != nil && w.left <= 0: // whatever else the last line was
			return nil, errLongHead
		case err != nil:
			return nil, err
		}
		if interim := resp.StatusCode/100 == 1; !interim || resp.StatusCode == http.StatusSwitchingProtocols {
			w.left = math.MaxInt64 // of the body it is for the caller to say
			return resp, nil
		}
	}
}

// requests are buffers for who writes just now: of those that wait for an answer there can be thousands.
var requests = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// write writes the request at once. Request.Write, which tells the trace that it has, is not to see the connection: it hides errors.
func (w *wire) write(req *http.Request) error {
	whole := requests.Get().(*bytes.Buffer)
	defer requests.Put(whole)
	whole.Reset()
	if err := req.Write(whole); err != nil {
		return err
	}
	_, err := w.conn.Write(whole.Bytes())
	return err
}

// silent says whether the connection holds nothing that was read ahead: what comes after an answer is none to the next request.
func (w *wire) silent() bool {
	if w.in.Buffered() > 0 || w.conn == w.bare {
		return w.in.Buffered() == 0
	}
	// What TLS has unpacked and not handed out it hands out now; it reads no more, for it is too late for that.
	_ = w.bare.SetReadDeadline(time.Unix(1, 0))
	_, err := w.conn.Read(make([]byte, 1))
	_ = w.bare.SetReadDeadline(time.Time{})
	return errors.Is(err, os.ErrDeadlineExceeded)
}

func traceOf(ctx context.Context) *httptrace.ClientTrace {
	if trace := httptrace.ContextClientTrace(ctx); trace != nil {
		return trace
	}
	return &httptrace.ClientTrace{}
}

// answerBody is the body of an answer, and holds its connection.
type answerBody struct {
	pool    *kept
	wire    *wire
	ctx     context.Context //nolint:containedctx // the request's, which is to end the reading too
	unwatch func() bool
	keep    bool // the connection may carry another request, once this answer is read
	rest    io.Reader
	ended   atomic.Bool
	closed  atomic.Bool
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.rest.Read(p)
	if err != nil {
		err = b.end(err)
	}
	return n, err
}

// Close implements io.Closer. A connection of which not all was read is closed.
func (b *answerBody) Close() error {
	b.closed.Store(true)
	_ = b.end(http.ErrBodyReadAfterClose)
	return nil
}

// end lets go of the connection, after io.EOF to carry another request, and returns the error that the caller is to see.
func (b *answerBody) end(err error) error {
	if b.ended.Swap(true) {
		return err
	}
	w := b.wire
	if watched := b.unwatch(); watched && b.keep && errors.Is(err, io.EOF) && w.silent() {
		b.pool.put(w)
		return err
	}
	_ = w.bare.Close()
	if cause := context.Cause(b.ctx); cause != nil && !errors.Is(err, io.EOF) {
		return cause
	}
	return err
}
