package egress

import (
	"net/http"
	"strings"
	"time"
)

// maxHeader bounds the header of an answer: 64 KiB is beyond what servers send, and little enough
// for 1,000 hostile ones.
const maxHeader = 64 << 10

// NewClient makes an HTTP client that dials through guard; the package comment says what it
// promises. inFlight is how many requests to one host run at once at most: that many connections to
// it are kept for the next ones.
func NewClient(guard *Guard, inFlight int) *http.Client {
	transport := &http.Transport{
		Proxy:                  nil, // the environment's would dial in the guard's place; the operator's comes below
		DialContext:            guard.DialContext,
		MaxIdleConns:           1024, // in all: what stays idle costs a file descriptor each
		MaxIdleConnsPerHost:    inFlight,
		IdleConnTimeout:        90 * time.Second,
		TLSHandshakeTimeout:    dialTimeout,
		DisableCompression:     true, // what is read is what was sent: no bombs
		MaxResponseHeaderBytes: maxHeader,
		ForceAttemptHTTP2:      true, // a DialContext of one's own would turn it off
		// A connection whose other end is gone in silence would fail each request on it until TCP
		// gives up, after some 15 minutes: HTTP/2 puts all of them on that one.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
	}
	guard.through(transport)
	return &http.Client{
		Transport: Transport{transport},
		// Go would send body and signature again to whatever host a 307 names, and turn the POST
		// into a GET on a 302.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Transport is the transport of NewClient's clients: net/http's, with the two promises that it
// lacks.
type Transport struct{ *http.Transport }

// RoundTrip implements http.RoundTripper. No request is sent again that may have arrived, but those
// that only read. Nobody switches protocols, for no request of ours asks for it: net/http makes the
// bare connection of a 101 its body, on which no context ends a read, so it is closed here, and the
// answer has no body.
func (t Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.Transport.RoundTrip(once(req))
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		_ = resp.Body.Close()
		resp.Body, resp.ContentLength = http.NoBody, 0
	}
	return resp, err
}

// once is the request without what has net/http send it again when its connection ends before the
// answer: one of two headers, which it knows in their canonical spelling alone. Servers know them
// in any.
func once(req *http.Request) *http.Request {
	out := req
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		values, ok := out.Header[name]
		if !ok {
			continue
		}
		if out == req { // which a RoundTripper must leave as it is
			out = req.Clone(req.Context())
		}
		delete(out.Header, name)
		out.Header[strings.ToLower(name)] = values
	}
	return out
}

// WithHeaders is a client that sends these headers with each request, in the place of the request's
// own of the same name.
func WithHeaders(client *http.Client, headers map[string]string) *http.Client {
	out := *client
	out.Transport = withHeaders{client.Transport, headers}
	return &out
}

type withHeaders struct {
	next    http.RoundTripper
	headers map[string]string
}

// RoundTrip implements http.RoundTripper, which must leave the request as it is.
func (w withHeaders) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	for name, value := range w.headers {
		req.Header.Set(name, value)
	}
	return w.next.RoundTrip(req)
}
