package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"parley/alive"
	"parley/e2e/servers"
	"parley/egress"
)

// echoPort is a server on Python's ssl, which is OpenSSL: it answers with its client's port.
const echoPort = `
import http.server, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        port = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(port)))
        self.end_headers()
        self.wfile.write(port)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("pair.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
`

// TestADialInVainIsForTheNext: a request ends while it is dialled, and that goes on. OpenSSL sends tickets with its handshake, whether they
// are wanted or not: the connection is used all the same. To start a process forks this one, and what others close meanwhile ends later:
// nothing runs beside it.
func TestADialInVainIsForTheNext(t *testing.T) { //nolint:paralleltest // see above
	dir := t.TempDir()
	some := httptest.NewTLSServer(nil) // for its certificate
	some.Close()
	key, err := x509.MarshalPKCS8PrivateKey(some.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	pair := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: some.Certificate().Raw})...)
	if err := os.WriteFile(filepath.Join(dir, "pair.pem"), pair, 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.CommandContext(t.Context(), servers.Need(t, "python3"), "-c", echoPort)
	server.Dir = dir
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Wait() }) // t's context has ended it
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url := "https://127.0.0.1:" + strings.TrimSpace(port)

	client := local(t)
	transport := client.Transport.(egress.Transport)
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // its own server
	dial, dialling, given, dialled := transport.DialContext, make(chan struct{}), make(chan struct{}), make(chan net.Conn, 2)
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		close(dialling) // a second dial would close it again
		<-given
		conn, err := dial(ctx, network, addr)
		dialled <- conn
		return conn, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-dialling
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := client.Do(req); !errors.Is(err, context.Canceled) {
		if err == nil {
			_ = resp.Body.Close()
		}
		t.Fatal(err)
	}
	close(given)
	conn := <-dialled
	for until := time.Now().Add(30 * time.Second); ; {
		if n, _ := transport.Waiting(); n == 1 && !alive.Idle(conn) { // the tickets are there
			break
		}
		if time.Now().After(until) {
			t.Fatal("the dial brought nothing, or no ticket came")
		}
		<-time.After(time.Millisecond)
	}
	_, want, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, got, err := post(t, client, url); err != nil || got != want {
			t.Errorf("got port %q, want %q: %v", got, want, err)
		}
	}
}
