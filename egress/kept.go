package egress

import (
	"bufio"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"parley/alive"
)

const (
	sweepEvery = 15 * time.Second // how often what is idle is looked at
	secondFor  = time.Hour        // for how long a server that chose HTTP/2 is taken to speak it
)

// errSecond says that a server has chosen HTTP/2.
var errSecond = errors.New("egress: the server speaks HTTP/2")

// kept makes the usual request, a POST of some KB in HTTP/1.1, in the goroutine that wants it, on connections that are kept for the
// next ones. net/http has two more goroutines for each connection, with stacks of their own, and hands each request back and forth
// between the three: that was a seventh of a delivery's cost. All else is still net/http's: HTTP/2, proxies, large bodies, other
// methods. So are the settings, and the functions that write a request and read an answer.
type kept struct {
	settings *http.Transport
	set      sync.Once // net/http has added its own

	mu      sync.Mutex // guards what follows
	targets map[target]*waiting
	idle    list.List          // of *wire, the one that has waited longest in front
	second  map[string]*second // servers that chose HTTP/2, by address
	sweeper *time.Timer        // runs while there is anything here
}

// second is a server that chose HTTP/2.
type second struct {
	until time.Time
	conn  net.Conn // the connection on which it did, for net/http to take; nil: it has
}

// target is where a connection goes, as a key.
type target struct{ scheme, address string }

// waiting is what waits for a target: connections, the one last used at the end, or requests for one.
type waiting struct {
	wires    []*list.Element
	requests []*claim
}

// claim is a request that waits for a connection: the one that it has dialled, or one that another is done with.
type claim struct {
	came chan came
	over bool // it has one, or has given up
}

type came struct {
	wire *wire
	err  error
}

// newKept makes the kept of a transport, whose own connections to HTTPS servers it makes, too.
func newKept(settings *http.Transport) *kept {
	k := &kept{settings: settings, targets: map[target]*waiting{}, second: map[string]*second{}}
	if settings.Proxy == nil {
		settings.DialTLSContext = k.dialSecond
	}
	return k
}

// takes says whether the request is one for kept.
func (k *kept) takes(req *http.Request) bool {
	if !alive.Tells || k.settings.Proxy != nil || req.Method != http.MethodPost || req.Body == nil || req.ContentLength <= 0 ||
		req.ContentLength > maxExchanged || req.Close || len(req.TransferEncoding) > 0 || len(req.Trailer) > 0 {
		return false
	}
	for name, values := range req.Header {
		if !httpguts.ValidHeaderFieldName(name) || name == "Connection" || name == "Upgrade" || name == "Expect" ||
			slices.ContainsFunc(values, func(v string) bool { return !httpguts.ValidHeaderFieldValue(v) }) {
			return false
		}
	}
	host := req.URL.Hostname()
	if host == "" || slices.ContainsFunc([]byte(host), func(b byte) bool { return b >= 0x80 }) {
		return false
	}
	return req.URL.Scheme == "http" || req.URL.Scheme == "https" && !k.isSecond(targetOf(req).address)
}

// isSecond says whether a server chose HTTP/2. That it did is remembered for as long as it is called.
func (k *kept) isSecond(address string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	s, now := k.second[address], time.Now()
	if s == nil || now.After(s.until) {
		return false
	}
	s.until = now.Add(secondFor)
	return true
}

func targetOf(req *http.Request) target {
	return target{req.URL.Scheme, net.JoinHostPort(req.URL.Hostname(), defaultPort(req.URL))}
}

// RoundTrip implements http.RoundTripper. After errSecond the request is as it was.
func (k *kept) RoundTrip(req *http.Request) (*http.Response, error) {
	w, err := k.get(req)
	if err == nil {
		return k.exchange(w, req)
	}
	if !errors.Is(err, errSecond) {
		_ = req.Body.Close()
	}
	return nil, err
}

