package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// TestEitherCarriesTheEvents shows that Redis earns its place, and that it is not needed: with the polling of SQL switched
// off the stream carries the events, and with the stream switched off SQL does.
func TestEitherCarriesTheEvents(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Settings){
		"without polling":    func(s *Settings) { s.noPolling = true },
		"without the stream": func(s *Settings) { s.noStream = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serveInProcess(t, change)
			hooks := make(chan string, 100)
			receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				hooks <- r.Header.Get("Webhook-Id")
			}))
			t.Cleanup(receiver.Close)
			post(t, url+"/v1/webhooks", `{"url":"`+receiver.URL+`","events":["message.created","run.finished"]}`)
			live := make(chan string, 100)
			subscribe(t, url, live)
			for range 20 {
				post(t, url+"/agents/demo/chat", `{"message":"Hello","channel":"sms"}`)
			}
			onFeed, atReceiver := map[string]bool{}, map[string]bool{}
			deadline := time.After(30 * time.Second)
			for len(onFeed) < 60 || len(atReceiver) < 60 {
				select {
				case id := <-live:
					onFeed[id] = true
				case id := <-hooks:
					atReceiver[id] = true
				case <-deadline:
					t.Fatalf("%d of 60 events on the feed, %d at the receiver", len(onFeed), len(atReceiver))
				}
			}
		})
	}
}

// serveInProcess runs the server in this process, where its seams can be reached, and returns its address.
func serveInProcess(t *testing.T, change func(*Settings)) string {
	t.Helper()
	s := &Settings{
		Addr: "127.0.0.1:0", DatabaseURL: "file:" + filepath.Join(t.TempDir(), "parley.db"), BootstrapAPIKey: "sk_test", BootstrapToken: "at_test",
		AllowPrivateWebhooks: true, SessionTTL: time.Hour, DeliveryTimeout: 10 * time.Second, DeliveryRetries: 2, DeliveryBackoff: time.Second,
		TurnTimeout: time.Minute, Retention: time.Hour, OpenAIModel: "none",
	}
	change(s)
	ctx, stop := context.WithCancel(context.Background())
	stdout, printed := io.Pipe()
	ended := make(chan error, 1)
	var log lockedBuffer
	go func() { ended <- serve(ctx, s, printed, &log) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v\n%s", err, log.String())
		}
	})
	buf := make([]byte, 4096)
	n, err := stdout.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`http://\S+`).FindString(string(buf[:n]))
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func post(t *testing.T, url, body string) []byte {
	t.Helper()
	return postAs(t, "at_test", url, body)
}

func postAs(t *testing.T, token, url, body string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode/100 != 2 {
		t.Fatalf("%s: %d %s %v", url, res.StatusCode, raw, err)
	}
	return raw
}

func subscribe(t *testing.T, url string, ids chan<- string) {
	t.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
	conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(url, "http")+"/graphql", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	init := `{"type":"connection_init","payload":{"Authorization":"Bearer at_test"}}`
	if err := conn.WriteMessage(websocket.TextMessage, []byte(init)); err != nil {
		t.Fatal(err)
	}
	type message struct {
		Type    string
		Payload struct {
			Data struct {
				Events struct{ Node struct{ ID string } }
			}
		}
	}
	var ack message
	if err := conn.ReadJSON(&ack); err != nil || ack.Type != "connection_ack" {
		t.Fatalf("%+v, %v", ack, err)
	}
	// After the feed's end as it is now: nothing is missed, however late the subscription begins.
	var end struct {
		Data struct{ FeedCursor string }
	}
	if err := json.Unmarshal(post(t, url+"/graphql", `{"query":"{feedCursor}"}`), &end); err != nil {
		t.Fatal(err)
	}
	begin := `{"type":"subscribe","id":"1","payload":{"query":"subscription { events(after: \"` + end.Data.FeedCursor + `\") { node { id } } }"}}`
	if err := conn.WriteMessage(websocket.TextMessage, []byte(begin)); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			_, raw, err := conn.ReadMessage()
			if err != nil {
				return
			}
			var m message
			if json.Unmarshal(raw, &m) == nil && m.Type == "next" {
				ids <- m.Payload.Data.Events.Node.ID
			}
		}
	}()
}
