package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
)

// ErrProxy is in the chain of every error that stands for a refusal of the operator's proxy.
var ErrProxy = errors.New("the egress proxy refused")

// ParseProxy reads the URL of a proxy: http, https or socks5. Its error does not repeat it, for it may hold a password.
func ParseProxy(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || defaultPort(u) == "" || u.Path != "" && u.Path != "/" {
		return nil, errors.New("is not a URL such as http://proxy.internal:3128 (http, https or socks5)")
	}
	return u, nil
}

// defaultPort is the port that a URL names, or its scheme's.
func defaultPort(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	switch u.Scheme {
	case "http":
		return "80"
	case "https":
		return "443"
	case "socks5":
		return "1080"
	}
	return ""
}

// through makes the transport use the guard's proxy, if it has one: for all but what the operator trusts.
func (g *Guard) through(t *http.Transport) {
	if g.proxy == nil {
		return
	}
	address := normal(g.proxy.Hostname(), defaultPort(g.proxy))
	t.Proxy = func(req *http.Request) (*url.URL, error) {
		if kind := parseHost(req.URL.Hostname()); kind.ip.IsValid() && g.trusts(kind.ip) || g.hosts[normal(req.URL.Hostname(), defaultPort(req.URL))] {
			return nil, nil
		}
		return g.proxy, nil
	}
	// Nothing else that is not trusted is dialled: a request for the proxy itself goes to the proxy, too, which decides on it.
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if host, port, err := net.SplitHostPort(addr); err == nil && normal(host, port) == address {
			return g.free.DialContext(ctx, network, addr)
		}
		return g.DialContext(ctx, network, addr)
	}
	t.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, res *http.Response) error {
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%w: it answered %d", ErrProxy, res.StatusCode)
		}
		return nil
	}
}
