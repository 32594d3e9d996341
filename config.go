package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"parley/egress"
	"parley/graph"
	"parley/store"
	"parley/stream"
)

// Settings are all that an operator can set, each as an environment variable or a flag of the same name (contract, section 1).
type Settings struct {
	Addr                 string        `name:"addr" aliases:"parley-addr" env:"PARLEY_ADDR" default:"127.0.0.1:8080" placeholder:"HOST:PORT" help:"Listen address (default: ${default})."`
	DatabaseURL          string        `name:"database-url" aliases:"parley-database-url" env:"PARLEY_DATABASE_URL" default:"file:parley.db" placeholder:"URL" help:"SQLite file (file:…) or postgres://… (default: ${default})."`
	RedisURL             string        `name:"redis-url" aliases:"parley-redis-url" env:"PARLEY_REDIS_URL" default:"" placeholder:"URL" help:"redis:// or rediss://, with ?master_name=… for Sentinels and ?addr=… for a cluster; empty: the embedded Redis."`
	BootstrapAPIKey      string        `name:"bootstrap-api-key" aliases:"parley-bootstrap-api-key" env:"PARLEY_BOOTSTRAP_API_KEY" default:"" placeholder:"sk_…" help:"API key of the first business, sk_…, 16 characters or more; empty: generated on the first start and printed once. Only the first start uses it: a later one warns if it opens nothing."`
	BootstrapToken       string        `name:"bootstrap-token" aliases:"parley-bootstrap-token" env:"PARLEY_BOOTSTRAP_TOKEN" default:"" placeholder:"at_…" help:"Access token of the first business, at_…, 16 characters or more; empty: generated on the first start and printed once. Only the first start uses it: a later one warns if it opens nothing."`
	AllowPrivateWebhooks bool          `name:"allow-private-webhooks" aliases:"parley-allow-private-webhooks" env:"PARLEY_ALLOW_PRIVATE_WEBHOOKS" default:"false" negatable:"" help:"For development and tests alone: accept http:// and private or loopback webhook hosts (default: ${default})."`
	SessionTTL           time.Duration `name:"session-ttl" aliases:"parley-session-ttl" env:"PARLEY_SESSION_TTL" default:"24h" placeholder:"DURATION" help:"Sliding time-to-live of a chat session (default: ${default})."`
	DeliveryTimeout      time.Duration `name:"delivery-timeout" aliases:"parley-delivery-timeout" env:"PARLEY_DELIVERY_TIMEOUT" default:"10s" placeholder:"DURATION" help:"Total deadline of one delivery attempt, connect to last body byte (default: ${default})."`
	DeliveryRetries      int           `name:"delivery-retries" aliases:"parley-delivery-retries" env:"PARLEY_DELIVERY_RETRIES" default:"2" placeholder:"N" help:"Automatic retries after the first attempt (default: ${default})."`
	DeliveryBackoff      time.Duration `name:"delivery-backoff" aliases:"parley-delivery-backoff" env:"PARLEY_DELIVERY_BACKOFF" default:"5s" placeholder:"DURATION" help:"Delay before the first retry; each next one is 5 times longer, with a jitter of 20 % either way (default: ${default})."`
	EndpointGrace        time.Duration `name:"endpoint-grace" aliases:"parley-endpoint-grace" env:"PARLEY_ENDPOINT_GRACE" default:"72h" placeholder:"DURATION" help:"An endpoint is disabled when its deliveries have failed for this long without one success (default: ${default})."`
	SecretKey            string        `name:"secret-key" aliases:"parley-secret-key" env:"PARLEY_SECRET_KEY" default:"" placeholder:"BASE64" help:"32 bytes in base64: encrypts stored signing secrets and provider keys. Empty: a key file beside the SQLite database; required with postgres://."`
	SecretKeyOld         string        `name:"secret-key-old" aliases:"parley-secret-key-old" env:"PARLEY_SECRET_KEY_OLD" default:"" placeholder:"BASE64,…" help:"Other keys, comma separated, that open what they have sealed: to change PARLEY_SECRET_KEY. The start seals everything with that one."`
	TurnTimeout          time.Duration `name:"turn-timeout" aliases:"parley-turn-timeout" env:"PARLEY_TURN_TIMEOUT" default:"60s" placeholder:"DURATION" help:"Deadline of one turn (default: ${default})."`
	RateLimit            string        `name:"rate-limit" aliases:"parley-rate-limit" env:"PARLEY_RATE_LIMIT" default:"" placeholder:"N" help:"Requests a minute for each credential; empty: no limit."`
	Retention            time.Duration `name:"retention" aliases:"parley-retention" env:"PARLEY_RETENTION" default:"720h" placeholder:"DURATION" help:"How long events, deliveries and messages are kept (default: ${default})."`
	AllowedOrigins       string        `name:"allowed-origins" aliases:"parley-allowed-origins" env:"PARLEY_ALLOWED_ORIGINS" default:"" placeholder:"LIST" help:"Comma separated origins, such as https://app.example.com, whose pages may call the server from a browser; its own may always."`
	PrivateHosts         string        `name:"private-hosts" aliases:"parley-private-hosts" env:"PARLEY_PRIVATE_HOSTS" default:"" placeholder:"LIST" help:"Comma separated host:port or CIDR list that is trusted for model base URLs and tools, such as localhost:11434."`
	EgressProxy          string        `name:"egress-proxy" aliases:"parley-egress-proxy" env:"PARLEY_EGRESS_PROXY" default:"" placeholder:"URL" help:"http://, https:// or socks5:// proxy for webhooks, tools and the businesses' model servers, but those in PARLEY_PRIVATE_HOSTS. It is then in charge of which addresses are reached. Empty: none, whatever HTTP_PROXY says."`
	OpenAIKey            string        `name:"openai-api-key" env:"OPENAI_API_KEY" default:"" placeholder:"KEY" help:"OpenAI, or a compatible server: the key."`
	OpenAIBaseURL        string        `name:"openai-base-url" env:"OPENAI_BASE_URL" default:"" placeholder:"URL" help:"OpenAI, or a compatible server: the address."`
	OpenAIModel          string        `name:"openai-model" aliases:"parley-openai-model" env:"PARLEY_OPENAI_MODEL" default:"gpt-4.1-mini" placeholder:"NAME" help:"The model of agents on OPENAI that name none (default: ${default})."`
	AnthropicKey         string        `name:"anthropic-api-key" env:"ANTHROPIC_API_KEY" default:"" placeholder:"KEY" help:"Anthropic: the key."`
	Prices               string        `name:"prices" aliases:"parley-prices" env:"PARLEY_PRICES" default:"" placeholder:"JSON|FILE" help:"What models cost for a million tokens, as JSON or the name of a file with it: {\"openai/gpt-4.1-mini\": {\"input\": 0.40, \"output\": 1.60}}; empty: usage has no costs."`
	EmbeddedModelLatency time.Duration `name:"embedded-model-latency" aliases:"parley-embedded-model-latency" env:"PARLEY_EMBEDDED_MODEL_LATENCY" default:"0s" placeholder:"DURATION" help:"The embedded model waits this long before it answers: for tests and demos (default: ${default})."`

	LogFormat            string        `name:"log-format" aliases:"parley-log-format" env:"PARLEY_LOG_FORMAT" default:"text" enum:"text,json" placeholder:"FORMAT" help:"text or json (default: ${default})."`
	LogLevel             string        `name:"log-level" aliases:"parley-log-level" env:"PARLEY_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" placeholder:"LEVEL" help:"The least that is logged: debug, info, warn or error (default: ${default})."`
	MetricsAddr          string        `name:"metrics-addr" aliases:"parley-metrics-addr" env:"PARLEY_METRICS_ADDR" default:"" placeholder:"HOST:PORT" help:"Listen address of its own for /metrics; empty: it is on the main one."`
	DrainDelay           time.Duration `name:"drain-delay" aliases:"parley-drain-delay" env:"PARLEY_DRAIN_DELAY" default:"3s" placeholder:"DURATION" help:"After SIGTERM (not after Ctrl-C) the server goes on taking requests for so long while /readyz already says 503, so that a balancer looks away first (default: ${default})."`
	Introspection        string        `name:"introspection" aliases:"parley-introspection" env:"PARLEY_INTROSPECTION" default:"all" enum:"all,admin,off" placeholder:"WHO" help:"GraphQL: who may see the schema, by introspection and at /schema.graphqls: all (every valid credential), admin (ADMIN tokens) or off (default: ${default})."`
	MaxSockets           int           `name:"max-sockets" aliases:"parley-max-sockets" env:"PARLEY_MAX_SOCKETS" default:"2000" placeholder:"N" help:"WebSockets and event streams that a business may have open at a time, on each replica (default: ${default})."`
	MaxSubscriptions     int           `name:"max-subscriptions" aliases:"parley-max-subscriptions" env:"PARLEY_MAX_SUBSCRIPTIONS" default:"20000" placeholder:"N" help:"Subscriptions that a business may have at a time, on each replica (default: ${default})."`
	MaxAgents            int           `name:"max-agents" aliases:"parley-max-agents" env:"PARLEY_MAX_AGENTS" default:"1000" placeholder:"N" help:"Agents that a business may have (default: ${default})."`
	MaxEndpoints         int           `name:"max-endpoints" aliases:"parley-max-endpoints" env:"PARLEY_MAX_ENDPOINTS" default:"100" placeholder:"N" help:"Enabled webhook endpoints that a business may have, its agents' own among them (default: ${default})."`
	GraphQLMaxTokens     int           `name:"graphql-max-tokens" aliases:"parley-graphql-max-tokens" env:"PARLEY_GRAPHQL_MAX_TOKENS" default:"10000" placeholder:"N" help:"GraphQL: tokens of a document (default: ${default})."`
	GraphQLMaxDepth      int           `name:"graphql-max-depth" aliases:"parley-graphql-max-depth" env:"PARLEY_GRAPHQL_MAX_DEPTH" default:"15" placeholder:"N" help:"GraphQL: levels of nested fields (default: ${default})."`
	GraphQLMaxAliases    int           `name:"graphql-max-aliases" aliases:"parley-graphql-max-aliases" env:"PARLEY_GRAPHQL_MAX_ALIASES" default:"100" placeholder:"N" help:"GraphQL: aliases in a document (default: ${default})."`
	GraphQLMaxRootFields int           `name:"graphql-max-root-fields" aliases:"parley-graphql-max-root-fields" env:"PARLEY_GRAPHQL_MAX_ROOT_FIELDS" default:"20" placeholder:"N" help:"GraphQL: fields at the root of an operation (default: ${default})."`
	GraphQLMaxCost       int           `name:"graphql-max-cost" aliases:"parley-graphql-max-cost" env:"PARLEY_GRAPHQL_MAX_COST" default:"20000" placeholder:"N" help:"GraphQL: fields that an operation's answer may hold, with its lists as long as asked for (default: ${default})."`

	// Seams for tests, which show that SQL and the stream each carry the events without the other.
	noPolling, noStream bool
	takenWithin         time.Duration // for a client to take 64 KiB of a plain answer; 10 s if 0
}