// get finds a connection that can be used, or makes one.
func (k *kept) get(req *http.Request) (*wire, error) {
	ctx, to := req.Context(), targetOf(req)
	trace := traceOf(ctx)
	if trace.GetConn != nil {
		trace.GetConn(to.address)
	}
	for ctx.Err() == nil {
		w, c := k.take(to)
		if w == nil {
			var err error
			if w, err = k.await(ctx, to, req.URL.Hostname(), c); err != nil {
				return nil, err
			}
		}
		if w.used && !w.usable(k.settings.IdleConnTimeout) {
			_ = w.bare.Close()
			continue
		}
		if trace.GotConn != nil {
			trace.GotConn(httptrace.GotConnInfo{Conn: w.conn, Reused: w.used})
		}
		return w, nil
	}
	return nil, context.Cause(ctx)
}

// await dials, and waits for that or whatever another is done with before.
func (k *kept) await(ctx context.Context, to target, host string, c *claim) (*wire, error) {
	go k.dial(context.WithoutCancel(ctx), to, host, c) // the next request has use for it too
	select {
	case got := <-c.came:
		return got.wire, got.err
	case <-ctx.Done():
		k.giveUp(c)
		return nil, context.Cause(ctx)
	}
}

// usable says whether a connection that another had, or waited, may be used.
func (w *wire) usable(idle time.Duration) bool {
	switch {
	case !w.since.IsZero() && time.Since(w.since) > idle:
		return false
	case alive.Idle(w.bare):
		return true
	case w.asked || w.conn == w.bare:
		return false
	}
	// A server of TLS 1.3 sends tickets with its handshake, which nobody has read yet.
	_ = w.bare.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := w.conn.Read(make([]byte, 1))
	_ = w.bare.SetReadDeadline(time.Time{})
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// take takes the idle connection that was used last, or leaves a claim to the next.
func (k *kept) take(to target) (*wire, *claim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.at(to)
	if n := len(of.wires); n > 0 {
		w := k.idle.Remove(of.wires[n-1]).(*wire)
		of.wires[n-1] = nil
		of.wires = of.wires[:n-1]
		return w, nil
	}
	c := &claim{came: make(chan came, 1)}
	of.requests = append(of.requests, c)
	return nil, c
}

// give gives the claim a connection, or the error of its dial, if it still wants one.
func (k *kept) give(c *claim, w *wire, err error) (taken bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.over {
		return false
	}
	c.over = true
	c.came <- came{w, err}
	return true
}

// giveUp ends a claim. What it has got meanwhile is another's.
func (k *kept) giveUp(c *claim) {
	if k.give(c, nil, nil) {
		return
	}
	if got := <-c.came; got.wire != nil {
		k.put(got.wire)
	}
}

// put hands a connection to the request that has waited longest for one, or keeps it.
func (k *kept) put(w *wire) {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.at(w.to)
	w.used, w.since = true, time.Time{}
	for len(of.requests) > 0 {
		c := of.requests[0]
		of.requests[0] = nil
		of.requests = of.requests[1:]
		if !c.over {
			c.over = true
			c.came <- came{wire: w}
			return
		}
	}
	if len(of.wires) >= k.settings.MaxIdleConnsPerHost {
		_ = w.bare.Close()
		return
	}
	w.since = time.Now()
	of.wires = append(of.wires, k.idle.PushBack(w))
	if k.idle.Len() > k.settings.MaxIdleConns {
		k.drop(k.idle.Front())
	}
}

// at is what waits for a target. The caller holds the lock.
func (k *kept) at(to target) *waiting {
	of := k.targets[to]
	if of == nil {
		of = &waiting{}
		k.targets[to] = of
		k.sweepLater()
	}
	return of
}

// sweepLater has sweep run. The caller holds the lock.
func (k *kept) sweepLater() {
	if k.sweeper == nil {
		k.sweeper = time.AfterFunc(sweepEvery, k.sweep)
	}
}

// drop closes an idle connection. The caller holds the lock.
func (k *kept) drop(e *list.Element) {
	w := k.idle.Remove(e).(*wire)
	of := k.targets[w.to]
	of.wires = slices.DeleteFunc(of.wires, func(other *list.Element) bool { return other == e })
	_ = w.bare.Close()
}

// sweep closes the connections that have waited for too long, or whose other end is gone, and forgets whom nobody calls.
func (k *kept) sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closeIdle(func(w *wire) bool { return time.Since(w.since) > k.settings.IdleConnTimeout || !alive.Idle(w.bare) })
	for to, of := range k.targets {
		of.requests = slices.DeleteFunc(of.requests, func(c *claim) bool { return c.over })
		if len(of.wires)+len(of.requests) == 0 {
			delete(k.targets, to)
		}
	}
	for address, s := range k.second {
		if s.close(); time.Now().After(s.until) {
			delete(k.second, address)
		}
	}
	k.sweeper = nil
	if len(k.targets)+len(k.second) > 0 {
		k.sweepLater()
	}
}

