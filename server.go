// Command parley runs conversational agents for businesses: it answers chats, serves their events live, and delivers them
// to webhooks. The package wires the parts together, and does nothing else; `go doc parley/store` tells what they are about.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"

	"parley/agent"
	"parley/agent/anthropic"
	"parley/agent/embedded"
	"parley/agent/openai"
	"parley/egress"
	"parley/graph"
	"parley/graphiql"
	"parley/rest"
	"parley/store"
	"parley/store/hook"
	"parley/stream"
	"parley/webhook"
)

// command is the command line.
type command struct {
	Settings
	Version kong.VersionFlag `name:"version" help:"Show version, commit and Go's version."`

	Serve    struct{} `cmd:"" default:"1" help:"Run the server. This is what parley does without a command."`
	Business struct {
		Create struct {
			Name string `arg:"" help:"Its name."`
		} `cmd:"" help:"Make another business, and print its id, an API key and an ADMIN token, once. Works beside a running server; before the first start it takes the place of the demo business."`
	} `cmd:"" help:"Businesses."`
	Token struct {
		Create struct {
			Business string `placeholder:"ID" help:"Whose token; without it, of the only business there is."`
			Scope    string `default:"ADMIN" enum:"READ,OPERATE,ADMIN" placeholder:"SCOPE" help:"What it may do: READ, OPERATE or ADMIN (default: ${default})."`
		} `cmd:"" help:"Make an access token, and print it with a sign-in link, once. Works beside a running server, and when all other tokens are lost."`
	} `cmd:"" help:"Access tokens."`
}

func main() {
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		s := <-signals
		signal.Stop(signals) // the second one ends the process at once
		end(signalled{s})
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// signalled is why the server is to end.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return s.String() }

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // it ran, and could not go on
	exitRefused = 2 // it did not start: one line says why
)

// run is the process but for its globals.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var cmd command
	helped := false
	parser, err := kong.New(&cmd, kong.Name("parley"), kong.Description("Conversational agents: chat, live events, signed webhooks."),
		kong.Vars{"version": versionLine()}, kong.Writers(stdout, stderr), kong.Exit(func(int) { helped = true }))
	if err != nil {
		panic(err) // the command line's own definition is wrong
	}
	parsed, err := parser.Parse(args)
	if helped {
		return exitOK
	}
	if unknown := misspelt(os.Environ(), settingNames(parser.Model)); unknown != nil {
		err = errors.Join(err, errors.New(strings.Join(unknown, "; ")+": --help shows all settings"))
	}
	if err == nil {
		switch parsed.Command() {
		case "business create <name>":
			err = createBusiness(ctx, &cmd, stdout)
		case "token create":
			err = createToken(ctx, &cmd, stdout)
		default:
			err = serve(ctx, &cmd.Settings, stdout, stderr)
		}
	}
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintf(stderr, "parley: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	var failed *failure
	if errors.As(err, &failed) {
		return exitFailed
	}
	return exitRefused
}

// failure is an error of a server that had started.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

// How long a stop may take: turns and deliveries get the first 12 s, and the rest is for telling everyone.
const (
	drainLimit = 12 * time.Second
	stopLimit  = 14 * time.Second
	lastLimit  = stopLimit + 500*time.Millisecond // with the database away a part may still wait for it
)

// serve runs the server until ctx ends, and then stops it in good order.
func serve(ctx context.Context, s *Settings, stdout, stderr io.Writer) error {
	log := newLog(stderr, s)
	takeRedisLog(log)
	listener, err := openListener(ctx, s.Addr)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	aside, err := s.listenForMetrics(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = aside.Close() }()
	p, err := assemble(ctx, s, log)
	if err != nil {
		return err
	}
	if err := bootstrap(ctx, p.store, s, address(listener.Addr().String()), stdout, log); err != nil {
		return errors.Join(err, p.store.Close())
	}
	if s.AllowPrivateWebhooks {
		log.Warn("PARLEY_ALLOW_PRIVATE_WEBHOOKS IS ON: webhooks may go to http:// and to private hosts. Never run this in production")
	}
	if store.IsPostgres(s.DatabaseURL) && s.RedisURL == "" {
		log.Warn("PARLEY_REDIS_URL is not set: live views here do not show what other replicas deliver, and show their events up to a second late; each replica counts the rate limit by itself")
	}
	logStart(log, s, address(listener.Addr().String()))
	return p.serve(ctx, listener, aside)
}

