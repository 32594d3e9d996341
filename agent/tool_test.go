package agent

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"parley/egress"
	"parley/store"
)

// TestAToolThatSwitchesProtocols is told of at once, though its connection stays open and silent.
func TestAToolThatSwitchesProtocols(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, out, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = out.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_ = out.Flush()
		_, _ = io.Copy(io.Discard, out)
	}))
	t.Cleanup(server.Close)
	guard, err := egress.NewGuard(egress.Policy{Trusted: []string{"127.0.0.0/8"}})
	if err != nil {
		t.Fatal(err)
	}
	tool := &store.Tool{Name: "x", URL: server.URL, Method: http.MethodPost, Parameters: store.JSONObject(`{"type": "object"}`), TimeoutSeconds: 10}
	box := &toolbox{client: egress.NewClient(guard, 1)}
	got := box.call(t.Context(), &store.Agent{}, tool, Call{ID: "1", Name: "x", Arguments: json.RawMessage(`{}`)})
	if !got.Failed || !strings.Contains(got.Content, "status 101") {
		t.Errorf("the model is told %q", got.Content)
	}
}
