package hook_test

import (
	"slices"
	"testing"
	"time"

	"parley/store"
	"parley/store/hook"
)

func TestRotatedSecretsSignUntilTheyExpire(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		s, h := open(t, nil)
		v := newBusiness(t, s)
		p, old, err := h.CreateEndpoint(t.Context(), v, hook.EndpointInput{URL: ptr("https://example.com"), Events: store.EventTypes})
		if err != nil {
			t.Fatal(err)
		}
		rotated, err := h.RotateSecret(t.Context(), v, p.ID, 24)
		if err != nil {
			t.Fatal(err)
		}
		secrets := func(at store.Time) []string {
			got, err := h.SigningSecrets(p.ID, rotated.Endpoint.Secrets, at)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		if got := secrets(store.Now()); !slices.Equal(got, []string{rotated.Secret, old}) {
			t.Errorf("signing secrets now: %v", got)
		}
		if got := secrets(store.Now().Add(25 * time.Hour)); !slices.Equal(got, []string{rotated.Secret}) {
			t.Errorf("signing secrets tomorrow: %v", got)
		}
		for range 3 {
			if rotated, err = h.RotateSecret(t.Context(), v, p.ID, 24); err != nil {
				t.Fatal(err)
			}
		}
		if got := secrets(store.Now()); len(got) != 3 || got[0] != rotated.Secret {
			t.Errorf("signing secrets after four rotations: %d", len(got))
		}
	})
}