// address is a URL at which a server that listens on hostPort can be reached from its own machine:
// no client connects to 0.0.0.0 or [::], which stand for all addresses.
func address(hostPort string) string {
	host, port, err := net.SplitHostPort(hostPort)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		hostPort = net.JoinHostPort("127.0.0.1", port)
	}
	return "http://" + hostPort
}

// parts are the running server's.
type parts struct {
	settings *Settings
	log      *slog.Logger
	store    *store.Store
	hooks    *hook.Hooks
	stream   *stream.Stream
	hub      *stream.Hub
	worker   *webhook.Worker
	runner   *agent.Runner
	graphql  *graph.Handler
	handler  http.Handler
	health   *health
	metrics  *metrics
}

// assemble wires the parts. Nothing runs yet but the commit batcher.
func assemble(ctx context.Context, s *Settings, log *slog.Logger) (*parts, error) {
	p := &parts{settings: s, log: log, metrics: newMetrics()}
	webhooks, err := egress.NewGuard(egress.Policy{AllowPrivate: s.AllowPrivateWebhooks, Proxy: s.proxy()})
	if err != nil {
		return nil, err
	}
	models, err := egress.NewGuard(egress.Policy{Trusted: s.privateHosts(), Proxy: s.proxy()})
	if err != nil {
		return nil, err
	}
	// The operator's own model server may stand anywhere; through egress its client follows no redirect and uses no proxy.
	operator, err := egress.NewGuard(egress.Policy{Trusted: []string{"0.0.0.0/0", "::/0"}})
	if err != nil {
		return nil, err
	}
	p.stream, err = stream.Open(stream.Config{
		URL: s.RedisURL, Off: s.noStream, Log: log,
		Receive: func(entries []stream.Entry) { p.hub.Offer(entries); p.worker.Offer(entries); p.runner.Offer(entries) },
		Own:     func(entries []stream.Entry) { p.hub.Changed(entries) },
	})
	if err != nil {
		return nil, err
	}
	prices, err := parsePrices(s.Prices)
	if err != nil {
		return nil, err
	}
	config := store.Config{
		URL: s.DatabaseURL, Exclusive: true, SessionTTL: s.SessionTTL, Retention: s.Retention, MaxAgents: s.MaxAgents,
		CheckURL: faults(webhooks.CheckURL), CheckModelURL: faults(models.CheckURL),
		CheckSchema: agent.CheckSchema, CheckPrompt: agent.CheckPrompt, Price: prices.of, Committed: p.stream.Publish, Log: log,
	}
	if config.Sealer, err = s.sealer(); err != nil {
		return nil, err
	}
	if p.store, err = store.Open(ctx, config); err != nil {
		return nil, err
	}
	p.hooks = hook.New(hook.Config{
		Store: p.store, CheckURL: config.CheckURL, NewSecret: egress.NewSecret, MaxEndpoints: s.MaxEndpoints, EndpointGrace: s.EndpointGrace, Log: log,
		Changed: func(business string) {
			p.worker.Changed(business)
			p.stream.PublishDeliveries(business) // for the other replicas, one of which may have the business's shard
		},
		DeliveriesChanged: p.stream.PublishDeliveries,
	})
	p.hub = stream.NewHub(stream.HubConfig{Store: p.store, Hooks: p.hooks, Ringing: p.stream.Ringing, Losses: p.stream.Losses, Alone: p.stream.Embedded(), NoPoll: s.noPolling, Log: log})
	p.worker = webhook.New(webhook.Config{
		Store: p.store, Hooks: p.hooks, Stream: p.stream, Client: egress.NewClient(webhooks, 64), Timeout: s.DeliveryTimeout,
		Policy: webhook.Policy{Retries: s.DeliveryRetries, Backoff: s.DeliveryBackoff}, Drain: drainLimit, NoPoll: s.noPolling, Log: log,
		Recorded: p.metrics.recordedOutcomes,
	})
	guarded, free := egress.NewClient(models, 64), egress.NewClient(operator, 64)
	p.runner = agent.NewRunner(agent.Config{
		Store: p.store, History: agent.NewLocalHistory(32 << 20), TurnTimeout: s.TurnTimeout, Tools: egress.NewClient(models, 64), Log: log,
		Asked: p.metrics.asked, Ended: p.metrics.ended,
		Models: map[store.ModelProvider]agent.Model{
			store.ProviderEmbedded: embedded.New(embedded.Config{Latency: s.EmbeddedModelLatency}),
			store.ProviderOpenAI: openai.New(openai.Config{
				Client: guarded, OperatorClient: free, BaseURL: s.OpenAIBaseURL, APIKey: s.OpenAIKey, DefaultModel: s.OpenAIModel,
			}),
			store.ProviderAnthropic: anthropic.New(anthropic.Config{Client: guarded, OperatorClient: free, APIKey: s.AnthropicKey}),
		},
	})
	if err := p.route(); err != nil {
		return nil, errors.Join(err, p.store.Close())
	}
	// What an earlier process left behind is taken up before anything new is committed.
	if err := errors.Join(p.store.DisownRuns(ctx), p.worker.Prepare(ctx)); err != nil {
		return nil, errors.Join(err, p.store.Close())
	}
	return p, nil
}

