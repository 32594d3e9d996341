package webhook_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"parley/egress"
	"parley/store"
	"parley/store/hook"
	"parley/webhook"
)

// rawReceiver takes requests over TCP and answers each as told, byte by byte, until the other end is gone.
func rawReceiver(t *testing.T, answer func(conn net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err == nil {
					_, _ = io.Copy(io.Discard, req.Body)
					answer(conn)
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

// endlessly writes the same until the other end is gone, and counts.
func endlessly(conn net.Conn, what string, pause time.Duration, written *atomic.Int64) {
	for {
		n, err := io.WriteString(conn, what)
		if written != nil {
			written.Add(int64(n))
		}
		if err != nil {
			return
		}
		if pause > 0 {
			<-time.After(pause)
		}
	}
}

// TestHostileReceivers: whatever a receiver does, the attempt ends by its deadline, reads little, and says what was wrong.
func TestHostileReceivers(t *testing.T) {
	t.Parallel()
	const timeout = 3 * time.Second
	w := newWorld(t, t.TempDir(), func(c *webhook.Config) { c.Timeout, c.Policy.Retries = timeout, 0 })
	var bomb bytes.Buffer
	packed := gzip.NewWriter(&bomb)
	_, _ = io.Copy(packed, io.LimitReader(zeros{}, 8<<20))
	_ = packed.Close()
	var endless atomic.Int64
	say := func(what string) func(net.Conn) {
		return func(conn net.Conn) { _, _ = io.WriteString(conn, what) }
	}
	long := func(status string, written *atomic.Int64) func(net.Conn) {
		return func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 "+status+"\r\n\r\n")
			endlessly(conn, strings.Repeat("ä\xff", 32<<10), 0, written)
		}
	}
	kinds := map[string]struct {
		answer func(net.Conn)
		status store.DeliveryStatus
		class  string
		kept   int // bytes of the answer, at least
	}{
		"silence":      {func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) }, store.Failed, "timeout", 0},
		"slow headers": {func(conn net.Conn) { endlessly(conn, "H", 20*time.Millisecond, nil) }, store.Failed, "timeout", 0},
		"slow header fields": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			endlessly(conn, "X-A: b\r\n", 20*time.Millisecond, nil)
		}, store.Failed, "timeout", 0},
		"slow body": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 500 Oh\r\n\r\n")
			endlessly(conn, "x", 20*time.Millisecond, nil)
		}, store.Failed, "http_500", 5},
		"slow body of a success": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
			endlessly(conn, "x", 20*time.Millisecond, nil)
		}, store.Delivered, "", 5},
		"endless body":              {long("500 Oh", &endless), store.Failed, "http_500", 16<<10 - 4},
		"endless body of a success": {long("200 OK", &endless), store.Delivered, "", 16<<10 - 4},
		"gzip bomb": {func(conn net.Conn) {
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n", bomb.Len())
			_, _ = conn.Write(bomb.Bytes())
		}, store.Delivered, "", 1},
		"oversized header": {say("HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 128<<10) + "\r\n\r\n"), store.Failed, "header_too_large", 0},
		"endless header": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			endlessly(conn, "X-A: b\r\n", 0, nil)
		}, store.Failed, "header_too_large", 0},
		"endless interims": {func(conn net.Conn) { endlessly(conn, "HTTP/1.1 103 Early Hints\r\n\r\n", 0, nil) }, store.Failed, "", 0},
		"not HTTP":         {say("SSH-2.0-OpenSSH_9.9\r\n\r\n"), store.Failed, "protocol", 0},
		"a lying length":   {say("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort"), store.Delivered, "", 5},
		"not UTF-8":        {say("HTTP/1.1 400 No\r\nContent-Length: 6\r\n\r\n\xff\xfea\x00b\xc3"), store.Failed, "http_400", 2},
		"closed at once":   {func(net.Conn) {}, store.Failed, "connection_reset", 0},
		"another protocol": {func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			_, _ = conn.Read(make([]byte, 1))
		}, store.Failed, "http_101", 0},
		"TLS on plain HTTP": {say("\x15\x03\x01\x00\x02\x02\x28"), store.Failed, "protocol", 0},
	}
	endpoints := map[string]*hook.Endpoint{}
	for name, k := range kinds {
		endpoints[name], _ = w.endpoint(rawReceiver(t, k.answer), store.RunFinished)
	}
	w.turn("")
	for name, k := range kinds {
		d := w.settled(endpoints[name].ID, 1)[0]
		made, err := w.hooks.AttemptsOf(t.Context(), []string{d.Key()})
		if err != nil || len(made[d.Key()]) != 1 {
			t.Fatalf("%s: %v, %v", name, made, err)
		}
		a := made[d.Key()][0]
		class := ""
		if a.Error != nil {
			class = *a.Error
		}
		if d.Status != k.status || k.class != "" && class != k.class || (class == "") != (k.status == store.Delivered) {
			t.Errorf("%s: %s, %q, want %s, %q", name, d.Status, class, k.status, k.class)
		}
		if limit := (timeout + 10*time.Second).Milliseconds(); int64(a.DurationMs) > limit {
			t.Errorf("%s: the attempt took %d ms, its deadline is %v", name, a.DurationMs, timeout)
		}
		body := ""
		if a.ResponseBody != nil {
			body = *a.ResponseBody
		}
		if len(body) < k.kept || len(body) > 16<<10 || !utf8.ValidString(body) || strings.ContainsRune(body, 0) {
			t.Errorf("%s: %d bytes are kept, %.40q", name, len(body), body)
		}
	}
	if n := endless.Load(); n > 32<<20 { // what two sockets can hold, not what they could send in the time
		t.Errorf("%d bytes of two endless bodies were read", n)
	}
}

