package store_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"parley/store"
)

// TestTheQuickestReadingCounts: of several readings of the database's clock the quickest is taken, and its error is half the
// time that it took at most, however slow the others were.
func TestTheQuickestReadingCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ahead = time.Hour
		ways := []time.Duration{80 * time.Millisecond, 2 * time.Millisecond, 30 * time.Millisecond}
		n := 0
		off, took, err := store.QuickestReading(func() (store.Time, error) {
			back := ways[n%len(ways)] // the answer is slow: all of it counts as error
			n++
			theirs := store.Now().Add(ahead)
			time.Sleep(back)
			return theirs, nil
		})
		if err != nil || took != ways[1] {
			t.Errorf("it took %v, %v", took, err)
		}
		if wrong := off - ahead; wrong < -ways[1]/2 || wrong > ways[1]/2 {
			t.Errorf("the clock is %v ahead, and read as %v", ahead, off)
		}
	})
	away := errors.New("away")
	if _, _, err := store.QuickestReading(func() (store.Time, error) { return 0, away }); !errors.Is(err, away) {
		t.Errorf("of a clock that cannot be read: %v", err)
	}
}
