package webhook_test

import (
	"context"
	"database/sql"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"parley/store"
	"parley/webhook"
)

// stuck is a log that holds whoever tells it of something until it is let go.
type stuck struct {
	slog.Handler
	about string
	held  chan struct{} // takes one of each that is held
	letGo chan struct{}
}

func (s stuck) Enabled(context.Context, slog.Level) bool { return true }

func (s stuck) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if strings.Contains(a.Value.String(), s.about) {
			select {
			case s.held <- struct{}{}:
			default:
			}
			<-s.letGo
		}
		return true
	})
	return nil
}

// TestReplaysHoldUpNothing: while whoever goes on with the replays is held, here by a table that is away, what is fresh goes out.
func TestReplaysHoldUpNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := stuck{slog.DiscardHandler, "replays", make(chan struct{}, 1), make(chan struct{})}
	w := newWorld(t, dir, func(c *webhook.Config) { c.Log = slog.New(log) })
	t.Cleanup(func() { close(log.letGo) })
	p, _ := w.endpoint(newReceiver(t, nil).URL, store.RunFinished)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "parley.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), "ALTER TABLE replays RENAME TO away"); err != nil {
		t.Fatal(err)
	}
	<-log.held
	w.turn("")
	if d := w.settled(p.ID, 1)[0]; d.Status != store.Delivered {
		t.Errorf("a fresh delivery is %s", d.Status)
	}
}
