package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"parley/store"
)

// signingSecret is one of an endpoint's secrets. The newest has no Expires; a rotated one signs beside it until its own.
type signingSecret struct {
	Secret  string      `json:"secret"`
	Expires *store.Time `json:"expires,omitempty"`
}

// maxSigning is how many secrets sign one delivery (contract, section 5).
const maxSigning = 3

func (h *Hooks) sealSecrets(endpoint string, secrets []signingSecret) ([]byte, error) {
	plain, err := json.Marshal(secrets)
	if err != nil {
		return nil, err
	}
	return h.store.Sealer().Seal(plain, endpoint), nil
}

// SigningSecrets opens the secrets with which deliveries to an endpoint are signed at an instant, newest first.
func (h *Hooks) SigningSecrets(endpoint string, sealed []byte, at store.Time) ([]string, error) {
	secrets, err := h.opened.get(endpoint, sealed, func() ([]signingSecret, error) { return h.openSecrets(endpoint, sealed) })
	if err != nil {
		return nil, err
	}
	secrets = signing(secrets, at)
	out := make([]string, len(secrets))
	for i, secret := range secrets {
		out[i] = secret.Secret
	}
	return out, nil
}

// signing are those of an endpoint's secrets that sign at an instant.
func signing(secrets []signingSecret, at store.Time) []signingSecret {
	good := make([]signingSecret, 0, maxSigning)
	for _, x := range secrets {
		if (x.Expires == nil || *x.Expires > at) && len(good) < maxSigning {
			good = append(good, x)
		}
	}
	return good
}

// openedSecrets remembers what was found in sealed secrets: to open them takes longer than to sign.
type openedSecrets struct {
	mu sync.Mutex
	of map[string]openedSecret // by endpoint
}

type openedSecret struct {
	sealed  []byte
	secrets []signingSecret
}

const maxOpened = 10_000

func (o *openedSecrets) get(endpoint string, sealed []byte, open func() ([]signingSecret, error)) ([]signingSecret, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if known, ok := o.of[endpoint]; ok && bytes.Equal(known.sealed, sealed) {
		return known.secrets, nil
	}
	secrets, err := open()
	if err != nil {
		return nil, err
	}
	if o.of == nil || len(o.of) >= maxOpened {
		o.of = map[string]openedSecret{}
	}
	o.of[endpoint] = openedSecret{sealed, secrets}
	return secrets, nil
}

func (h *Hooks) openSecrets(endpoint string, sealed []byte) ([]signingSecret, error) {
	plain, err := h.store.Sealer().Open(sealed, endpoint)
	if err != nil {
		return nil, fmt.Errorf("open the signing secrets of endpoint %s: %w", endpoint, err)
	}
	var secrets []signingSecret
	if err := json.Unmarshal(plain, &secrets); err != nil {
		return nil, fmt.Errorf("read the signing secrets of endpoint %s: %w", endpoint, err)
	}
	return secrets, nil
}

// Rotated is an endpoint with its new secret, shown this once.
type Rotated struct {
	Endpoint          *Endpoint
	Secret            string
	PreviousExpiresAt store.Time
}

// maxOverlap is how long a rotated secret may go on signing beside the new one.
const maxOverlap = 30 * 24

// RotateSecret gives an endpoint a new signing secret; the ones before go on signing beside it for the overlap.
func (h *Hooks) RotateSecret(_ context.Context, v *store.Viewer, id string, overlapHours int) (*Rotated, error) {
	if overlapHours < 0 || overlapHours > maxOverlap {
		return nil, store.Faults{store.ValueError(fmt.Sprintf("must be between 0 and %d hours", maxOverlap))}.Under("overlapHours").Err()
	}
	var rotated *Rotated
	err := h.change(v.BusinessID, 1024, func(ctx context.Context, t *store.Tx) error {
		endpoint, err := endpointIn(ctx, t.ForUpdate(), v.BusinessID, id)
		if err != nil {
			return err
		}
		secrets, err := h.openSecrets(id, endpoint.Secrets)
		if err != nil {
			return err
		}
		secrets = signing(secrets, t.Now)
		expires := t.Now.Add(time.Duration(overlapHours) * time.Hour)
		for i := range secrets {
			if secrets[i].Expires == nil || *secrets[i].Expires > expires {
				secrets[i].Expires = &expires
			}
		}
		rotated = &Rotated{Endpoint: endpoint, Secret: h.cfg.NewSecret(), PreviousExpiresAt: expires}
		secrets = append([]signingSecret{{Secret: rotated.Secret}}, secrets...)
		if endpoint.Secrets, err = h.sealSecrets(id, secrets[:min(len(secrets), maxSigning)]); err != nil {
			return err
		}
		h.changed(t, v.BusinessID)
		_, err = t.NewRaw("UPDATE endpoints SET secrets = ? WHERE id = ?", endpoint.Secrets, id).Exec(ctx)
		return err
	})
	return rotated, err
}
