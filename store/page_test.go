package store_test

import (
	"encoding/base64"
	"testing"

	"parley/store"
)

// TestCursorsOfNoRow: a cursor that no page has given is the caller's fault, on both databases alike.
func TestCursorsOfNoRow(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s := open(t, nil)
		v := newBusiness(t, s)
		for _, raw := range []string{"", "x", "id:\xff", "id:a\x00", "id:\xed\xa0\x80"} {
			after := base64.RawURLEncoding.EncodeToString([]byte(raw))
			_, err := s.Runs(t.Context(), v.BusinessID, store.RunFilter{}, store.PageInput{First: 1, After: &after})
			if code, reason := refusal(t, err); code != store.CodeInvalid {
				t.Errorf("the runs after %q: %s %s", raw, code, reason)
			}
			_, err = s.Events(t.Context(), v.BusinessID, nil, store.EventPage{After: &after})
			if code, reason := refusal(t, err); code != store.CodeInvalid {
				t.Errorf("the events after %q: %s %s", raw, code, reason)
			}
		}
		for _, id := range []string{"\xff", "a\x00"} {
			_, err := s.AgentOfTurn(t.Context(), v.BusinessID, id)
			if code, reason := refusal(t, err); code != store.CodeNotFound {
				t.Errorf("the agent %q: %s %s", id, code, reason)
			}
		}
	})
}
