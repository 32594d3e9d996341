package egress_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/egress"
)

// types are the types of faults, in their order.
func types(faults []egress.Fault) string {
	var out []string
	for _, f := range faults {
		out = append(out, f.Type)
	}
	return strings.Join(out, " ")
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	const (
		ok      = ""
		parsing = "url_parsing"
		scheme  = "url_scheme"
		value   = "value_error"
	)
	for _, c := range []struct{ url, want, wantPrivate string }{
		{"https://example.com", ok, ok},
		{"https://example.com/", ok, ok},
		{"HTTPS://EXAMPLE.com:8443/hook?x=1&y=%20", ok, ok},
		{"https://hooks.example.com./a", ok, ok},
		{"https://xn--mnchen-3ya.de/ü", ok, ok},
		{"https://my_bucket.example.com", ok, ok},
		{"https://8.8.8.8/", ok, ok},
		{"https://[2606:4700:4700::1111]:8443/", ok, ok},
		{"https://127.0.0.1.nip.io/", ok, ok}, // the dial decides

		{"http://example.com", scheme, ok},
		{"ftp://example.com", scheme, scheme},
		{"file:///etc/passwd", scheme, scheme},
		{"javascript:alert(1)", scheme, scheme},
		{"gopher://127.0.0.1:25/_x", scheme + " " + value, scheme},
		{"example.com:443/x", scheme, scheme},
		{"localhost:8080", scheme, scheme},

		{"", parsing, parsing},
		{"example.com/hook", parsing, parsing},
		{"//example.com/hook", parsing, parsing},
		{"/hook", parsing, parsing},
		{"https://", parsing, parsing},
		{"https:///hook", parsing, parsing},
		{"https:example.com", parsing, parsing},
		{"https://:443/", parsing, parsing},
		{"https://?x", parsing, parsing},
		{"://example.com", parsing, parsing},
		{" https://example.com", parsing, parsing},
		{"https://example.com/a b", parsing, parsing},
		{"https://exa mple.com", parsing, parsing},
		{"https://example.com/\x00", parsing, parsing},
		{"https://example.com/\r\nHost: x", parsing, parsing},
		{"https://example.com/\t", parsing, parsing},
		{"https://example.com/\u202e", parsing, parsing},
		{"https://example.com/\u00a0", parsing, parsing},
		{"https://example.com/\xff", parsing, parsing},
		{"https://example.com\\@127.0.0.1/", parsing, parsing},
		{"https:\\\\example.com", parsing, parsing},
		{"https://example.com/%zz", parsing, parsing},
		{"https://example.com:0/", parsing, parsing},
		{"https://example.com:65536/", parsing, parsing},
		{"https://example.com:99999999999999999999/", parsing, parsing},
		{"https://example.com:-1/", parsing, parsing},
		{"https://example.com:http/", parsing, parsing},
		{"https://example.com:/", parsing, parsing},
		{"https://example..com/", parsing, parsing},
		{"https://.example.com/", parsing, parsing},
		{"https://example.com../", parsing, parsing},
		{"https://./", parsing, parsing},
		{"https://-example.com/", parsing, parsing},
		{"https://exa$mple.com/", parsing, parsing},
		{"https://" + strings.Repeat("a", 64) + ".com/", parsing, parsing},
		{"https://" + strings.Repeat("abcdefg.", 32) + "com/", parsing, parsing},
		{"https://münchen.de/", parsing, parsing},
		{"https://１２７.0.0.1/", parsing, parsing},
		{"https://①②⑦.0.0.1/", parsing, parsing},
		{"https://127。0。0。1/", parsing, parsing},
		{"https://%31%32%37.0.0.1/", parsing, parsing},
		{"https://l%6fcalhost/", parsing, parsing},
		{"https://ex%C3%A4mple.com/", parsing, parsing},
		{"https://example.com%00.evil.com/", parsing, parsing},

		{"https://2130706433/", parsing, parsing},
		{"https://0177.0.0.1/", parsing, parsing},
		{"https://0x7f.0.0.1/", parsing, parsing},
		{"https://0x7f000001/", parsing, parsing},
		{"https://0X7F.1/", parsing, parsing},
		{"https://127.1/", parsing, parsing},
		{"https://127.0.1/", parsing, parsing},
		{"https://0/", parsing, parsing},
		{"https://0x/", parsing, parsing},
		{"https://127.0.0.1./", parsing, parsing},
		{"https://127.0.0.256/", parsing, parsing},
		{"https://1.2.3.4.5/", parsing, parsing},
		{"https://example.123/", parsing, parsing},
		{"https://[127.0.0.1]/", parsing, parsing},
		{"https://[fe80::1%25eth0]/", parsing, parsing},
		{"https://[::1%25lo]/", parsing, parsing},
		{"https://[::1/", parsing, parsing},
		{"https://[]/", parsing, parsing},
		{"https://::1/", parsing, parsing},
		{"https://[v1.x]/", parsing, parsing},

		{"https://localhost/", value, ok},
		{"https://LOCALHOST./", value, ok},
		{"https://a.localhost:8443/", value, ok},
		{"https://printer.local/", value, ok},
		{"https://metadata.google.internal/", value, ok},
		{"https://router.home.arpa/", value, ok},
		{"https://intranet/", value, ok},
		{"https://127.0.0.1/", value, ok},
		{"https://127.8.8.8:8443/", value, ok},
		{"https://10.0.0.1/", value, ok},
		{"https://192.168.0.1/", value, ok},
		{"https://[::1]/", value, ok},
		{"https://[fd00::1]/", value, ok},
		{"https://0.0.0.0/", value, value},
		{"https://169.254.169.254/latest/meta-data", value, value},
		{"https://100.64.0.1/", value, value},
		{"https://168.63.129.16/", value, value},
		{"https://255.255.255.255/", value, value},
		{"https://[::]/", value, value},
		{"https://[fe80::1]/", value, value},
		{"https://[::ffff:127.0.0.1]/", value, value},
		{"https://[::ffff:7f00:1]/", value, value},
		{"https://[0:0:0:0:0:ffff:7f00:0001]/", value, value},
		{"https://[64:ff9b::7f00:1]/", value, value},
		{"https://[2002:7f00:1::]/", value, value},
		{"https://[fd00:ec2::254]/", value, value},

		{"https://user@example.com/", value, value},
		{"https://user:hunter2@example.com/", value, value},
		{"https://@example.com/", value, value},
		{"https://example.com@127.0.0.1/", value + " " + value, value},
		{"https://example.com/#", value, value},
		{"https://example.com/#a", value, value},
		{"http://user:hunter2@127.0.0.1/#a", scheme + " " + value + " " + value + " " + value, value + " " + value},
	} {
		if got := types(egress.CheckURL(c.url, false)); got != c.want {
			t.Errorf("%q: got %q, want %q", c.url, got, c.want)
		}
		if got := types(egress.CheckURL(c.url, true)); got != c.wantPrivate {
			t.Errorf("%q, private allowed: got %q, want %q", c.url, got, c.wantPrivate)
		}
		for _, f := range egress.CheckURL(c.url, false) {
			if strings.Contains(fmt.Sprint(f), "hunter2") {
				t.Errorf("%q: a fault repeats the password: %v", c.url, f)
			}
		}
	}
}