// closeIdle closes those idle connections that which selects. The caller holds the lock.
func (k *kept) closeIdle(which func(*wire) bool) {
	for e := k.idle.Front(); e != nil; {
		next := e.Next()
		if which(e.Value.(*wire)) {
			k.drop(e)
		}
		e = next
	}
}

// CloseIdleConnections closes those that are idle now.
func (k *kept) CloseIdleConnections() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closeIdle(func(*wire) bool { return true })
	for _, s := range k.second {
		s.close()
	}
}

// dial connects, for a claim or whoever comes next. It outlives the request that wanted it, and ends by limits of its own.
func (k *kept) dial(ctx context.Context, to target, host string, c *claim) {
	w, err := k.connect(ctx, to, host)
	if !k.give(c, w, err) && err == nil {
		k.put(w)
	}
}

func (k *kept) connect(ctx context.Context, to target, host string) (*wire, error) {
	bare, err := k.settings.DialContext(ctx, "tcp", to.address)
	if err != nil {
		return nil, err
	}
	w := &wire{to: to, conn: bare, bare: bare}
	if to.scheme == "https" {
		conn, err := k.shakeHands(ctx, bare, host)
		if err != nil {
			return nil, err
		}
		if conn.ConnectionState().NegotiatedProtocol == "h2" {
			k.foundSecond(to.address, conn)
			return nil, errSecond
		}
		state := conn.ConnectionState()
		w.conn, w.tls = conn, &state
	}
	w.in = bufio.NewReaderSize(w, usualHead)
	return w, nil
}

// shakeHands makes a connection one of TLS, or closes it.
func (k *kept) shakeHands(ctx context.Context, bare net.Conn, host string) (*tls.Conn, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if k.settings.TLSClientConfig != nil {
		config = k.settings.TLSClientConfig.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = host
	}
	config.NextProtos = []string{"http/1.1"}
	if k.settings.TLSNextProto["h2"] != nil { // GODEBUG may have turned it off
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	trace := traceOf(ctx)
	if trace.TLSHandshakeStart != nil {
		trace.TLSHandshakeStart()
	}
	shaking, cancel := context.WithTimeout(ctx, k.settings.TLSHandshakeTimeout)
	defer cancel()
	conn := tls.Client(bare, config)
	err := conn.HandshakeContext(shaking)
	if err != nil && shaking.Err() != nil && ctx.Err() == nil { // no deadline of the caller's has passed
		err = fmt.Errorf("shake hands: %w", os.ErrDeadlineExceeded)
	}
	if trace.TLSHandshakeDone != nil {
		trace.TLSHandshakeDone(conn.ConnectionState(), err)
	}
	if err != nil {
		_ = bare.Close()
		return nil, err
	}
	return conn, nil
}

// foundSecond has net/http make the requests to a server from now on, on this connection first.
func (k *kept) foundSecond(address string, conn net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.second[address]
	if s == nil {
		s = &second{}
		k.second[address] = s
		k.sweepLater()
	}
	s.until = time.Now().Add(secondFor)
	s.close() // the last one waits for less long than an answer's first byte takes
	s.conn = conn
}

// close closes the connection that net/http had no use for.
func (s *second) close() {
	if s.conn != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
}

// dialSecond is net/http's dial for HTTPS.
func (k *kept) dialSecond(ctx context.Context, network, address string) (net.Conn, error) {
	k.mu.Lock()
	if s := k.second[address]; s != nil && s.conn != nil {
		conn := s.conn
		s.conn = nil
		k.mu.Unlock()
		return conn, nil
	}
	k.mu.Unlock()
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	bare, err := k.settings.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return k.shakeHands(ctx, bare, host)
}
