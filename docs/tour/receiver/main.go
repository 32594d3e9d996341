// Command receiver takes webhooks, and verifies their signatures with the Standard Webhooks library. It is part of the
// README's tour, and a start for a receiver of your own: answer fast, work afterwards, and know a webhook-id that you have
// seen before.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "where to listen")
	secret := flag.String("secret", "", "the endpoint's secret, whsec_…")
	flag.Parse()
	verifier, err := newVerifier(*secret)
	if err != nil {
		fmt.Fprintln(os.Stderr, "receiver:", err)
		os.Exit(2)
	}
	server := &http.Server{Addr: *addr, ReadHeaderTimeout: 5 * time.Second, Handler: receive(verifier)}
	fmt.Println("receiving at http://" + *addr)
	log.Fatal(server.ListenAndServe())
}

// newVerifier verifies with an endpoint's secret. The library would take an empty one too, with
// which everybody can sign.
func newVerifier(secret string) (*standardwebhooks.Webhook, error) {
	verifier, err := standardwebhooks.NewWebhook(secret)
	if rest, ok := strings.CutPrefix(secret, "whsec_"); err != nil || !ok || rest == "" {
		return nil, errors.New("-secret must be the endpoint's secret, whsec_…: the answer to its registration shows it")
	}
	return verifier, nil
}

func receive(verifier *standardwebhooks.Webhook) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "the body could not be read", http.StatusBadRequest)
			return
		}
		if err := verifier.Verify(body, r.Header); err != nil {
			fmt.Println("refused:", err)
			http.Error(w, "the signature does not match", http.StatusUnauthorized)
			return
		}
		fmt.Printf("verified %s\n%s\n", r.Header.Get("webhook-id"), body)
	}
}
