package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"parley/egress"
	"parley/store"
)

const (
	listedFor     = 5 * time.Minute // how long a server's list of tools is kept
	listWithin    = 5 * time.Second // a server that takes longer is left out of the turn
	maxListed     = 64              // tools of one server
	maxListedSize = 64 << 10        // bytes of one of its schemas
	maxMcpEvent   = 1 << 20         // bytes of one message
)

// mcpServers knows the tools of MCP servers, and calls them. Its methods are safe for concurrent use.
type mcpServers struct {
	client *http.Client // guarded
	store  *store.Store
	log    *slog.Logger

	mu     sync.Mutex // guards listed
	listed map[string]listing
}

// listing is what a server said of its tools.
type listing struct {
	tools []listedTool
	until time.Time
}

type listedTool struct {
	Tool
	remote string // its name at the server
}

// connection is a turn's to one server, made when it is first needed.
type connection struct {
	servers *mcpServers
	agent   *store.Agent
	server  *store.McpServer
	session *mcp.ClientSession
}

func (c *connection) open(ctx context.Context) (*mcp.ClientSession, error) {
	if c.session != nil {
		return c.session, nil
	}
	headers, err := c.servers.store.McpHeaders(c.agent, c.server)
	if err != nil {
		return nil, err
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "parley", Version: "1"}, nil)
	c.session, err = client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: c.server.URL, HTTPClient: egress.WithHeaders(c.servers.client, headers), MaxRetries: -1, DisableStandaloneSSE: true,
		MaxEventSize: maxMcpEvent,
	}, nil)
	return c.session, err
}

// close says goodbye to the server, off the turn's path: it may take its time.
func (c *connection) close() {
	if session := c.session; session != nil {
		go func() { _ = session.Close() }()
	}
}

// bind lists the tools of an agent's servers, and says how each is called. A server that does not answer is left out: the agent
// does without it. Call done when the turn is over.
func (m *mcpServers) bind(ctx context.Context, a *store.Agent) (tools []boundTool, done func()) {
	var connections []*connection
	for i := range a.McpServers {
		c := &connection{servers: m, agent: a, server: &a.McpServers[i]}
		connections = append(connections, c)
		listed, err := m.list(ctx, c)
		if err != nil {
			m.log.Warn("list the tools of an MCP server", "agent", a.ID, "server", c.server.Name, "error", err)
			continue
		}
		for _, tool := range listed {
			tools = append(tools, boundTool{tool.Tool, func(ctx context.Context, call Call) Result { return c.call(ctx, tool, call) }})
		}
	}
	return tools, func() {
		for _, c := range connections {
			c.close()
		}
	}
}

func (m *mcpServers) list(ctx context.Context, c *connection) ([]listedTool, error) {
	key := fmt.Sprint(c.agent.BusinessID, "/", c.agent.ID, "/", c.agent.Version, "/", c.server.Name)
	m.mu.Lock()
	known, ok := m.listed[key]
	m.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.tools, nil
	}
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	session, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	var tools []listedTool
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		schema, err := json.Marshal(tool.InputSchema)
		name := c.server.Name + "_" + tool.Name
		if err != nil || len(schema) > maxListedSize || !store.ToolName(name) {
			m.log.Warn("a tool of an MCP server cannot be offered", "agent", c.agent.ID, "tool", cut(name, 100))
			continue
		}
		tools = append(tools, listedTool{Tool{Name: name, Description: cut(tool.Description, 4096), Parameters: schema}, tool.Name})
		if len(tools) == maxListed {
			break
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listed == nil {
		m.listed = map[string]listing{}
	}
	for k, l := range m.listed {
		if time.Now().After(l.until) {
			delete(m.listed, k)
		}
	}
	m.listed[key] = listing{tools, time.Now().Add(listedFor)}
	return tools, nil
}

// call has the server do what a model wants. As with every tool, its failures are results.
func (c *connection) call(ctx context.Context, tool listedTool, call Call) Result {
	failed := func(sentence string) Result { return Result{CallID: call.ID, Content: sentence, Failed: true} }
	if wrong := checkArguments(tool.Parameters, call.Arguments); wrong != "" {
		return failed(wrong)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.server.TimeoutSeconds)*time.Second)
	defer cancel()
	session, err := c.open(ctx)
	if err != nil {
		return failed("The tool could not be reached.")
	}
	arguments := call.Arguments
	if len(bytes.TrimSpace(arguments)) == 0 {
		arguments = json.RawMessage("{}")
	}
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool.remote, Arguments: arguments})
	switch {
	case errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
		return failed("The tool gave no answer in time.")
	case err != nil:
		return failed("The tool failed.")
	}
	var b strings.Builder
	for _, content := range result.Content {
		if text, ok := content.(*mcp.TextContent); ok && b.Len() <= maxResult {
			b.WriteString(text.Text)
			b.WriteByte('\n')
		}
	}
	if b.Len() == 0 && result.StructuredContent != nil {
		if raw, err := json.Marshal(result.StructuredContent); err == nil {
			b.Write(raw)
		}
	}
	return Result{CallID: call.ID, Content: clean([]byte(strings.TrimSpace(b.String()))), Failed: result.IsError}
}
