package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"
)

// signingSecret is one of an endpoint's secrets. The newest has no Expires; a rotated one signs beside it until its own.
type signingSecret struct {
	Secret  string `json:"secret"`
	Expires *Time  `json:"expires,omitempty"`
}

// maxSigning is how many secrets sign one delivery (contract, section 5).
const maxSigning = 3

func (s *Store) sealSecrets(endpoint string, secrets []signingSecret) ([]byte, error) {
	plain, err := json.Marshal(secrets)
	if err != nil {
		return nil, err
	}
	return s.sealer.Seal(plain, endpoint), nil
}

// SigningSecrets opens the secrets with which deliveries to an endpoint are signed at an instant, newest first.
func (s *Store) SigningSecrets(endpoint string, sealed []byte, at Time) ([]string, error) {
	secrets, err := s.opened.get(endpoint, sealed, func() ([]signingSecret, error) { return s.openSecrets(endpoint, sealed) })
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
func signing(secrets []signingSecret, at Time) []signingSecret {
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

func (s *Store) openSecrets(endpoint string, sealed []byte) ([]signingSecret, error) {
	plain, err := s.sealer.Open(sealed, endpoint)
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
	PreviousExpiresAt Time
}

// maxOverlap is how long a rotated secret may go on signing beside the new one.
const maxOverlap = 30 * 24

// RotateSecret gives an endpoint a new signing secret; the ones before go on signing beside it for the overlap.
func (s *Store) RotateSecret(_ context.Context, v *Viewer, id string, overlapHours int) (*Rotated, error) {
	if overlapHours < 0 || overlapHours > maxOverlap {
		return nil, valueError(fmt.Sprintf("must be between 0 and %d hours", maxOverlap)).Under("overlapHours").Err()
	}
	var rotated *Rotated
	err := s.batcher.do(1024, func(ctx context.Context, t *tx) error {
		endpoint, err := endpointIn(ctx, t.forUpdate(), v.BusinessID, id)
		if err != nil {
			return err
		}
		secrets, err := s.openSecrets(id, endpoint.Secrets)
		if err != nil {
			return err
		}
		secrets = signing(secrets, t.now)
		expires := t.now.Add(time.Duration(overlapHours) * time.Hour)
		for i := range secrets {
			if secrets[i].Expires == nil || *secrets[i].Expires > expires {
				secrets[i].Expires = &expires
			}
		}
		rotated = &Rotated{Endpoint: endpoint, Secret: s.cfg.NewSecret(), PreviousExpiresAt: expires}
		secrets = append([]signingSecret{{Secret: rotated.Secret}}, secrets...)
		if endpoint.Secrets, err = s.sealSecrets(id, secrets[:min(len(secrets), maxSigning)]); err != nil {
			return err
		}
		_, err = t.NewRaw("UPDATE endpoints SET secrets = ? WHERE id = ?", endpoint.Secrets, id).Exec(ctx)
		return err
	})
	if err == nil {
		s.cfg.EndpointsChanged(v.BusinessID)
	}
	return rotated, err
}
