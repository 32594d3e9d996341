package graph

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/99designs/gqlgen/graphql/handler/extension"
	"github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"golang.org/x/sync/errgroup"

	"parley/graph/transport"
	"parley/store"
)

// HandlerConfig is what a Handler is made with.
type HandlerConfig struct {
	Resolver *Resolver
	// Authenticate puts the viewer of a WebSocket into its context, by its connection_init payload.
	Authenticate func(ctx context.Context, payload map[string]any) (context.Context, error)
	// Admit counts what no request of its own was counted for against its viewer's rate limit: an operation on a WebSocket, and each
	// `chat` field of an operation but the first. Nil admits everything.
	Admit func(ctx context.Context) error
	// Revoked says whether the credential of an open WebSocket or event stream has been revoked.
	Revoked func(ctx context.Context) bool
	// CheckOrigin says whether a page of the request's origin may open a WebSocket; nil: one of this host.
	CheckOrigin func(*http.Request) bool
	// OriginRefusal is what the others are told.
	OriginRefusal string
	// Introspection says whether a viewer may see the schema by introspection.
	Introspection func(*store.Viewer) bool
	// Sockets is how many WebSockets and event streams a business may have open at a time; 2,000 if 0.
	Sockets int
	// Subscriptions is how many of them a business may have at a time; 20,000 if 0.
	Subscriptions int
	Limits        Limits
	Log           *slog.Logger
}

// Handler serves /graphql: queries and mutations over HTTP, everything over WebSocket and as server-sent events.
type Handler struct {
	server *handler.Server
	live   *transport.WebSocket
	events *transport.SSE
	groups *transport.Groups
	quota  *transport.Quota
	feeds  *Resolver
	slow   atomic.Int64
}

// NewHandler makes the handler. Shut it down after use: http.Server does not wait for WebSockets, and waits for event streams
// for ever.
func NewHandler(cfg HandlerConfig) *Handler {
	limits := cfg.Limits.orDefault()
	quota := &transport.Quota{
		Sockets: cmp.Or(cfg.Sockets, 2_000), Subscriptions: cmp.Or(cfg.Subscriptions, 20_000),
		Of: func(ctx context.Context) (credential, business string) {
			if v, err := store.ViewerOf(ctx); err == nil {
				return v.Credential.ID, v.BusinessID
			}
			return "", ""
		},
	}
	groups := &transport.Groups{Of: shared}
	live := &transport.WebSocket{
		Authenticate: orTryAgain(cfg.Authenticate), Admit: cfg.Admit,
		CheckOrigin: cfg.CheckOrigin, OriginRefusal: cfg.OriginRefusal, Groups: groups, Quota: quota, Log: cfg.Log,
	}
	events := &transport.SSE{Revoked: store.ErrUnauthenticated, Groups: groups, Quota: quota, Log: cfg.Log}
	if cfg.Revoked != nil {
		all := &verdicts{ask: cfg.Revoked}
		live.Recheck, events.Recheck = all.revoked, all.revoked
	}
	executable := NewExecutableSchema(Config{Resolvers: cfg.Resolver})
	schema := executable.Schema()
	mustKnowScalars(schema)
	mustHaveNoInterfaces(schema)
	server := handler.New(executable)
	server.AddTransport(checked{live, schema, limits.Tokens})
	server.AddTransport(checked{transport.HTTP{Events: events, Refusal: refusalStatus}, schema, limits.Tokens})
	parsed := parsedDocuments()
	server.SetQueryCache(parsed)
	server.SetParserTokenLimit(limits.Tokens)
	server.SetDisableSuggestion(true)
	server.SetValidationRulesFn(validation)
	server.SetErrorPresenter(presenter(cfg.Log))
	server.SetRecoverFunc(recoverer(cfg.Log))
	server.Use(extension.Introspection{})
	server.Use(guardedIntrospection{cfg.Introspection})
	server.Use(extension.AutomaticPersistedQuery{Cache: persistedDocuments()})
	server.Use(bounder{limits.Tokens, parsed})
	server.Use(&limiter{limits: limits})
	server.Use(oneLoad{})
	server.Use(deadline{})
	if cfg.Admit != nil {
		server.Use(charger{cfg.Admit})
	}
	h := &Handler{server: server, live: live, events: events, groups: groups, quota: quota, feeds: cfg.Resolver}
	live.Closed = func(_ context.Context, _ int, reason string) {
		if reason == transport.ReasonSlow {
			h.slow.Add(1)
		}
	}
	return h
}

// orTryAgain closes the sockets that are refused for the moment alone with 1013: connect again later. The 4403 of all others says
// that another token is needed.
func orTryAgain(authenticate func(context.Context, map[string]any) (context.Context, error)) func(context.Context, map[string]any) (context.Context, error) {
	return func(ctx context.Context, payload map[string]any) (context.Context, error) {
		ctx, err := authenticate(ctx, payload)
		if refusal, ok := store.AsError(err); ok && (refusal.Code == store.CodeRateLimited || refusal.Code == store.CodeUnavailable) {
			return nil, &transport.CloseError{Code: websocket.CloseTryAgainLater, Reason: refusal.Message}
		}
		return ctx, err
	}
}

// refusalStatus is the HTTP status of a request whose body ended with the refusal of its sender.
func refusalStatus(err error) int {
	var refusal *store.Error
	switch {
	case !errors.As(err, &refusal):
		return 0
	case refusal.Code == store.CodeUnauthenticated:
		return http.StatusUnauthorized
	case refusal.Code == store.CodeRateLimited:
		return http.StatusTooManyRequests
	}
	return http.StatusServiceUnavailable
}

// ServeHTTP serves one request, or one WebSocket or event stream to its end.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.server.ServeHTTP(w, r) }

// Live is what the live feeds have come to.
type Live struct {
	Sockets, Streams int   // that are open: WebSockets, and responses of server-sent events
	Made, Given      int64 // results of subscriptions: executed, and sent to clients
	Subscriptions    int64 // that run
	Resumed          int64 // subscriptions of events that began after a cursor
	Slow             int64 // WebSockets that were closed since their client was too slow
}

// Live tells what the live feeds have come to so far.
func (h *Handler) Live() Live {
	return Live{
		Sockets: h.live.Open(), Streams: h.events.Open(), Subscriptions: h.quota.Open(), Resumed: h.feeds.resumed.Load(),
		Made: h.groups.Made.Load(), Given: h.groups.Given.Load(), Slow: h.slow.Load(),
	}
}

// Shutdown closes the WebSockets and the event streams, and returns when all of them are closed, or ctx has ended.
func (h *Handler) Shutdown(ctx context.Context) error {
	var closing errgroup.Group
	closing.Go(func() error { return h.live.Shutdown(ctx) })
	closing.Go(func() error { return h.events.Shutdown(ctx) })
	return closing.Wait()
}

// guardedIntrospection shows the schema to those alone who may see it.
type guardedIntrospection struct {
	allowed func(*store.Viewer) bool
}

var _ interface {
	graphql.HandlerExtension
	graphql.OperationContextMutator
} = guardedIntrospection{}

func (guardedIntrospection) ExtensionName() string { return "GuardedIntrospection" }

func (guardedIntrospection) Validate(graphql.ExecutableSchema) error { return nil }

func (g guardedIntrospection) MutateOperationContext(ctx context.Context, op *graphql.OperationContext) *gqlerror.Error {
	op.DisableIntrospection = true
	if v, err := store.ViewerOf(ctx); err == nil {
		op.DisableIntrospection = !g.allowed(v)
	}
	return nil
}
