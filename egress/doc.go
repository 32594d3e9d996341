// Package egress is the only door through which the service calls addresses that others chose:
// webhook endpoints, model servers, tools. It holds the guard that decides which addresses may be
// dialled, the HTTP client behind that guard, the check of a URL when it is registered, and the
// signer of webhooks.
//
// # What is refused
//
// Whatever is not globally routable unicast: loopback, private, link-local, shared (CGNAT),
// multicast, reserved and documentation ranges, the IPv6 forms that carry an IPv4 address (mapped,
// NAT64, 6to4, Teredo), zoned addresses, and the metadata services of clouds. A Guard decides on
// the address of each connection just before it is made, after DNS has answered: a name that
// changes its address between the registration and the call gains nothing. CheckURL looks at the
// spelling alone, without DNS, so that a person who registers a URL learns of a mistake at once; it
// is a courtesy, never the protection.
//
// Two kinds of traffic need two guards. Webhooks: Policy{AllowPrivate: the development flag}.
// Models and tools: Policy{Trusted: what the operator listed}. The operator's own addresses, which
// no business can set, need none of this: Policy{Trusted: []string{"0.0.0.0/0", "::/0"}}.
//
// # What a client promises
//
// The deadline of a call is its context's, from the lookup of the name to the last byte of the
// body; the client has none of its own, save that a dial and a TLS handshake end after 30 s each.
// Redirects are not followed: the caller gets the 3xx. No proxy is used, whatever the environment
// says, for a proxy would dial in the guard's place; only the operator can put one there
// (Policy.Proxy), which is then in charge of what is reached: its refusal of a tunnel is ErrProxy.
// There are no cookies and no decompression, and no switch to another protocol: the connection of a
// 101 is closed, and its body empty. The caller bounds how much of a body it reads. A refusal of
// the guard is ErrBlocked in the error's chain.
//
// A request that may have arrived is not sent again, unless it only reads (GET, HEAD), whatever its
// headers say: a POST whose connection ends before the answer is an error, and the caller's to
// judge. One of which no byte was written, or which an HTTP/2 server says that it has not
// processed, goes to another connection.
//
// # Secrecy
//
// No fault and no error of CheckURL and Sign repeats a URL, its user info, or a secret.
package egress
