package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/redis/go-redis/v9"

	"parley/store"
)

// newLog makes the log that the settings ask for. Each line that belongs to a request bears its id.
func newLog(to io.Writer, s *Settings) *slog.Logger {
	var options slog.HandlerOptions
	var level slog.Level
	// One of four words, or of a test none: that is info.
	_ = level.UnmarshalText([]byte(s.LogLevel))
	options.Level = level
	if s.LogFormat == "json" {
		return slog.New(requestLog{slog.NewJSONHandler(to, &options)})
	}
	return slog.New(requestLog{slog.NewTextHandler(to, &options)})
}

// redisLog takes what go-redis says of its connections. The stream tells of a Redis that is away,
// and of its return, each once: what go-redis has to say of each attempt to reach it is for who
// looks closer.
type redisLog struct{ log *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.log.DebugContext(ctx, "go-redis", "said", strings.TrimSpace(fmt.Sprintf(format, v...)))
}

// takeRedisLog has go-redis, which has one log in a process, write to this one.
func takeRedisLog(log *slog.Logger) { redis.SetLogger(redisLog{log}) }

// logStart tells with what the server has started: which kinds of peers, never their addresses,
// which may hold secrets.
func logStart(log *slog.Logger, s *Settings, address string) {
	database, bell := "sqlite", "embedded"
	if store.IsPostgres(s.DatabaseURL) {
		database = "postgresql"
	}
	if s.RedisURL != "" {
		bell = "redis"
	}
	log.Info("started", "version", buildVersion(), "address", address, "database", database, "stream", bell)
}