func TestCheckURLSpeaksAsPydanticDoes(t *testing.T) {
	t.Parallel()
	long := "http://a:b@localhost/" + strings.Repeat("ü", 2048-21) + "#"
	want := []egress.Fault{
		{Type: "string_too_long", Msg: "String should have at most 2048 characters", Ctx: map[string]any{"max_length": 2048}},
		{Type: "url_scheme", Msg: "URL scheme should be 'https'", Ctx: map[string]any{"expected_schemes": "'https'"}},
		{Type: "value_error", Msg: "Value error, the URL may not hold a user name or password", Ctx: map[string]any{"error": "the URL may not hold a user name or password"}},
		{Type: "value_error", Msg: "Value error, the URL may not have a fragment", Ctx: map[string]any{"error": "the URL may not have a fragment"}},
		{
			Type: "value_error", Msg: "Value error, the host must be public: private, loopback and reserved ones are never called",
			Ctx: map[string]any{"error": "the host must be public: private, loopback and reserved ones are never called"},
		},
	}
	if diff := cmp.Diff(want, egress.CheckURL(long, false)); diff != "" {
		t.Error(diff)
	}
	want = []egress.Fault{{Type: "url_parsing", Msg: "Input should be a valid URL, relative URL without a base", Ctx: map[string]any{"error": "relative URL without a base"}}}
	if diff := cmp.Diff(want, egress.CheckURL("hook", false)); diff != "" {
		t.Error(diff)
	}
	want = []egress.Fault{{Type: "url_scheme", Msg: "URL scheme should be 'http' or 'https'", Ctx: map[string]any{"expected_schemes": "'http' or 'https'"}}}
	if diff := cmp.Diff(want, egress.CheckURL("ftp://example.com", true)); diff != "" {
		t.Error(diff)
	}
	if faults := egress.CheckURL("https://example.com/"+strings.Repeat("a", 2048-20), false); faults != nil {
		t.Errorf("2,048 characters: %v", faults)
	}
}

