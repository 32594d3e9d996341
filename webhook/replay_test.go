package webhook_test

import (
	"context"
	"database/sql"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"parley/store"
	"parley/store/hook"
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

// TestReplayThatWaitsKeepsItsOrder: a receiver is so slow that a replay's deliveries wait in memory for too long, and go back to SQL
// while later ones are still there. What comes, comes in order.
func TestReplayThatWaitsKeepsItsOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, t.TempDir(), nil)
	var slow atomic.Bool
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) {
		if slow.Load() {
			<-time.After(300 * time.Millisecond) // 7 s in memory are too long with a deadline of 2 s
		}
	})
	p, _ := w.endpoint(r.URL, store.RunFinished)
	begun := store.Now()
	const n = 40
	session := ""
	for range n {
		session = w.turn(session)
	}
	var want, got []string
	for _, d := range w.settled(p.ID, n) {
		want = append(want, d.EventID)
	}
	slow.Store(true)
	before := len(r.got())
	if _, err := w.hooks.ReplayEvents(t.Context(), w.viewer, hook.ReplayInput{EndpointID: p.ID, Since: begun, FailedOnly: new(bool)}); err != nil {
		t.Fatal(err)
	}
	w.await(p.ID, func(all []*hook.Delivery) bool {
		return !slices.ContainsFunc(all, func(d *hook.Delivery) bool { return d.Attempts < 2 })
	})
	for _, req := range r.got()[before:] {
		if id := req.header.Get("Webhook-Id"); !slices.Contains(got, id) { // else it is a retry
			got = append(got, id)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the replay came as\n%v, want\n%v", got, want)
	}
}