// TestHostileReceiversTakeNoMemory counts all that is allocated, by their receivers too, while bodies without an end, packed ones, and
// slow ones come in: it is little for each attempt. Nothing runs beside it.
func TestHostileReceiversTakeNoMemory(t *testing.T) { //nolint:paralleltest // the count is the process's
	w := newWorld(t, t.TempDir(), func(c *webhook.Config) { c.Timeout, c.Policy.Retries = time.Second, 0 })
	var bomb bytes.Buffer
	packed := gzip.NewWriter(&bomb)
	_, _ = io.Copy(packed, io.LimitReader(zeros{}, 64<<20))
	_ = packed.Close()
	begin := func(header string, then func(net.Conn)) string {
		return rawReceiver(t, func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n"+header+"\r\n")
			then(conn)
		})
	}
	without := func(end []byte) func(net.Conn) { // allocates nothing, unlike endlessly
		return func(conn net.Conn) {
			for {
				if _, err := conn.Write(end); err != nil {
					return
				}
			}
		}
	}
	chunk := strings.Repeat("x", 64<<10)
	urls := []string{
		begin("", without([]byte(chunk))),
		begin("Content-Length: 1099511627776\r\n", without([]byte(chunk))),
		begin("Transfer-Encoding: chunked\r\n", without([]byte("10000\r\n"+chunk+"\r\n"))),
		begin("Content-Encoding: gzip\r\n", func(conn net.Conn) { _, _ = conn.Write(bomb.Bytes()) }),
		begin("", func(conn net.Conn) { endlessly(conn, "x", 50*time.Millisecond, nil) }),
	}
	const each, turns = 4, 4
	var endpoints []*hook.Endpoint
	for range each {
		for _, url := range urls {
			p, _ := w.endpoint(url, store.RunFinished)
			endpoints = append(endpoints, p)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range turns {
		w.turn("")
	}
	for _, p := range endpoints {
		for _, d := range w.settled(p.ID, turns) {
			if d.Status != store.Delivered || d.Attempts != 1 {
				t.Errorf("%s after %d attempts", d.Status, d.Attempts)
			}
		}
	}
	runtime.ReadMemStats(&after)
	const most = 512 << 10
	if took := (after.TotalAlloc - before.TotalAlloc) / uint64(len(endpoints)*turns); took > most {
		t.Errorf("an attempt takes %d bytes, want %d at most", took, most)
	} else {
		t.Logf("an attempt takes %d bytes", took)
	}
}

// TestReceiversThatNeverTakePart accept a connection and nothing more: neither the request nor the handshake is ever read. Or they
// end it in ways that only HTTP/2 has.
func TestReceiversThatNeverTakePart(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	w := newWorld(t, t.TempDir(), func(c *webhook.Config) {
		c.Timeout, c.Policy.Retries = timeout, 0
		c.Client.Transport.(egress.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // its own server
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // nobody accepts: the kernel does
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Error("HTTP/2 is not used")
		}
		switch r.URL.Path {
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/cut":
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte("short"))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/header":
			for i := range 128 {
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1<<10))
			}
		case "/hang":
			<-r.Context().Done()
		case "/trailers":
			w.Header().Set("Trailer", "X-Long")
			_, _ = w.Write([]byte("ok"))
			w.Header().Set("X-Long", strings.Repeat("x", 128<<10))
		}
	})
	two := func(path string) string { // each a host of its own: those of one share a connection
		server := httptest.NewUnstartedServer(answer)
		server.EnableHTTP2 = true
		server.StartTLS()
		t.Cleanup(server.Close)
		return server.URL + path
	}
	kinds := map[string]struct {
		url, class string
		status     store.DeliveryStatus
	}{
		"the request is never read":   {"http://" + listener.Addr().String(), "timeout", store.Failed},
		"the handshake is never read": {"https://" + listener.Addr().String(), "timeout", store.Failed},
		"HTTP/2: reset":               {two("/reset"), "connection_reset", store.Failed},
		"HTTP/2: a body that is cut":  {two("/cut"), "http_418", store.Failed},
		"HTTP/2: oversized header":    {two("/header"), "protocol", store.Failed},
		"HTTP/2: silence":             {two("/hang"), "timeout", store.Failed},
		"HTTP/2: oversized trailers":  {two("/trailers"), "", store.Delivered},
	}
	endpoints := map[string]*hook.Endpoint{}
	for name, k := range kinds {
		endpoints[name], _ = w.endpoint(k.url, store.RunFinished)
	}
	w.turn("")
	for name, k := range kinds {
		d := w.settled(endpoints[name].ID, 1)[0]
		made, err := w.hooks.AttemptsOf(t.Context(), []string{d.Key()})
		if err != nil || len(made[d.Key()]) != 1 {
			t.Fatalf("%s: %v, %v", name, made, err)
		}
		class := ""
		if a := made[d.Key()][0]; a.Error != nil {
			class = *a.Error
		}
		if class != k.class || d.Status != k.status {
			t.Errorf("%s: %s, %q, want %s, %q", name, d.Status, class, k.status, k.class)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestAttemptsSayWhereTheirTimeWent: the first attempt looks up, connects and shakes hands, the next one uses the connection
// again; each says who answered, and when it is tried again.
func TestAttemptsSayWhereTheirTimeWent(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	server.StartTLS()
	t.Cleanup(server.Close)
	w := newWorld(t, t.TempDir(), func(c *webhook.Config) {
		c.Policy.Retries, c.Timeout = 1, 10*time.Second
		transport := c.Client.Transport.(egress.Transport)
		transport.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		transport.TLSClientConfig.ServerName = "example.com"
	})
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	p, _ := w.endpoint("https://localhost:"+port, store.RunFinished)
	w.turn("")
	d := w.settled(p.ID, 1)[0]
	made, err := w.hooks.AttemptsOf(t.Context(), []string{d.Key()})
	if err != nil || len(made[d.Key()]) != 2 {
		t.Fatal(made, err)
	}
	first, second := made[d.Key()][0], made[d.Key()][1]
	if first.DNSMs == nil || first.ConnectMs == nil || first.TLSMs == nil || first.FirstByteMs == nil || first.RemoteAddress == nil || first.NextAttemptAt == nil {
		t.Fatalf("the first attempt lacks something: %+v", first)
	}
	if *first.RemoteAddress != server.Listener.Addr().String() || *first.FirstByteMs > first.DurationMs || *first.NextAttemptAt <= first.StartedAt {
		t.Errorf("the first attempt: %+v of %s", first, *first.RemoteAddress)
	}
	if second.DNSMs != nil || second.ConnectMs != nil || second.TLSMs != nil || second.FirstByteMs == nil || second.RemoteAddress == nil || second.NextAttemptAt != nil {
		t.Errorf("the second attempt, on the same connection: %+v", second)
	}
}

// TestAHandshakeIsTimed, of servers that speak HTTP/1.1 and HTTP/2: it takes as long as the server likes.
func TestAHandshakeIsTimed(t *testing.T) {
	t.Parallel()
	const takes = 30 * time.Millisecond
	for _, two := range []bool{false, true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if (r.ProtoMajor == 2) != two {
				t.Errorf("HTTP/%d", r.ProtoMajor)
			}
		}))
		server.EnableHTTP2 = two
		server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			<-time.After(takes)
			return nil, nil //nolint:nilnil // its own
		}}
		server.StartTLS()
		t.Cleanup(server.Close)
		w := newWorld(t, t.TempDir(), func(c *webhook.Config) {
			c.Timeout = 10 * time.Second
			c.Client.Transport.(egress.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // its own server
		})
		p, _ := w.endpoint(server.URL, store.RunFinished)
		w.turn("")
		d := w.settled(p.ID, 1)[0]
		made, err := w.hooks.AttemptsOf(t.Context(), []string{d.Key()})
		if err != nil || len(made[d.Key()]) != 1 {
			t.Fatal(made, err)
		}
		if a := made[d.Key()][0]; a.TLSMs == nil || *a.TLSMs < int(takes.Milliseconds()) {
			t.Errorf("HTTP/2 %v: %+v", two, a)
		}
	}
}