// Validate finds every wrong value, in one message. Kong calls it.
func (s *Settings) Validate() error {
	var wrong []string
	check := func(ok bool, name, what string) {
		if !ok {
			wrong = append(wrong, name+" "+what)
		}
	}
	_, _, err := net.SplitHostPort(s.Addr)
	check(err == nil, "PARLEY_ADDR", "must be host:port")
	check(strings.HasPrefix(s.DatabaseURL, "file:") || store.IsPostgres(s.DatabaseURL), "PARLEY_DATABASE_URL", "must be file:… or postgres://…")
	if store.IsPostgres(s.DatabaseURL) {
		check(s.SecretKey != "", "PARLEY_SECRET_KEY", "is required with postgres:// (openssl rand -base64 32 makes one)")
	}
	if s.SecretKey != "" {
		_, err := store.NewSealer(s.SecretKey)
		check(err == nil, "PARLEY_SECRET_KEY", "must be 32 bytes in base64 (openssl rand -base64 32 makes one)")
	} else {
		check(s.SecretKeyOld == "", "PARLEY_SECRET_KEY_OLD", "needs PARLEY_SECRET_KEY, which takes its place")
	}
	for _, old := range list(s.SecretKeyOld) {
		_, err := store.NewSealer(old)
		check(err == nil, "PARLEY_SECRET_KEY_OLD", "must be a comma separated list of keys, each 32 bytes in base64")
	}
	if s.RedisURL != "" {
		err := stream.CheckURL(s.RedisURL)
		check(err == nil, "PARLEY_REDIS_URL", fmt.Sprintf("is not usable: %v", err))
	}
	check(s.BootstrapAPIKey == "" || secretLike(s.BootstrapAPIKey, "sk_"), "PARLEY_BOOTSTRAP_API_KEY", "must begin with sk_"+secretRest)
	check(s.BootstrapToken == "" || secretLike(s.BootstrapToken, "at_"), "PARLEY_BOOTSTRAP_TOKEN", "must begin with at_"+secretRest)
	check(s.SessionTTL > 0, "PARLEY_SESSION_TTL", "must be more than 0")
	check(s.DeliveryTimeout > 0 && s.DeliveryTimeout <= 10*time.Minute, "PARLEY_DELIVERY_TIMEOUT", "must be more than 0 and at most 10m")
	check(s.DeliveryRetries >= 0 && s.DeliveryRetries <= 20, "PARLEY_DELIVERY_RETRIES", "must be between 0 and 20")
	check(s.DeliveryBackoff > 0, "PARLEY_DELIVERY_BACKOFF", "must be more than 0")
	check(s.EndpointGrace > 0, "PARLEY_ENDPOINT_GRACE", "must be more than 0")
	check(s.TurnTimeout > 0, "PARLEY_TURN_TIMEOUT", "must be more than 0")
	_, err = s.rateLimit()
	check(err == nil, "PARLEY_RATE_LIMIT", "must be a whole number of requests a minute, at least 1")
	check(s.Retention >= time.Hour, "PARLEY_RETENTION", "must be 1h or more")
	if s.MetricsAddr != "" {
		_, _, err := net.SplitHostPort(s.MetricsAddr)
		check(err == nil && s.MetricsAddr != s.Addr, "PARLEY_METRICS_ADDR", "must be host:port, and another one than PARLEY_ADDR")
	}
	check(s.DrainDelay >= 0, "PARLEY_DRAIN_DELAY", "must not be negative")
	check(s.EmbeddedModelLatency >= 0, "PARLEY_EMBEDDED_MODEL_LATENCY", "must not be negative")
	limits := []int{s.GraphQLMaxTokens, s.GraphQLMaxDepth, s.GraphQLMaxAliases, s.GraphQLMaxRootFields, s.GraphQLMaxCost}
	check(slices.Min(limits) > 0, "PARLEY_GRAPHQL_MAX_…", "must each be 1 or more")
	check(s.MaxSockets > 0, "PARLEY_MAX_SOCKETS", "must be 1 or more")
	check(s.MaxSubscriptions > 0, "PARLEY_MAX_SUBSCRIPTIONS", "must be 1 or more")
	check(s.MaxAgents > 0, "PARLEY_MAX_AGENTS", "must be 1 or more")
	check(s.MaxEndpoints > 0, "PARLEY_MAX_ENDPOINTS", "must be 1 or more")
	_, err = newOrigins(s.AllowedOrigins, nil)
	check(err == nil, "PARLEY_ALLOWED_ORIGINS", fmt.Sprintf("must be a comma separated list of origins such as https://app.example.com (%v)", err))
	_, err = egress.NewGuard(egress.Policy{Trusted: s.privateHosts()})
	check(err == nil, "PARLEY_PRIVATE_HOSTS", fmt.Sprintf("must be a comma separated list of host:port or CIDR (%v)", err))
	if s.EgressProxy != "" {
		_, err := egress.ParseProxy(s.EgressProxy)
		check(err == nil, "PARLEY_EGRESS_PROXY", fmt.Sprint(err))
	}
	if s.OpenAIBaseURL != "" {
		u, err := url.Parse(s.OpenAIBaseURL)
		check(err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "", "OPENAI_BASE_URL", "must be an http:// or https:// URL")
	}
	_, err = parsePrices(s.Prices)
	check(err == nil, "PARLEY_PRICES", fmt.Sprintf("must be JSON, or a file with JSON, of prices for a million tokens by model (%v)", err))
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}

