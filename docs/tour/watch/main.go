// Command watch prints a business's events as they happen: a GraphQL subscription over WebSocket, by the
// graphql-transport-ws protocol. It is part of the README's tour; a browser would use the npm package graphql-ws.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/gorilla/websocket"
)

const query = `subscription { events { node { type channel direction sequence timestamp data } } }`

func main() {
	url := flag.String("url", "ws://127.0.0.1:8080/graphql", "Parley's GraphQL address")
	token := flag.String("token", "", "an access token, at_…")
	flag.Parse()
	if !strings.HasPrefix(*token, "at_") {
		fmt.Fprintln(os.Stderr, "watch: -token must be an access token, at_…: `go run . token create` makes one")
		os.Exit(2)
	}
	if err := watch(*url, *token); err != nil {
		log.Fatal(err)
	}
}

func watch(url, token string) error {
	type message struct {
		ID      string         `json:"id,omitempty"`
		Type    string         `json:"type"`
		Payload map[string]any `json:"payload,omitempty"`
	}
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
	conn, _, err := dialer.Dial(url, nil)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	hello := message{Type: "connection_init", Payload: map[string]any{"Authorization": "Bearer " + token}}
	if err := conn.WriteJSON(hello); err != nil {
		return err
	}
	for {
		var m message
		if err := conn.ReadJSON(&m); err != nil {
			return err
		}
		switch m.Type {
		case "connection_ack":
			fmt.Println("watching")
			err = conn.WriteJSON(message{ID: "1", Type: "subscribe", Payload: map[string]any{"query": query}})
		case "ping":
			err = conn.WriteJSON(message{Type: "pong"})
		case "next":
			data, _ := m.Payload["data"].(map[string]any)
			edge, _ := data["events"].(map[string]any)
			node, _ := edge["node"].(map[string]any)
			detail, _ := node["data"].(map[string]any)
			text, _ := detail["text"].(string) // of messages
			fmt.Println(node["timestamp"], node["type"], node["direction"], node["channel"], text)
		default:
			return fmt.Errorf("%s: %v", m.Type, m.Payload)
		}
		if err != nil {
			return err
		}
	}
}