// faults turns egress's faults of a URL into the store's.
func faults(check func(string) []egress.Fault) func(string) store.Faults {
	return func(raw string) store.Faults {
		var out store.Faults
		for _, f := range check(raw) {
			out = append(out, store.Fault{Type: f.Type, Msg: f.Msg, Ctx: f.Ctx})
		}
		return out
	}
}

// route lays out the paths.
func (p *parts) route() error {
	door := &gate{store: p.store, log: p.log}
	if limit, err := p.settings.rateLimit(); err != nil {
		return err
	} else if limit > 0 {
		door.limiter = p.stream.NewLimiter(limit)
	}
	allowed, err := newOrigins(p.settings.AllowedOrigins, p.log)
	if err != nil {
		return err
	}
	p.graphql = graph.NewHandler(graph.HandlerConfig{
		Resolver: &graph.Resolver{Store: p.store, Hooks: p.hooks, Hub: p.hub, Runner: p.runner}, Authenticate: door.connect, Admit: door.admitViewer, Revoked: door.revoked,
		Introspection: p.settings.mayIntrospect, Limits: p.settings.graphQLLimits(),
		Sockets: p.settings.MaxSockets, Subscriptions: p.settings.MaxSubscriptions, CheckOrigin: allowed.mayConnect, OriginRefusal: originRefusal, Log: p.log,
	})
	page := graphiql.Handler()
	p.health = &health{store: p.store, stream: p.stream}
	mux := http.NewServeMux()
	mux.Handle("/graphql", door.authenticate(p.graphql))
	// The browser takes what stands behind # along.
	mux.Handle("GET /{$}", http.RedirectHandler("/graphiql", http.StatusFound))
	mux.Handle("GET /graphiql", page)
	mux.Handle("GET /graphiql/", page)
	mux.HandleFunc("GET /healthz", p.health.alive)
	mux.HandleFunc("GET /readyz", p.health.ready)
	p.metrics.observe(p.store, p.stream, p.worker, p.graphql.Live)
	if p.settings.MetricsAddr == "" {
		mux.Handle("GET /metrics", p.metrics.handler())
	}
	paths := (&rest.API{
		Store: p.store, Hooks: p.hooks, Runner: p.runner, Log: p.log, SDL: graph.SDL(), Introspection: p.settings.mayIntrospect,
	}).Handler()
	mux.Handle("/", door.authenticate(paths))
	watched := &observer{log: p.log, route: routeOf(mux, paths), told: p.metrics.requested, draining: p.health.draining.Load}
	p.handler = identify(watched.observe(allowed.guard(mux)))
	return nil
}