func TestGuardCheckURLKnowsWhatTheOperatorTrusts(t *testing.T) {
	t.Parallel()
	hosts := newGuard(t, egress.Policy{Trusted: []string{"localhost:11434", "[::1]:80", "llm.internal:443"}})
	networks := newGuard(t, egress.Policy{Trusted: []string{"10.0.0.0/8"}})
	for _, c := range []struct{ url, hosts, networks string }{
		{"http://localhost:11434/v1", "", ""},
		{"http://LOCALHOST.:11434/v1", "", ""},
		{"http://localhost:11435/v1", "url_scheme value_error", ""},
		{"http://[0:0::1]/v1", "", "url_scheme value_error"},
		{"https://llm.internal/v1", "", ""},
		{"http://llm.internal/v1", "url_scheme value_error", ""},
		{"http://10.1.2.3:8000/v1", "url_scheme value_error", ""},
		{"http://vllm:8000/v1", "url_scheme value_error", ""},
		{"http://192.168.0.1/v1", "url_scheme value_error", "url_scheme value_error"},
		{"http://api.example.com/v1", "url_scheme", "url_scheme"},
		{"https://api.example.com/v1", "", ""},
		{"http://x@localhost:11434/v1#", "value_error value_error", "value_error value_error"},
	} {
		if got := types(hosts.CheckURL(c.url)); got != c.hosts {
			t.Errorf("%s, hosts trusted: got %q, want %q", c.url, got, c.hosts)
		}
		if got := types(networks.CheckURL(c.url)); got != c.networks {
			t.Errorf("%s, networks trusted: got %q, want %q", c.url, got, c.networks)
		}
	}
}

func FuzzCheckURL(f *testing.F) {
	for _, seed := range []string{
		"https://example.com/hook?x#y", "http://user:pass@127.0.0.1:80/", "https://[::ffff:7f00:1%25lo]:1/", "https://0x7f.1/", "https://a.localhost./",
		"https://１２７.0.0.1/", "https://%31:2@x/", "https:\\\\x", "//x", "https://x:99999", "javascript:x", "https://[::1", "\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		faults := egress.CheckURL(raw, false)
		if len(faults) > 0 {
			return
		}
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "https" || u.User != nil || u.Fragment != "" || u.Hostname() == "" || len([]rune(raw)) > 2048 {
			t.Fatalf("%q was accepted: %v", raw, err)
		}
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
			if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.Is4In6() || ip.Zone() != "" {
				t.Fatalf("%q was accepted", raw)
			}
		} else if name := strings.TrimSuffix(strings.ToLower(u.Hostname()), "."); !strings.Contains(name, ".") || strings.HasSuffix(name, ".localhost") {
			t.Fatalf("%q was accepted", raw)
		}
		if _, err := http.NewRequest(http.MethodPost, raw, nil); err != nil {
			t.Fatalf("%q was accepted and cannot be sent to: %v", raw, err)
		}
		if faults := egress.CheckURL(raw, true); len(faults) > 0 {
			t.Fatalf("%q is accepted, but not where more is allowed: %v", raw, faults)
		}
	})
}
