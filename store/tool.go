package store

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
)

// Tool is an HTTP endpoint of a business that its agent's model may call.
type Tool struct {
	Name             string     `json:"name"`
	Description      string     `json:"description"`
	Parameters       JSONObject `json:"parameters"` // JSON Schema of its arguments
	URL              string     `json:"url"`
	Method           string     `json:"method"`
	HeaderNames      []string   `json:"header_names"`
	SealedHeaders    []byte     `json:"sealed_headers,omitempty"` // a JSON object, encrypted: headers hold secrets
	TimeoutSeconds   int        `json:"timeout_seconds"`
	RequiresApproval bool       `json:"requires_approval"`
	Triggers         []string   `json:"triggers"` // words at which the embedded model calls it
}

// ToolInput sets a tool. Absent Headers are kept as long as name and address stay the same.
type ToolInput struct {
	Name             string
	Description      string
	Parameters       JSONObject
	URL              string
	Method           *string
	Headers          *JSONObject
	TimeoutSeconds   *int
	RequiresApproval *bool
	Triggers         []string
}

// McpServer is a server of the Model Context Protocol (streamable HTTP) whose tools an agent's model may call.
type McpServer struct {
	Name           string   `json:"name"` // its tools are offered as `name_tool`
	URL            string   `json:"url"`
	HeaderNames    []string `json:"header_names"`
	SealedHeaders  []byte   `json:"sealed_headers,omitempty"`
	TimeoutSeconds int      `json:"timeout_seconds"` // of one call
}

// McpServerInput sets an MCP server. Absent Headers are kept as long as name and address stay the same.
type McpServerInput struct {
	Name           string
	URL            string
	Headers        *JSONObject
	TimeoutSeconds *int
}

// Bounds of tools.
const (
	maxTools       = 64
	maxTriggers    = 100
	maxParameters  = 64 << 10 // bytes of a tool's schema
	maxToolTimeout = 120      // seconds
	maxHeaders     = 32
	maxMcpServers  = 8
)

var (
	toolName    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	headerName  = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}$") // a token of RFC 9110
	toolMethods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	// ownHeaders are not for a business to set: the client's framing rests on them.
	ownHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Trailer", "Expect"}
)

// ToolName says whether a tool may be called so.
func ToolName(name string) bool { return toolName.MatchString(name) }

// validateTools finds every fault of an agent's tools.
func validateTools(tools []ToolInput, cfg Config) Faults {
	var f Faults
	if len(tools) > maxTools {
		f = append(f, tooLong(len(tools), maxTools).Under("tools")...)
	}
	seen := map[string]bool{}
	for i, t := range first(tools, maxTools) {
		own := t.validate(cfg)
		switch {
		case t.Name == HandoffTool:
			own = append(own, valueError("this name is that of Parley's own tool: see handoff").Under("name")...)
		case seen[t.Name]:
			own = append(own, valueError("there is a tool of this name already").Under("name")...)
		}
		seen[t.Name] = true
		f = append(f, own.Under("tools", i)...)
	}
	return f
}

func (in *ToolInput) validate(cfg Config) Faults {
	var f Faults
	if !toolName.MatchString(in.Name) {
		f = append(f, valueError("must be 1 to 64 letters, digits, _ or -").Under("name")...)
	}
	f = append(f, text(in.Description, 1, 4096).Under("description")...)
	if len(in.Parameters) > maxParameters {
		f = append(f, valueError("a schema may have 64 KiB").Under("parameters")...)
	} else {
		f = append(f, cfg.CheckSchema(in.Parameters).Under("parameters")...)
	}
	f = append(f, callable(in.URL, in.Headers, in.TimeoutSeconds, cfg)...)
	if in.Method != nil && !slices.Contains(toolMethods, *in.Method) {
		f = append(f, Faults{NotOneOf(toolMethods)}.Under("method")...)
	}
	if in.RequiresApproval != nil && *in.RequiresApproval {
		f = append(f, valueError("approvals come with a later version of Parley").Under("requiresApproval")...)
	}
	if len(in.Triggers) > maxTriggers {
		f = append(f, tooLong(len(in.Triggers), maxTriggers).Under("triggers")...)
	}
	for i, word := range first(in.Triggers, maxTriggers) {
		f = append(f, text(word, 1, maxName).Under("triggers", i)...)
	}
	return f
}

// callable finds the faults of what can be called: an address, its headers, and how long it may take.
func callable(url string, headers *JSONObject, timeout *int, cfg Config) Faults {
	f := cfg.CheckModelURL(url).Under("url")
	if headers != nil {
		f = append(f, headerFaults(*headers).Under("headers")...)
	}
	if timeout != nil && (*timeout < 1 || *timeout > maxToolTimeout) {
		f = append(f, valueError(fmt.Sprintf("must be between 1 and %d", maxToolTimeout)).Under("timeoutSeconds")...)
	}
	return f
}

var serverName = regexp.MustCompile(`^[A-Za-z0-9-]{1,20}$`)

