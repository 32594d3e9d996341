package egress_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"parley/egress"
)

func newGuard(t testing.TB, policy egress.Policy) *egress.Guard {
	t.Helper()
	guard, err := egress.NewGuard(policy)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

// special are addresses that no guard without a policy may let through, by why.
var special = map[string][]string{
	"this network":          {"0.0.0.0", "0.1.2.3"},
	"loopback":              {"127.0.0.1", "127.255.255.254", "::1"},
	"private":               {"10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1"},
	"shared":                {"100.64.0.1", "100.127.255.255", "100.100.100.200"},
	"link-local":            {"169.254.169.254", "169.254.0.1", "fe80::1", "febf::1"},
	"site-local":            {"fec0::1"},
	"protocol assignments":  {"192.0.0.1", "192.0.0.192", "192.0.0.170", "2001:2::1", "2001:20::1", "2001:10::1"},
	"documentation":         {"192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"},
	"benchmarking":          {"198.18.0.1", "198.19.255.255"},
	"6to4 relay, AS112":     {"192.88.99.1", "192.31.196.1", "192.52.193.1", "192.175.48.1", "2620:4f:8000::1"},
	"multicast":             {"224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"},
	"reserved, broadcast":   {"240.0.0.1", "255.255.255.255"},
	"unspecified":           {"::"},
	"IPv4-compatible":       {"::7f00:1", "::808:808"},
	"IPv4-mapped":           {"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8"},
	"IPv4-translated":       {"::ffff:0:7f00:1"},
	"NAT64":                 {"64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::7f00:1"},
	"6to4":                  {"2002:7f00:1::", "2002:a00:1::1", "2002:808:808::1"},
	"Teredo":                {"2001::1", "2001:0:7f00:1::"},
	"discard, dummy":        {"100::1", "100:0:0:1::1"},
	"segment routing":       {"5f00::1"},
	"zoned":                 {"fe80::1%lo", "::1%lo", "2606:4700:4700::1111%lo"},
	"metadata, public form": {"168.63.129.16"},
	"metadata, private":     {"fd00:ec2::254", "fd20:ce::254"},
}

var public = []string{"8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "168.63.129.17", "2606:4700:4700::1111", "2a00:1450::1"}

func TestGuardLetsOnlyPublicAddressesThrough(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, egress.Policy{})
	for why, addresses := range special {
		for _, address := range addresses {
			for _, port := range []string{"80", "443", "8443"} {
				if err := control(guard, address, port); !errors.Is(err, egress.ErrBlocked) {
					t.Errorf("%s (%s), port %s: got %v, want ErrBlocked", address, why, port, err)
				}
			}
			// The same by way of a dial. Go dials a mapped address as the IPv4 address that it is.
			if ip := netip.MustParseAddr(address).Unmap().WithZone(""); slices.Contains(public, ip.String()) {
				continue
			}
			if _, err := guard.DialContext(t.Context(), "tcp", net.JoinHostPort(address, "9")); !errors.Is(err, egress.ErrBlocked) {
				t.Errorf("dial %s (%s): got %v, want ErrBlocked", address, why, err)
			}
		}
	}
	for _, address := range public {
		for _, port := range []string{"80", "443", "8443", "1"} {
			if err := control(guard, address, port); err != nil {
				t.Errorf("%s, port %s: %v", address, port, err)
			}
		}
	}
	for _, network := range []string{"udp4", "unix", "ip4:icmp", "tcp"} {
		if err := guard.Control(network, "8.8.8.8:443", nil); !errors.Is(err, egress.ErrBlocked) {
			t.Errorf("network %s: got %v, want ErrBlocked", network, err)
		}
	}
}

func control(guard *egress.Guard, address, port string) error {
	network := "tcp4"
	if strings.Contains(address, ":") {
		network = "tcp6"
	}
	return guard.Control(network, net.JoinHostPort(address, port), nil)
}

func TestAllowPrivateAddsLoopbackAndPrivateNetworksAlone(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, egress.Policy{AllowPrivate: true})
	for why, addresses := range special {
		for _, address := range addresses {
			err := control(guard, address, "80")
			if open := why == "loopback" || why == "private"; open != (err == nil) {
				t.Errorf("%s (%s): got %v", address, why, err)
			}
		}
	}
}

