package e2e_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

// TestSlowViewer: a viewer that stops reading is closed with 1013 and goes on from the last cursor that it has, without a gap, and
// another one of the same feed notices nothing.
func TestSlowViewer(t *testing.T) {
	t.Parallel()
	s := start(t)
	const feed = "subscription($after: String) { events(after: $after, filter: {types: [MESSAGE_CREATED]}) { cursor node { id data } } }"
	cursor := at(s.query(token, "{ feedCursor }", nil), "feedCursor")
	quick := s.subscribe(token, feed, object{"after": cursor})

	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}, NetDialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		}
		return conn, err
	}}
	slow, _, err := dialer.Dial("ws"+strings.TrimPrefix(s.url(), "http")+"/graphql", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slow.Close() })
	for _, m := range []object{
		{"type": "connection_init", "payload": object{"Authorization": "Bearer " + token}},
		{"id": "1", "type": "subscribe", "payload": object{"query": feed, "variables": object{"after": cursor}}},
	} {
		if err := slow.WriteJSON(m); err != nil {
			t.Fatal(err)
		}
		if m["type"] == "connection_init" {
			var ack object
			if err := slow.ReadJSON(&ack); err != nil || ack["type"] != "connection_ack" {
				t.Fatalf("no connection_ack: %v, %v", ack, err)
			}
		}
	}

	// Events of 16 KB, some 2 MB of them.
	const chats = 130
	for range chats {
		body := object{"message": "When are you open?", "channel": "whatsapp", "metadata": object{"x": strings.Repeat("x", 16_000)}}
		if status, _, answer := s.call("POST", "/agents/demo/chat", withKey(apiKey), encode(body)); status != 200 {
			t.Fatalf("chat: %d %v", status, answer)
		}
	}
	var all []any
	for range 2 * chats {
		all = append(all, at(quick.wait(), "events", "node", "id"))
	}
	eventually(t, "noticing the slow viewer", func() bool {
		_, _, metrics, err := s.try(t.Context(), "GET", "/metrics", nil, "")
		return err == nil && strings.Contains(string(metrics), "\nparley_live_slow_total 1\n")
	})

	var got []any
	for {
		var m object
		if err = slow.ReadJSON(&m); err != nil {
			break
		}
		if m["type"] == "next" {
			got = append(got, at(m, "payload", "data", "events", "node", "id"))
			cursor = at(m, "payload", "data", "events", "cursor")
		}
	}
	var closed *websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != websocket.CloseTryAgainLater || closed.Text != "slow consumer" {
		t.Errorf("the slow viewer's socket ended with %v", err)
	}
	if len(got) == 0 || len(got) == len(all) {
		t.Fatalf("the slow viewer had %d events of %d when it was closed", len(got), len(all))
	}
	again := s.subscribe(token, feed, object{"after": cursor})
	for range len(all) - len(got) {
		got = append(got, at(again.wait(), "events", "node", "id"))
	}
	if encode(got) != encode(all) {
		t.Errorf("the slow viewer has not had every event once and in order:\n%v\n%v", got, all)
	}
}
