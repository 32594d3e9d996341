package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// ErrBlocked is in the chain of every error that stands for a dial which a Guard refused.
var ErrBlocked = errors.New("the address may not be called")

// Policy says which addresses a Guard lets through besides the public ones. The zero Policy: none.
type Policy struct {
	// AllowPrivate lets loopback (127.0.0.0/8, ::1) and private networks (RFC 1918, RFC 4193) through, and http:// in CheckURL:
	// for development. Link-local addresses and metadata services stay refused.
	AllowPrivate bool

	// Trusted are addresses that the operator vouches for, each `host:port` or a CIDR such as `10.0.0.0/8`. A host:port is
	// compared as it is written in the URL, so `localhost:11434` does not trust `127.0.0.1:11434`, nor another name that
	// resolves to it; a CIDR is compared with the address dialled. What is trusted may be http://.
	Trusted []string

	// Proxy, if there is one, is the operator's, and in charge: every call goes through it but those to what is Trusted (by
	// host:port, or by an IP address in a trusted network), and it decides which addresses are reached.
	Proxy *url.URL
}

// Guard decides which addresses may be dialled. It is immutable, and safe for concurrent use.
type Guard struct {
	allowPrivate bool
	hosts        map[string]bool // trusted: normal host:port
	networks     []netip.Prefix  // trusted
	proxy        *url.URL        // nil: none
	public       *ssrf.Guardian
	guarded      *net.Dialer
	free         *net.Dialer // for trusted hosts and the proxy alone
}

// The dialer's own limits: backstops for dials that outlive their request (net/http lets them go on, to pool the connection),
// above any sensible deadline of a request.
const (
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

// private is what AllowPrivate adds.
var (
	privateV4 = prefixes("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16") // RFC 1122, RFC 1918
	privateV6 = prefixes("::1/128", "fc00::/7")                                          // RFC 4291, RFC 4193
)

// metadata are services that a cloud gives its machines at an address which is public, or private in the sense of RFC 4193:
// neither the registries of special addresses nor AllowPrivate may decide about these. (Those at 169.254.169.254,
// 100.100.100.200 and 192.0.0.192 are in ranges refused anyway.)
var metadata = []netip.Addr{
	netip.MustParseAddr("168.63.129.16"),      // Azure's wire server
	netip.MustParseAddr("fd00:ec2::254"),      // Amazon EC2
	netip.MustParseAddr("fd20:ce::254"),       // Google Compute Engine
	netip.MustParseAddr("fd00:42::42"),        // Scaleway
	netip.MustParseAddr("fd00:c1::a9fe:a9fe"), // Oracle Cloud
}

func prefixes(cidrs ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(cidrs))
	for i, cidr := range cidrs {
		out[i] = netip.MustParsePrefix(cidr)
	}
	return out
}

// NewGuard makes a guard. Its error names every bad entry of policy.Trusted.
func NewGuard(policy Policy) (*Guard, error) {
	g := &Guard{allowPrivate: policy.AllowPrivate, proxy: policy.Proxy, hosts: map[string]bool{}}
	var bad []string
	for _, entry := range policy.Trusted {
		if err := g.trust(strings.TrimSpace(entry)); err != nil {
			bad = append(bad, fmt.Sprintf("%q %v", entry, err))
		}
	}
	if len(bad) > 0 {
		return nil, errors.New(strings.Join(bad, "; ")) // one line: it ends the start of the process
	}
	options := []ssrf.Option{ssrf.WithAnyPort()} // a webhook on port 8443 is as good as one on 443
	if g.allowPrivate {
		options = append(options, ssrf.WithAllowedV4Prefixes(privateV4...), ssrf.WithAllowedV6Prefixes(privateV6...))
	}
	g.public = ssrf.New(options...)
	g.guarded = &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, Control: g.Control}
	g.free = &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	return g, nil
}

// trust adds one entry of Policy.Trusted. Its error completes a sentence that begins with the entry.
func (g *Guard) trust(entry string) error {
	if strings.Contains(entry, "/") {
		network, err := netip.ParsePrefix(entry)
		switch {
		case err != nil:
			return errors.New("is not a CIDR such as 10.0.0.0/8")
		case network.Addr().Is4In6():
			return errors.New("is an IPv4 network written as IPv6: write it as IPv4")
		}
		g.networks = append(g.networks, network.Masked())
		return nil
	}
	host, port, err := net.SplitHostPort(entry)
	if err != nil || host == "" {
		return errors.New("is neither host:port nor a CIDR")
	}
	if !validPort(port) {
		return errors.New("has no port between 1 and 65535")
	}
	kind := parseHost(host)
	if kind.wrong != "" {
		return errors.New("has an " + kind.wrong)
	}
	g.hosts[normal(host, port)] = true
	return nil
}

// normal is the one spelling of a host and port: lower case, no trailing dot, the shortest form of an IPv6 address.
func normal(host, port string) string {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.String()
	}
	return net.JoinHostPort(host, port)
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0 && port[0] != '+'
}

// DialContext connects to addr, host:port, unless the guard refuses. It is what an http.Transport's DialContext wants.
func (g *Guard) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if host, port, err := net.SplitHostPort(addr); err == nil && g.hosts[normal(host, port)] {
		return g.free.DialContext(ctx, network, addr)
	}
	return g.guarded.DialContext(ctx, network, addr)
}

// Control is the guard as the Control function of a net.Dialer: it sees each address that is about to be connected to, and
// refuses with an ErrBlocked.
func (g *Guard) Control(network, address string, c syscall.RawConn) error {
	target, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("%w: not TCP to an IP address", ErrBlocked)
	}
	return g.check(target.Addr())
}

// check decides on one address.
func (g *Guard) check(ip netip.Addr) error {
	switch {
	case g.trusts(ip):
		return nil
	case slices.Contains(metadata, ip):
		return fmt.Errorf("%w: %s is a cloud's metadata service", ErrBlocked, ip)
	}
	if err := g.public.SafeAddr(ip); err != nil {
		return fmt.Errorf("%w: %w", ErrBlocked, err)
	}
	return nil
}

func (g *Guard) trusts(ip netip.Addr) bool {
	return slices.ContainsFunc(g.networks, func(network netip.Prefix) bool { return network.Contains(ip) })
}
