package egress

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Fault is one thing wrong with a URL, in the words of Pydantic v2: a ValidationError without its place.
type Fault struct {
	Type string
	Msg  string
	Ctx  map[string]any
}

const maxURL = 2048 // characters

// CheckURL finds what is wrong with a webhook's URL: it must be absolute, https, without user info and fragment, of at most
// 2,048 characters, with a public host. With allowPrivate http and private hosts pass too. An IP address counts only in its
// usual spelling (RFC 3986, section 3.2.2); others, such as 2130706433 or 0177.0.0.1, are refused, whatever they stand for.
//
// It asks no DNS: a name that resolves to a private address passes, and is refused when it is dialled.
func CheckURL(raw string, allowPrivate bool) []Fault {
	guard, err := NewGuard(Policy{AllowPrivate: allowPrivate})
	if err != nil {
		panic(err) // only an entry of Trusted can be wrong
	}
	return guard.CheckURL(raw)
}

// CheckURL is the same check for a URL that will be called through this guard: what its policy trusts may be http and
// private. If the policy trusts a network, so may every private name, for only the dial knows its address.
func (g *Guard) CheckURL(raw string) []Fault {
	var faults []Fault
	if utf8.RuneCountInString(raw) > maxURL {
		faults = append(faults, Fault{
			Type: "string_too_long", Msg: fmt.Sprintf("String should have at most %d characters", maxURL),
			Ctx: map[string]any{"max_length": maxURL},
		})
	}
	u, wrong := parse(raw)
	if wrong != "" {
		return append(faults, unparsable(wrong))
	}
	web := u.Scheme == "https" || u.Scheme == "http"
	if u.Host == "" && web {
		return append(faults, unparsable("empty host"))
	}
	h := host{}
	if u.Host != "" {
		if h = hostOf(u); h.wrong != "" {
			return append(faults, unparsable(h.wrong))
		}
	}
	trusted := g.trustsHost(u, h)
	if schemes := g.schemes(trusted); !slices.Contains(schemes, u.Scheme) {
		expected := "'" + strings.Join(schemes, "' or '") + "'"
		faults = append(faults, Fault{
			Type: "url_scheme", Msg: "URL scheme should be " + expected, Ctx: map[string]any{"expected_schemes": expected},
		})
	}
	if u.User != nil {
		faults = append(faults, valueError("the URL may not hold a user name or password"))
	}
	if strings.Contains(raw, "#") { // an empty fragment is one too
		faults = append(faults, valueError("the URL may not have a fragment"))
	}
	if u.Host != "" && !trusted && g.refuses(h) {
		faults = append(faults, valueError("the host must be public: private, loopback and reserved ones are never called"))
	}
	return faults
}

func (g *Guard) schemes(trusted bool) []string {
	if g.allowPrivate || trusted {
		return []string{"http", "https"}
	}
	return []string{"https"}
}

// trustsHost says whether the operator vouches for the URL's host.
func (g *Guard) trustsHost(u *url.URL, h host) bool {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "http":
		port = "80"
	default:
		port = "443"
	}
	switch {
	case g.hosts[normal(u.Hostname(), port)]:
		return true
	case h.ip.IsValid():
		return g.trusts(h.ip)
	}
	return len(g.networks) > 0 && h.local
}

// refuses says whether the host is one that a dial is sure to refuse, or that no resolver but a private one knows.
func (g *Guard) refuses(h host) bool {
	if h.ip.IsValid() {
		return g.check(h.ip) != nil
	}
	return h.local && !g.allowPrivate
}

// parse is url.Parse, with less tolerance and with errors that repeat nothing of the URL.
func parse(raw string) (u *url.URL, wrong string) {
	switch {
	case raw == "":
		return nil, "input is empty"
	case !utf8.ValidString(raw) || strings.ContainsFunc(raw, notInURL):
		return nil, "invalid character"
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil && strings.Contains(err.Error(), "invalid port"):
		return nil, "invalid port number"
	case err != nil:
		return nil, "invalid syntax"
	case u.Scheme == "":
		return nil, "relative URL without a base"
	}
	return u, ""
}

// notInURL is what stands in no URL, and what parsers disagree about: spaces, control characters, what is not visible, and
// the backslash, which browsers take for a slash.
func notInURL(r rune) bool { return r == ' ' || r == '\\' || !unicode.IsPrint(r) }

// host is what a URL's host turns out to be: an IP address or a name.
type host struct {
	ip    netip.Addr
	local bool   // a name that stands for no public host
	wrong string // why it is neither
}

func hostOf(u *url.URL) host {
	if port := u.Port(); port != "" && !validPort(port) || strings.HasSuffix(u.Host, ":") {
		return host{wrong: "invalid port number"}
	}
	name := u.Hostname()
	if bracketed := strings.HasPrefix(u.Host, "["); bracketed != strings.Contains(name, ":") {
		return host{wrong: "invalid IPv6 address"}
	}
	return parseHost(name)
}

// parseHost reads a host without brackets and port.
func parseHost(name string) host {
	if strings.Contains(name, ":") {
		ip, err := netip.ParseAddr(name)
		if err != nil || ip.Zone() != "" { // a zone names an interface of this machine
			return host{wrong: "invalid IPv6 address"}
		}
		return host{ip: ip}
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r > unicode.MaxASCII }) {
		// Which ASCII name is meant depends on who converts it: full-width digits can become an IP address.
		return host{wrong: "invalid international domain name, write it in punycode"}
	}
	labels := strings.Split(strings.ToLower(strings.TrimSuffix(name, ".")), ".")
	last := labels[len(labels)-1]
	if numeric(last) { // https://url.spec.whatwg.org/#ends-in-a-number-checker: what ends in a number is an IPv4 address
		ip, err := netip.ParseAddr(name)
		if err != nil {
			return host{wrong: "invalid IPv4 address"}
		}
		return host{ip: ip}
	}
	if len(name) > 254 || slices.ContainsFunc(labels, badLabel) {
		return host{wrong: "invalid domain name"}
	}
	return host{local: len(labels) == 1 || slices.Contains(localDomains, last) || strings.HasSuffix("."+strings.Join(labels, "."), ".home.arpa")}
}

// localDomains are top-level domains that belong to no one: localhost (RFC 6761), local (RFC 6762), internal (reserved by
// ICANN in 2024), and those in use on private networks, which ICANN delegates to no one. home.arpa is RFC 8375's.
var localDomains = []string{"localhost", "local", "internal", "localdomain", "lan", "home", "corp", "intranet", "private"}

// numeric says whether a label would be read as a number by those who read IPv4 addresses in every historical form.
func numeric(label string) bool {
	digits := "0123456789"
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		label, digits = hex, "0123456789abcdef"
	} else if label == "" {
		return false
	}
	return strings.Trim(label, digits) == ""
}

// badLabel holds a label to RFC 1123, section 2.1, and lets the underscore pass, which DNS has (RFC 2181, section 11).
func badLabel(label string) bool {
	return label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
		strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != ""
}

func unparsable(why string) Fault {
	return Fault{Type: "url_parsing", Msg: "Input should be a valid URL, " + why, Ctx: map[string]any{"error": why}}
}

func valueError(sentence string) Fault {
	return Fault{Type: "value_error", Msg: "Value error, " + sentence, Ctx: map[string]any{"error": sentence}}
}
