package egress

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	secretPrefix  = "whsec_"
	secretSize    = 32 // bytes: as many as SHA-256 gives; the specification wants 24 to 64
	maxSignatures = 3  // the newest secret and two that it follows: a bound for the header and for the work
)

// NewSecret makes a secret of Standard Webhooks: `whsec_` and the base64 of 32 random bytes.
func NewSecret() string {
	key := make([]byte, secretSize)
	_, _ = rand.Read(key) // never fails: it ends the process if the system has no randomness
	return secretPrefix + base64.StdEncoding.EncodeToString(key)
}

// Sign makes the value of the header `webhook-signature` (https://www.standardwebhooks.com): for each secret `v1,` and the
// base64 of HMAC-SHA256 over `id.timestamp.body`, separated by spaces, in the order given. Secrets after the third do not
// sign. The timestamp counts in whole Unix seconds, as `webhook-timestamp` says it. A secret that is empty or not base64 is
// an error, which does not repeat it.
func Sign(id string, timestamp time.Time, body []byte, secrets ...string) (header string, err error) {
	if len(secrets) == 0 {
		return "", errors.New("sign a webhook: there is no secret")
	}
	secrets = secrets[:min(len(secrets), maxSignatures)]
	prefix := make([]byte, 0, len(id)+22) // a dot, up to 20 digits, a dot
	prefix = append(append(prefix, id...), '.')
	prefix = append(strconv.AppendInt(prefix, timestamp.Unix(), 10), '.')
	const signature = len("v1,") + (sha256.Size+2)/3*4
	out := make([]byte, 0, len(secrets)*(signature+1))
	var sum [sha256.Size]byte
	for i, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, secretPrefix))
		if err != nil || len(key) == 0 {
			return "", fmt.Errorf("sign a webhook: secret %d of %d is empty or not base64", i+1, len(secrets))
		}
		mac := hmac.New(sha256.New, key)
		mac.Write(prefix)
		mac.Write(body)
		if i > 0 {
			out = append(out, ' ')
		}
		out = base64.StdEncoding.AppendEncode(append(out, "v1,"...), mac.Sum(sum[:0]))
	}
	return string(out), nil
}