// TestADialThatWasNotNeeded: an attempt that dials gets another one's connection, and its dial ends before its answer comes. That is
// no time of the attempt's.
func TestADialThatWasNotNeeded(t *testing.T) {
	t.Parallel()
	var dials, requests atomic.Int32
	dialling, dial, dialled := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w := newWorld(t, t.TempDir(), func(c *webhook.Config) {
		c.Timeout = 20 * time.Second
		transport := c.Client.Transport.(egress.Transport)
		inner := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) != 2 {
				return inner(ctx, network, addr)
			}
			close(dialling)
			<-dial
			defer close(dialled)
			return inner(ctx, network, addr)
		}
	})
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) {
		if requests.Add(1) == 1 {
			<-dialling // and the connection is free
			return
		}
		close(dial)
		<-dialled
	})
	p, _ := w.endpoint(r.URL, store.RunFinished)
	w.turn("")
	w.turn("")
	all := w.settled(p.ID, 2)
	made, err := w.hooks.AttemptsOf(t.Context(), []string{all[0].Key(), all[1].Key()})
	if err != nil || len(made) != 2 || dials.Load() != 2 {
		t.Fatal(made, err, dials.Load())
	}
	connects := 0
	for _, d := range all {
		if a := made[d.Key()][0]; a.ConnectMs != nil {
			connects++
		}
	}
	if connects != 1 {
		t.Errorf("%d of two attempts on one connection made it", connects)
	}
}
