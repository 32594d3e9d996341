// Command receiver takes webhooks, and verifies their signatures with the Standard Webhooks library. It is part of the
// README's tour, and a start for a receiver of your own: answer fast, work afterwards, and know a webhook-id that you have
// seen before.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "where to listen")
	secret := flag.String("secret", "", "the endpoint's secret, whsec_…")
	flag.Parse()
	verifier, err := standardwebhooks.NewWebhook(*secret)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: *addr, ReadHeaderTimeout: 5 * time.Second, Handler: receive(verifier)}
	fmt.Println("receiving at http://" + *addr)
	log.Fatal(server.ListenAndServe())
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
