package deploy_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"parley/e2e/servers"
)

// TestNginx puts the example's nginx in front of the server: chats, streamed replies, events over a
// WebSocket, from a page of its own host, and as server-sent events come through as they happen.
func TestNginx(t *testing.T) {
	t.Parallel()
	servers.Need(t, "nginx", "/usr/sbin")
	dir := t.TempDir()
	cmd := exec.Command(binary)
	cmd.Dir, cmd.Env = dir, settings
	s := start(t, cmd, dir)

	raw, err := os.ReadFile("nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	config, addr := string(raw), servers.FreePort(t)
	cert, key := servers.Certificate(t)
	for _, change := range [][2]string{
		{"listen 443 ssl", "listen " + addr + " ssl"},
		{"server 127.0.0.1:8080;", "server " + strings.TrimPrefix(s.url, "http://") + ";"},
		{"/etc/ssl/certs/parley.example.com.pem", cert},
		{"/etc/ssl/private/parley.example.com.pem", key},
	} {
		if strings.Count(config, change[0]) != 1 {
			t.Fatalf("nginx.conf does not say %q once", change[0])
		}
		config = strings.Replace(config, change[0], change[1], 1)
	}
	servers.Nginx(t, addr, config)
	trusted := x509.NewCertPool()
	pem, err := os.ReadFile(cert)
	if err != nil || !trusted.AppendCertsFromPEM(pem) {
		t.Fatal(err)
	}
	tlsConfig := &tls.Config{RootCAs: trusted}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig}, Timeout: patience}
	url := "https://" + addr
	chats(t, client, url)

	// A streamed reply.
	res, err := post(client, url+chatPath, "text/event-stream", chatBody)
	if err != nil {
		t.Fatal(err)
	}
	streamed, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(streamed), "event: delta") || strings.Count(string(streamed), "event: done") != 1 {
		t.Errorf("a streamed reply: %s %v", streamed, err)
	}

	// Both subscriptions are there before the chat, and stay open behind it: what was held back
	// would not come.
	const query = `{"query": "subscription { events { node { type } } }"}`
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}, TLSClientConfig: tlsConfig, HandshakeTimeout: patience}
	conn, _, err := dialer.Dial("wss://"+addr+"/graphql", http.Header{"Origin": {url}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	say := func(text string) {
		t.Helper()
		if err := conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	hears := func(want string) {
		t.Helper()
		for {
			_, message, err := conn.ReadMessage()
			if err != nil {
				t.Fatalf("no %s: %v", want, err)
			}
			if strings.Contains(string(message), want) {
				return
			}
		}
	}
	say(`{"type": "connection_init", "payload": {"Authorization": "Bearer ` + token + `"}}`)
	hears("connection_ack")
	say(`{"id": "1", "type": "subscribe", "payload": ` + query + `}`)
	stream, err := post(client, url+"/graphql", "text/event-stream", query)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Body.Close() }()
	chatting := make(chan struct{})
	ended := make(chan struct{})
	go func() { // again and again: nothing tells when a subscription has begun
		defer close(ended)
		for {
			if res, err := post(client, url+chatPath, "application/json", chatBody); err == nil {
				_ = res.Body.Close()
			}
			select {
			case <-chatting:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	defer func() { close(chatting); <-ended }()
	hears("RUN_FINISHED")
	lines := bufio.NewScanner(stream.Body)
	for found := false; !found; {
		if !lines.Scan() {
			t.Fatalf("the stream ended without events: %v", lines.Err())
		}
		found = strings.Contains(lines.Text(), "RUN_FINISHED")
	}

	res, err = client.Get(url + "/metrics")
	if err != nil || res.StatusCode != http.StatusNotFound {
		t.Errorf("/metrics: %v %v", res, err)
	}
}
