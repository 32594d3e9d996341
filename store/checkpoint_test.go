package store_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"parley/store"
)

// TestTheLogBeginsAnewBesideLists: two businesses loop their lists, so that all readers read all
// the time, and chats commit many times what SQLite's log may hold. It begins anew each time, and
// neither lists nor chats are kept from going on.
func TestTheLogBeginsAnewBesideLists(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "parley.db")
	s := open(t, func(c *store.Config) { c.URL = "file:" + path })
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	running.Go(func() {
		if err := s.RunCheckpoints(ctx); err != nil {
			t.Error(err)
		}
	})
	viewers := []*store.Viewer{newBusiness(t, s), newBusiness(t, s)}
	chat := func() {
		in := turnInput(viewers[0], "")
		in.Text = strings.Repeat("long ", 4<<10)
		turn, err := s.BeginTurn(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		finish(t, s, turn)
	}
	var lists atomic.Int64
	for range 64 {
		chat()
	}
	for _, v := range viewers {
		for range 4 {
			running.Go(func() {
				as := store.WithViewer(ctx, v, nil)
				for ctx.Err() == nil {
					if _, err := s.EventsAfter(as, viewers[0].BusinessID, 0, 1<<20, nil, 64); err != nil && ctx.Err() == nil {
						t.Errorf("a list: %v", err)
						return
					}
					lists.Add(1)
				}
			})
		}
	}
	logged := func() int64 {
		info, err := os.Stat(path + "-wal")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if err != nil {
			return 0
		}
		return info.Size()
	}
	const times, most = 3, 2 * store.LogAllowed
	for range times {
		for logged() < store.LogAllowed { // lists keep it from beginning anew by itself
			chat()
		}
		for large := logged(); large >= store.LogAllowed && large < most; large = logged() {
			chat()
		}
		until(t, "the log begins anew", func() bool { return logged() < store.LogAllowed })
	}
	for before := lists.Load(); lists.Load() < before+100 && !t.Failed(); {
		chat()
	}
}