// validateServers finds every fault of an agent's MCP servers.
func validateServers(servers []McpServerInput, cfg Config) Faults {
	var f Faults
	if len(servers) > maxMcpServers {
		f = append(f, tooLong(len(servers), maxMcpServers).Under("mcpServers")...)
	}
	seen := map[string]bool{}
	for i, s := range first(servers, maxMcpServers) {
		own := callable(s.URL, s.Headers, s.TimeoutSeconds, cfg)
		switch {
		case !serverName.MatchString(s.Name):
			own = append(own, valueError("must be 1 to 20 letters, digits or -").Under("name")...)
		case seen[s.Name]:
			own = append(own, valueError("there is a server of this name already").Under("name")...)
		}
		seen[s.Name] = true
		f = append(f, own.Under("mcpServers", i)...)
	}
	return f
}

func headerFaults(raw JSONObject) Faults {
	var f Faults
	headers, err := raw.headers()
	if err != nil {
		return valueError("must be an object of strings")
	}
	if len(headers) > maxHeaders {
		f = append(f, tooLong(len(headers), maxHeaders)...)
	}
	for _, name := range first(slices.Sorted(maps.Keys(headers)), maxHeaders) {
		switch value := headers[name]; {
		case !headerName.MatchString(name):
			f = append(f, valueError("is no name of a header").Under(name)...)
		case slices.Contains(ownHeaders, textproto.CanonicalMIMEHeaderKey(name)):
			f = append(f, valueError("is set by Parley").Under(name)...)
		case strings.ContainsAny(value, "\r\n\x00") || len(value) > 8192:
			f = append(f, valueError("is no value of a header").Under(name)...)
		}
	}
	return f
}

func (o JSONObject) headers() (map[string]string, error) {
	var headers map[string]string
	err := json.Unmarshal(o, &headers)
	return headers, err
}

// applyTools makes the tools of an input, with the headers that are kept of the ones before.
func (s *Store) applyTools(agent *Agent, in []ToolInput) error {
	tools := make([]Tool, len(in))
	for i, t := range in {
		tool := Tool{
			Name: t.Name, Description: t.Description, Parameters: t.Parameters, URL: t.URL, Method: http.MethodPost, HeaderNames: []string{},
			TimeoutSeconds: 10, Triggers: t.Triggers,
		}
		set(&tool.Method, t.Method)
		set(&tool.TimeoutSeconds, t.TimeoutSeconds)
		set(&tool.RequiresApproval, t.RequiresApproval)
		if tool.Triggers == nil {
			tool.Triggers = []string{}
		}
		switch kept := slices.IndexFunc(agent.Tools, func(k Tool) bool { return k.Name == t.Name && k.URL == t.URL }); {
		case t.Headers != nil:
			var err error
			if tool.HeaderNames, tool.SealedHeaders, err = s.sealHeaders(*t.Headers, placeOfTool(agent, t.Name)); err != nil {
				return err
			}
		case kept >= 0:
			tool.HeaderNames, tool.SealedHeaders = agent.Tools[kept].HeaderNames, agent.Tools[kept].SealedHeaders
		}
		tools[i] = tool
	}
	agent.Tools = tools
	return nil
}

// applyServers makes the MCP servers of an input, with the headers that are kept of the ones before.
func (s *Store) applyServers(agent *Agent, in []McpServerInput) error {
	servers := make([]McpServer, len(in))
	for i, m := range in {
		server := McpServer{Name: m.Name, URL: m.URL, HeaderNames: []string{}, TimeoutSeconds: 10}
		set(&server.TimeoutSeconds, m.TimeoutSeconds)
		switch kept := slices.IndexFunc(agent.McpServers, func(k McpServer) bool { return k.Name == m.Name && k.URL == m.URL }); {
		case m.Headers != nil:
			var err error
			if server.HeaderNames, server.SealedHeaders, err = s.sealHeaders(*m.Headers, placeOfMcp(agent, m.Name)); err != nil {
				return err
			}
		case kept >= 0:
			server.HeaderNames, server.SealedHeaders = agent.McpServers[kept].HeaderNames, agent.McpServers[kept].SealedHeaders
		}
		servers[i] = server
	}
	agent.McpServers = servers
	return nil
}

// placeOfTool and placeOfMcp are what sealed headers are bound to.
func placeOfTool(agent *Agent, name string) string { return agent.ID + "/" + name }
func placeOfMcp(agent *Agent, name string) string  { return agent.ID + "/mcp/" + name }

func (s *Store) sealHeaders(raw JSONObject, of string) (names []string, sealed []byte, err error) {
	headers, err := raw.headers()
	if err != nil {
		return nil, nil, err
	}
	return slices.Sorted(maps.Keys(headers)), s.sealer.Seal(raw, of), nil
}

// ToolHeaders opens the headers of an agent's tool.
func (s *Store) ToolHeaders(agent *Agent, tool *Tool) (map[string]string, error) {
	return s.openHeaders(tool.SealedHeaders, placeOfTool(agent, tool.Name))
}

// McpHeaders opens the headers of an agent's MCP server.
func (s *Store) McpHeaders(agent *Agent, server *McpServer) (map[string]string, error) {
	return s.openHeaders(server.SealedHeaders, placeOfMcp(agent, server.Name))
}

func (s *Store) openHeaders(sealed []byte, of string) (map[string]string, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	plain, err := s.sealer.Open(sealed, of)
	if err != nil {
		return nil, fmt.Errorf("open the headers of %s: %w", of, err)
	}
	return JSONObject(plain).headers()
}
