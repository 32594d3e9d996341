package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"parley/egress"
	"parley/store"
)

const (
	listedFor     = 5 * time.Minute  // how long a server's list of tools is kept
	listWithin    = 5 * time.Second  // a server that takes longer is left out of the turn
	awayFor       = 30 * time.Second // how long one that could not be listed is not asked again: the turns do not wait for it
	maxListed     = 64               // tools of one server
	maxLookedAt   = 256              // tools that one is read to list, those that cannot be offered too
	maxListedSize = 64 << 10         // bytes of one of its schemas
	maxListSize   = 1 << 20          // bytes of all of them
	maxMcpBody    = 4 << 20          // bytes of one answer, all its messages
	maxMcpEvent   = 1 << 20          // bytes of one message
	maxMcpDepth   = 100              // arrays and objects in each other: the SDK's decoder takes the square of it and more
	maxMcpError   = 300              // bytes of an error that the log is told
)

// mcpServers knows the tools of MCP servers, and calls them. Its methods are safe for concurrent use.
type mcpServers struct {
	client *http.Client // guarded
	store  *store.Store
	log    *slog.Logger

	mu     sync.Mutex // guards listed
	listed map[string]listing
}

// listing is what a server said of its tools; none if it was away.
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
	server, err := url.Parse(c.server.URL)
	if err != nil {
		return nil, errors.New("the server's URL is none") // what is wrong with it repeats it
	}
	c.session, err = client.Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: anyServer, HTTPClient: bounded(egress.WithHeaders(c.servers.client, headers), server), MaxRetries: -1, DisableStandaloneSSE: true,
		MaxEventSize: maxMcpEvent,
	}, nil)
	return c.session, err
}

// anyServer is what the SDK takes for the URL of each server. A business's own may hold a key, which so stands in no error.
const anyServer = "http://mcp.invalid"

// bounded is a client for one server, whose answers end after maxMcpBody and where they are nested too deep: the SDK reads, and
// decodes, what is of any length and depth.
func bounded(client *http.Client, server *url.URL) *http.Client {
	out := *client
	out.Transport = roundTrip(func(req *http.Request) (*http.Response, error) {
		req = req.Clone(req.Context())
		req.URL, req.Host = server, server.Host
		resp, err := client.Transport.RoundTrip(req)
		if err == nil {
			resp.Body = &shallow{ReadCloser: http.MaxBytesReader(nil, resp.Body, maxMcpBody)}
		}
		return resp, err
	})
	return &out
}

// shallow reads JSON, a document or one a line, until it is nested too deep.
type shallow struct {
	io.ReadCloser
	depth           int
	quoted, escaped bool // within a string, and after a backslash in it
}

var errDeep = fmt.Errorf("the answer is nested more than %d deep", maxMcpDepth)

func (s *shallow) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	for _, b := range p[:n] {
		switch {
		case b == '\n': // ends a line of an event stream, and stands in no string
			s.quoted, s.escaped = false, false
		case s.escaped:
			s.escaped = false
		case b == '"':
			s.quoted = !s.quoted
		case s.quoted:
			s.escaped = b == '\\'
		case b == '[' || b == '{':
			if s.depth++; s.depth > maxMcpDepth {
				return 0, errDeep
			}
		case b == ']' || b == '}':
			s.depth = max(0, s.depth-1)
		}
	}
	return n, err
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// close says goodbye to the server, off the turn's path: it may take its time.
func (c *connection) close() {
	if session := c.session; session != nil {
		go func() { _ = session.Close() }()
	}
}

// bind lists the tools of an agent's servers, all at once, and says how each is called. A server that does not answer is left
// out: the agent does without it. Call done when the turn is over.
func (m *mcpServers) bind(ctx context.Context, a *store.Agent) (tools []boundTool, done func()) {
	connections, listed := make([]*connection, len(a.McpServers)), make([][]listedTool, len(a.McpServers))
	var all sync.WaitGroup
	for i := range a.McpServers {
		c := &connection{servers: m, agent: a, server: &a.McpServers[i]}
		connections[i] = c
		all.Go(func() { listed[i] = m.list(ctx, c) })
	}
	all.Wait()
	for i, c := range connections {
		for _, tool := range listed[i] {
			tools = append(tools, boundTool{tool.Tool, func(ctx context.Context, call Call) Result { return c.call(ctx, tool, call) }})
		}
	}
	return tools, func() {
		for _, c := range connections {
			c.close()
		}
	}
}

// list is what a server lists, kept for a while. A server that cannot be listed has no tools, for a shorter while.
func (m *mcpServers) list(ctx context.Context, c *connection) []listedTool {
	key := fmt.Sprint(c.agent.BusinessID, "/", c.agent.ID, "/", c.agent.Version, "/", c.server.Name)
	m.mu.Lock()
	known, ok := m.listed[key]
	m.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.tools
	}
	within, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	tools, left, err := m.ask(within, c)
	kept := listedFor
	switch {
	case ctx.Err() != nil: // the turn's end, and not the server's fault
		return nil
	case err != nil:
		m.log.Warn("list the tools of an MCP server", "agent", c.agent.ID, "server", c.server.Name, "error", reason(err))
		kept = awayFor
	case left > 0:
		m.log.Warn("tools of an MCP server cannot be offered", "agent", c.agent.ID, "server", c.server.Name, "tools", left)
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
	m.listed[key] = listing{tools, time.Now().Add(kept)}
	return tools
}

// reason is what the log is told of an error. What a server says of one is its own, and may repeat a key.
func reason(err error) string {
	var unsent *url.Error
	var answered *jsonrpc.Error
	switch {
	case errors.As(err, &unsent): // which the SDK takes for a JSON-RPC error, too
		err = unsent.Err
	case errors.As(err, &answered):
		return fmt.Sprintf("it answered with the error %d", answered.Code)
	}
	return cut(err.Error(), maxMcpError)
}

// ask has a server list its tools. Those that a model's server would refuse, and the whole request with them, are left out.
func (m *mcpServers) ask(ctx context.Context, c *connection) (tools []listedTool, left int, err error) {
	session, err := c.open(ctx)
	if err != nil {
		return nil, 0, err
	}
	seen, size := map[string]bool{}, 0
	for tool, err := range session.Tools(ctx, nil) {
		if err == nil {
			err = ctx.Err() // to check its schema takes time, too
		}
		if err != nil {
			return nil, 0, err
		}
		if len(tools) == maxListed || len(tools)+left == maxLookedAt || size > maxListSize {
			break
		}
		name := c.server.Name + "_" + tool.Name
		schema, err := json.Marshal(tool.InputSchema)
		size += len(schema)
		if err != nil || len(schema) > maxListedSize || !store.ToolName(name) || seen[name] || len(CheckSchema(schema)) > 0 {
			left++
			continue
		}
		seen[name] = true
		description := strings.ToValidUTF8(withoutNUL(tool.Description), "")
		tools = append(tools, listedTool{Tool{Name: name, Description: cut(description, 4096), Parameters: schema}, tool.Name})
	}
	return tools, left, nil
}

// unique are tools of which no two have one name, which models' servers refuse: the first one stays.
func unique(tools []boundTool) []boundTool {
	seen := map[string]bool{store.HandoffTool: true}
	return slices.DeleteFunc(tools, func(t boundTool) bool {
		taken := seen[t.Name]
		seen[t.Name] = true
		return taken
	})
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