// serve runs everything until ctx ends or a part fails, and then stops it: nothing new begins, what is in flight ends or is
// handed back, and everyone who is connected is told.
func (p *parts) serve(ctx context.Context, listener net.Listener, aside metricsListener) error {
	// No ReadTimeout: it would go on running while a turn thinks, and end the request. Who reads a body sets its deadline.
	server := &http.Server{
		Handler: p.handler, ReadHeaderTimeout: headerTime, MaxHeaderBytes: maxHeader, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelWarn),
	}
	held, isHeld := listener.(*heldListener)
	if isHeld {
		server.ConnState = held.Track
	}
	background, endBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer endBackground()
	group, background := errgroup.WithContext(background)
	group.Go(func() error { return paceGC(background) })
	group.Go(func() error { return p.stream.Run(background) })
	group.Go(func() error { return p.hub.Run(background) })
	group.Go(func() error { return p.runner.Run(background) })
	group.Go(func() error { return p.store.Watch(background) })
	group.Go(func() error { return p.store.RunRetention(background) })
	group.Go(func() error { return p.store.RunCheckpoints(background) })
	group.Go(func() error { return p.hooks.RunSweeper(background) })
	group.Go(func() error { return p.metrics.serve(background, aside) })
	working, endWork := context.WithCancel(background)
	defer endWork()
	worked := make(chan struct{})
	group.Go(func() error {
		defer close(worked)
		return p.worker.Run(working)
	})
	group.Go(func() error {
		if err := server.Serve(timedListener{listener, cmp.Or(p.settings.takenWithin, 10*time.Second)}); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})

	select {
	case <-ctx.Done():
	case <-background.Done(): // a part failed
	}
	p.health.drain()
	p.log.Info("stopping", "why", cmp.Or(context.Cause(ctx), context.Cause(background)))
	p.lookAway(ctx, background)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	defer time.AfterFunc(lastLimit, func() {
		p.log.Error("the stop took too long: a part does not end")
		os.Exit(exitOK) // what is in flight is left as by a crash: nothing of it is lost
	}).Stop()
	endWork()
	if isHeld {
		held.Cease()
	}
	// The doors stay open while turns end: their callers, on sockets too, get their answers, and new ones are told why not.
	drain, cancelDrain := context.WithTimeout(stop, drainLimit)
	defer cancelDrain()
	p.runner.Drain(drain)
	var stopping errgroup.Group
	stopping.Go(func() error { return server.Shutdown(stop) })
	stopping.Go(func() error { return p.graphql.Shutdown(stop) })
	err := stopping.Wait()
	<-worked
	endBackground()
	if failed := group.Wait(); failed != nil {
		err = &failure{failed}
	} else if err != nil {
		p.log.Warn("stop", "error", err)
		err = server.Close()
	}
	err = errors.Join(err, p.store.Close())
	p.log.Info("stopped")
	return err
}

// lookAway goes on as before for a while after a SIGTERM, which is how replicas are replaced: so
// long whoever shares out the requests may take to notice that this one is not ready. At a Ctrl-C
// nobody does.
func (p *parts) lookAway(ctx, background context.Context) {
	var why signalled
	if !errors.As(context.Cause(ctx), &why) || why.Signal != syscall.SIGTERM {
		return
	}
	select {
	case <-time.After(p.settings.DrainDelay):
	case <-background.Done(): // a part failed
	}
}
