package store_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/store"
)

// execute runs a statement beside the stores.
func execute(t *testing.T, url, query string) {
	t.Helper()
	if _, err := dial(t, url).ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

func keyed(v *store.Viewer, session, key, hash string) store.TurnInput {
	in := turnInput(v, session)
	in.Key = &store.IdempotencyKey{Key: key, Hash: hash}
	return in
}

func TestAKeyHasOneTurnAndItsAnswer(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		stores, url := openTwo(t, open, nil)
		s := stores[0]
		v, other := newBusiness(t, s), newBusiness(t, s)
		if _, err := s.BeginTurn(t.Context(), keyed(v, "ses_unknown", "k", "h")); !errors.Is(err, store.ErrSessionNotFound) {
			t.Fatal(err)
		}
		turn, err := s.BeginTurn(t.Context(), keyed(v, "", "k", "h")) // a refused one took no key
		if err != nil {
			t.Fatal(err)
		}
		// met is what a request with the key gets, before its turn and in it.
		met := func(hash string, want error) {
			t.Helper()
			for i, s := range stores {
				answer, err := s.KeptAnswer(t.Context(), v.BusinessID, store.IdempotencyKey{Key: "k", Hash: hash})
				if errors.Is(want, store.ErrKeyAnswered) != (answer != nil) || answer == nil && !errors.Is(err, want) {
					t.Errorf("store %d before its turn: %v, %v, want %v", i, answer, err, want)
				}
				for _, session := range []string{"", turn.SessionID} {
					if _, err := s.BeginTurn(t.Context(), keyed(v, session, "k", hash)); !errors.Is(err, want) {
						t.Errorf("store %d in its turn: %v, want %v", i, err, want)
					}
				}
			}
		}
		met("h", store.ErrKeyInFlight)
		met("another", store.ErrKeyReused)
		theirs, err := s.BeginTurn(t.Context(), keyed(other, "", "k", "another"))
		if err != nil {
			t.Errorf("another business with the same key: %v", err)
		}
		finish(t, s, theirs)
		reply := finish(t, s, turn)
		met("h", store.ErrKeyAnswered)
		met("another", store.ErrKeyReused)
		if n := len(events(t, s, v)); n != 3 {
			t.Errorf("%d events: refused requests left some behind", n)
		}
		answer, err := stores[1].KeptAnswer(t.Context(), v.BusinessID, store.IdempotencyKey{Key: "k", Hash: "h"})
		want := &store.Answer{
			Reply: "Hi", SessionID: turn.SessionID, MessageID: reply.ID, RunID: turn.Run.ID, Channel: store.WhatsApp,
			Status: store.RunStatusFinished, Model: "embedded/extractive-1", Usage: store.TokenUsage{Source: store.UsageNone},
		}
		if diff := cmp.Diff(want, answer); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}

		execute(t, url, "UPDATE idempotency_keys SET expires_at = 1 WHERE business_id = '"+v.BusinessID+"'")
		again, err := s.BeginTurn(t.Context(), keyed(v, "", "k", "another")) // after 24 hours it is as new
		if err != nil {
			t.Fatal(err)
		}
		turn = again
		met("another", store.ErrKeyInFlight)
	})
}

func TestAFailedTurnLetsItsKeyGo(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		in := keyed(v, "", "k", "h")
		in.Lease = -1 // left behind by a crash
		if _, err := s.BeginTurn(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if _, err := s.BeginTurn(t.Context(), in); !errors.Is(err, store.ErrKeyInFlight) {
			t.Errorf("before the sweep: %v", err)
		}
		abandoned, err := s.AbandonedRuns(t.Context(), 10)
		if err != nil || len(abandoned) != 1 {
			t.Fatalf("abandoned: %v, %v", abandoned, err)
		}
		if err := s.FailTurn(t.Context(), abandoned[0], store.RunInterrupted); err != nil {
			t.Fatal(err)
		}
		turn, err := s.BeginTurn(t.Context(), keyed(v, "", "k", "another")) // with another request too
		if err != nil {
			t.Fatal(err)
		}
		finish(t, s, turn)
		if answer, err := s.KeptAnswer(t.Context(), v.BusinessID, store.IdempotencyKey{Key: "k", Hash: "another"}); err != nil || answer.RunID != turn.Run.ID {
			t.Errorf("%+v, %v", answer, err)
		}
	})
}

// TestFiftyAtOnceHaveOneTurn on two servers.
func TestFiftyAtOnceHaveOneTurn(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		stores, _ := openTwo(t, open, nil)
		v := newBusiness(t, stores[0])
		var begun atomic.Int32
		atOnce(50, func(i int) {
			if _, err := stores[i%2].BeginTurn(t.Context(), keyed(v, "", "k", "h")); err == nil {
				begun.Add(1)
			} else if !errors.Is(err, store.ErrKeyInFlight) {
				t.Errorf("refused with %v", err)
			}
		})
		if begun.Load() != 1 || len(events(t, stores[0], v)) != 1 {
			t.Errorf("%d turns began, with %d events", begun.Load(), len(events(t, stores[0], v)))
		}
	})
}

func TestRetentionRemovesExpiredKeys(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		stores, url := openTwo(t, open, nil)
		s := stores[0]
		v := newBusiness(t, s)
		kept := func(key string) *store.Answer {
			t.Helper()
			answer, err := s.KeptAnswer(t.Context(), v.BusinessID, store.IdempotencyKey{Key: key, Hash: "h"})
			if err != nil {
				t.Fatal(err)
			}
			return answer
		}
		for _, key := range []string{"old", "young"} {
			turn, err := s.BeginTurn(t.Context(), keyed(v, "", key, "h"))
			if err != nil {
				t.Fatal(err)
			}
			finish(t, s, turn)
		}
		execute(t, url, "UPDATE idempotency_keys SET expires_at = 1 WHERE key = 'old'")
		if _, err := s.Prune(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		execute(t, url, "UPDATE idempotency_keys SET expires_at = 9000000000000000") // brings back what is still there
		if kept("old") != nil || kept("young") == nil {
			t.Error("the expired one is there, or the other one is not")
		}
	})
}

func TestIdempotencyKeysAreChecked(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"k": "", strings.Repeat("ä", 255): "", "a b ~!": "", "": "string_too_short", strings.Repeat("x", 256): "string_too_long",
		"a\tb": "value_error", "a\x7f": "value_error", "\xff": "value_error", "a\x00": "value_error", "a\u200bb": "value_error",
	} {
		f := store.CheckIdempotencyKey(key)
		if want == "" && len(f) > 0 || want != "" && (len(f) != 1 || f[0].Type != want) {
			t.Errorf("%.10q: %v, want %s", key, f, want)
		}
	}
}
