package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"
)

// TestWhatIsLoggedOfAuthentication: a caller that left is no error, a database that is away is told
// of by the store, and what someone must act on is an error each time.
func TestWhatIsLoggedOfAuthentication(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	g := &gate{log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	left, leave := context.WithCancel(t.Context())
	leave()
	g.logFailure(left, fmt.Errorf("read a credential: %w", context.Canceled))
	g.logFailure(left, io.ErrUnexpectedEOF) // however the driver words it
	for range 3 {
		g.logFailure(t.Context(), fmt.Errorf("read a credential: %w", io.EOF))
	}
	for range 2 {
		g.logFailure(t.Context(), errors.New("no such column"))
	}
	levels := strings.Join(regexp.MustCompile(`level=\w+`).FindAllString(log.String(), -1), " ")
	if want := "level=DEBUG level=DEBUG level=DEBUG level=DEBUG level=DEBUG level=ERROR level=ERROR"; levels != want {
		t.Errorf("it logged %s", &log)
	}
}
