package egress_test

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"parley/egress"
)

// verify asks the library of Standard Webhooks, which is none of ours.
func verify(t *testing.T, secret, id string, at time.Time, body []byte, signature string) {
	t.Helper()
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	err = webhook.VerifyIgnoringTimestamp(body, http.Header{
		"Webhook-Id": {id}, "Webhook-Timestamp": {strconv.FormatInt(at.Unix(), 10)}, "Webhook-Signature": {signature},
	})
	if err != nil {
		t.Errorf("the library refuses %q: %v", signature, err)
	}
}

func TestSignMakesTheSignatureOfThePublishedVector(t *testing.T) {
	t.Parallel()
	got, err := egress.Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 999), []byte(`{"test": 2432232314}`), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestEverySecretSignsUpToThree(t *testing.T) {
	t.Parallel()
	at, body := time.Now(), []byte(`{"event":{}}`)
	secrets := []string{egress.NewSecret(), egress.NewSecret(), egress.NewSecret(), egress.NewSecret()}
	var alone []string
	for i, secret := range secrets {
		one, err := egress.Sign("evt_1", at, body, secret)
		if err != nil {
			t.Fatal(err)
		}
		alone = append(alone, one)
		got, err := egress.Sign("evt_1", at, body, secrets[:i+1]...)
		if want := strings.Join(alone[:min(i+1, 3)], " "); err != nil || got != want {
			t.Errorf("%d secrets: got %q, %v, want %q", i+1, got, err, want)
		}
		if i < 3 {
			verify(t, secret, "evt_1", at, body, got)
		}
	}
}

func TestSignRefusesABadSecretAndDoesNotRepeatIt(t *testing.T) {
	t.Parallel()
	good := egress.NewSecret()
	for _, bad := range []string{"", "whsec_", "whsec_not base64", "whsec_abc", "sk_hunter2!"} {
		for _, secrets := range [][]string{{bad}, {good, bad}, {bad, good}} {
			got, err := egress.Sign("evt_1", time.Now(), nil, secrets...)
			if err == nil || got != "" {
				t.Errorf("%q: got %q, no error", bad, got)
			} else if bad != "" && bad != "whsec_" && strings.Contains(err.Error(), bad) {
				t.Errorf("the error repeats the secret: %v", err)
			}
		}
	}
	if _, err := egress.Sign("evt_1", time.Now(), nil); err == nil {
		t.Error("no secret, no error")
	}
}

func TestNewSecretIsRandomAndWellFormed(t *testing.T) {
	t.Parallel()
	a, b := egress.NewSecret(), egress.NewSecret()
	if a == b {
		t.Error("two secrets are the same")
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(a, "whsec_"))
	if !strings.HasPrefix(a, "whsec_") || err != nil || len(key) != 32 {
		t.Errorf("%d bytes, %v", len(key), err)
	}
}

func FuzzSign(f *testing.F) {
	f.Add("evt_1", int64(1614265330), []byte(`{}`), []byte("key"))
	f.Add("é.1", int64(-1), []byte{0, 255}, []byte{0})
	f.Fuzz(func(t *testing.T, id string, seconds int64, body, key []byte) {
		at, secret := time.Unix(seconds, 0), "whsec_"+base64.StdEncoding.EncodeToString(key)
		signature, err := egress.Sign(id, at, body, secret, egress.NewSecret())
		if (err != nil) != (len(key) == 0) {
			t.Fatal(err)
		}
		if err == nil && id != "" { // the library takes an empty id for a missing one
			verify(t, secret, id, at, body, signature)
		}
	})
}

func BenchmarkSign(b *testing.B) {
	secret, at, body := egress.NewSecret(), time.Now(), make([]byte, 600)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := egress.Sign("evt_01890a5d-ac96-774b-bcce-b302099a8057", at, body, secret); err != nil {
			b.Fatal(err)
		}
	}
}