const (
	minSecret  = 16 // characters: what is shorter is guessed
	maxSecret  = 200
	secretRest = " and go on in printable ASCII, without blanks, quotes and backslashes, with 16 characters in all at least and 200 at most"
)

// secretLike says whether s can be a secret: it travels in a header, and stands in the curl line that is printed.
func secretLike(s, prefix string) bool {
	return strings.HasPrefix(s, prefix) && len(s) >= minSecret && len(s) <= maxSecret &&
		!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"'`\\", r) })
}

// rateLimit is requests a minute for each credential; 0 for no limit.
func (s *Settings) rateLimit() (int, error) {
	if s.RateLimit == "" {
		return 0, nil
	}
	var n int
	if _, err := fmt.Sscanf(s.RateLimit+"\n", "%d\n", &n); err != nil || n < 1 {
		return 0, errors.New("not a whole number")
	}
	return n, nil
}

func (s *Settings) mayIntrospect(v *store.Viewer) bool {
	return s.Introspection == "all" || s.Introspection == "admin" && v.Require(store.ScopeAdmin) == nil
}

func (s *Settings) graphQLLimits() graph.Limits {
	return graph.Limits{
		Tokens: s.GraphQLMaxTokens, Depth: s.GraphQLMaxDepth, Aliases: s.GraphQLMaxAliases, RootFields: s.GraphQLMaxRootFields, Cost: s.GraphQLMaxCost,
	}
}

func (s *Settings) privateHosts() []string { return list(s.PrivateHosts) }

// proxy is the operator's egress proxy; nil for none.
func (s *Settings) proxy() *url.URL {
	if s.EgressProxy == "" {
		return nil
	}
	u, _ := egress.ParseProxy(s.EgressProxy) // Validate has parsed it
	return u
}

// sealer is made of the secret keys; nil where the database has a key file.
func (s *Settings) sealer() (*store.Sealer, error) {
	if s.SecretKey == "" {
		return nil, nil
	}
	return store.NewSealer(s.SecretKey, list(s.SecretKeyOld)...)
}

// list is what stands between commas.
func list(setting string) []string {
	var out []string
	for x := range strings.SplitSeq(setting, ",") {
		if x = strings.TrimSpace(x); x != "" {
			out = append(out, x)
		}
	}
	return out
}

// openAI says whether the operator has set up an OpenAI-compatible server.
func (s *Settings) openAI() bool { return s.OpenAIKey != "" || s.OpenAIBaseURL != "" }