func TestTrustedNetworksAreComparedWithTheAddressDialled(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, egress.Policy{Trusted: []string{"10.1.2.3/16", " fd00::/8", "169.254.169.254/32"}})
	for address, open := range map[string]bool{
		"10.1.0.1": true, "10.2.0.1": false, "fd00:ec2::254": true, "fc00::1": false, "169.254.169.254": true, "169.254.169.253": false,
		"127.0.0.1": false, "::ffff:10.1.0.1": false, "8.8.8.8": true,
	} {
		if err := control(guard, address, "80"); open != (err == nil) {
			t.Errorf("%s: got %v, want open = %v", address, err, open)
		}
	}
	everything := newGuard(t, egress.Policy{Trusted: []string{"0.0.0.0/0", "::/0"}})
	for _, address := range []string{"127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "8.8.8.8"} {
		if err := control(everything, address, "80"); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestNewGuardNamesEveryBadEntry(t *testing.T) {
	t.Parallel()
	bad := []string{
		"localhost", "10.0.0.0/33", "10.0.0.1", "host:0", "host:65536", "host:http", ":80", "::ffff:10.0.0.0/104", "http://x:1", "a b:80",
		"0177.0.0.1:80", "[fe80::1%lo]:80", "host:+1", "",
	}
	good := []string{"localhost:11434", "10.0.0.0/8", "[::1]:80", "::1/128", "llm.internal.:8000", "127.0.0.1:1"}
	_, err := egress.NewGuard(egress.Policy{Trusted: append(append([]string{}, good...), bad...)})
	if err == nil {
		t.Fatal("bad entries were accepted")
	}
	for _, entry := range bad {
		if !strings.Contains(err.Error(), `"`+entry+`" `) {
			t.Errorf("the error does not name %q: %v", entry, err)
		}
	}
	for _, entry := range good {
		if strings.Contains(err.Error(), `"`+entry+`"`) {
			t.Errorf("the error names %q, which is good: %v", entry, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has more than one line: %v", err)
	}
}

func TestLoopbackIsReachedOnlyWithAPolicyForIt(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { hits.Add(1) }))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	literal, name := "127.0.0.1:"+port, "localhost:"+port
	for _, c := range []struct {
		what   string
		policy egress.Policy
		host   string
		open   bool
	}{
		{"no policy", egress.Policy{}, literal, false},
		{"no policy, by name", egress.Policy{}, name, false},
		{"no policy, mapped", egress.Policy{}, "[::ffff:127.0.0.1]:" + port, false},
		{"no policy, unspecified", egress.Policy{}, "0.0.0.0:" + port, false},
		{"AllowPrivate", egress.Policy{AllowPrivate: true}, literal, true},
		{"AllowPrivate, by name", egress.Policy{AllowPrivate: true}, name, true},
		{"trusted network", egress.Policy{Trusted: []string{"127.0.0.0/8"}}, literal, true},
		{"trusted host", egress.Policy{Trusted: []string{literal}}, literal, true},
		{"trusted name, in capitals", egress.Policy{Trusted: []string{name}}, "LOCALHOST:" + port, true},
		{"another port is trusted", egress.Policy{Trusted: []string{"127.0.0.1:1"}}, literal, false},
		{"another name is trusted", egress.Policy{Trusted: []string{literal}}, name, false},
	} {
		before := hits.Load()
		client := egress.NewClient(newGuard(t, c.policy), 1)
		resp, err := client.Get("http://" + c.host + "/")
		if err == nil {
			_ = resp.Body.Close()
		}
		client.CloseIdleConnections()
		if c.open != (err == nil) || !c.open && !errors.Is(err, egress.ErrBlocked) || c.open != (hits.Load() > before) {
			t.Errorf("%s: got %v, %d hits, want open = %v", c.what, err, hits.Load()-before, c.open)
		}
	}
}

// TestRebindingGainsNothing has a name that is public at the first lookup and private at each one after that.
func TestRebindingGainsNothing(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, egress.Policy{})
	var lookups atomic.Int32
	resolver := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go answerDNS(server, func() netip.Addr {
			if lookups.Add(1) == 1 {
				return netip.MustParseAddr("93.184.215.14")
			}
			return netip.MustParseAddr("127.0.0.1")
		})
		return client, nil
	}}
	checked, err := resolver.LookupNetIP(t.Context(), "ip4", "rebind.example.com.")
	if err != nil || len(checked) != 1 || control(guard, checked[0].Unmap().String(), "80") != nil {
		t.Fatalf("the first lookup: %v, %v", checked, err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	guard.Resolve(resolver)
	client := egress.NewClient(guard, 1)
	t.Cleanup(client.CloseIdleConnections)
	resp, err := client.Get("http://rebind.example.com.:" + port + "/")
	if err == nil {
		_ = resp.Body.Close()
	}
	if !errors.Is(err, egress.ErrBlocked) || lookups.Load() < 2 {
		t.Errorf("got %v after %d lookups, want ErrBlocked", err, lookups.Load())
	}
}

// answerDNS answers the queries on a connection (RFC 1035, section 4; framed as over TCP): an A record for A, none otherwise.
func answerDNS(conn net.Conn, address func() netip.Addr) {
	defer func() { _ = conn.Close() }()
	var length [2]byte
	for {
		if _, err := conn.Read(length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := conn.Read(query); err != nil {
			return
		}
		end := 12 // the question follows the header: labels, type, class
		for query[end] != 0 {
			end += int(query[end]) + 1
		}
		end += 5
		answer := append([]byte{}, query[:end]...)
		binary.BigEndian.PutUint16(answer[2:], 0x8180) // a response, no error
		copy(answer[6:12], make([]byte, 6))
		if binary.BigEndian.Uint16(query[end-4:]) == 1 {
			answer[7] = 1
			answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4) // the name above, A, IN, TTL 0, 4 bytes
			answer = append(answer, address().AsSlice()...)
		}
		out := append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}
