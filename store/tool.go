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

// Bounds of tools.
const (
	maxTools       = 64
	maxParameters  = 64 << 10 // bytes of a tool's schema
	maxToolTimeout = 120      // seconds
	maxHeaders     = 32
)

// HandoffTool is the name of the tool that every agent has: it hands the conversation to a person.
const HandoffTool = "handoff_to_human"

var (
	toolName    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	headerName  = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}$") // a token of RFC 9110
	toolMethods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	// ownHeaders are not for a business to set: the client's framing rests on them.
	ownHeaders = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Trailer", "Expect"}
)

// validateTools finds every fault of an agent's tools.
func validateTools(tools []ToolInput, cfg Config) Faults {
	var f Faults
	if len(tools) > maxTools {
		f = append(f, tooLong(len(tools), maxTools).Under("tools")...)
	}
	seen := map[string]bool{}
	for i, t := range tools {
		own := t.validate(cfg)
		switch {
		case t.Name == HandoffTool:
			own = append(own, valueError("this name is that of a tool which every agent has").Under("name")...)
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
	f = append(f, cfg.CheckModelURL(in.URL).Under("url")...)
	if in.Method != nil && !slices.Contains(toolMethods, *in.Method) {
		f = append(f, Faults{NotOneOf(toolMethods)}.Under("method")...)
	}
	if in.Headers != nil {
		f = append(f, headerFaults(*in.Headers).Under("headers")...)
	}
	if n := in.TimeoutSeconds; n != nil && (*n < 1 || *n > maxToolTimeout) {
		f = append(f, valueError(fmt.Sprintf("must be between 1 and %d", maxToolTimeout)).Under("timeoutSeconds")...)
	}
	if in.RequiresApproval != nil && *in.RequiresApproval {
		f = append(f, valueError("approvals come with a later version of Parley").Under("requiresApproval")...)
	}
	for i, word := range in.Triggers {
		f = append(f, text(word, 1, maxName).Under("triggers", i)...)
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
	for _, name := range slices.Sorted(maps.Keys(headers)) {
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
			headers, err := t.Headers.headers()
			if err != nil {
				return err
			}
			tool.HeaderNames = slices.Sorted(maps.Keys(headers))
			tool.SealedHeaders = s.sealer.Seal(*t.Headers, agent.ID+"/"+t.Name)
		case kept >= 0:
			tool.HeaderNames, tool.SealedHeaders = agent.Tools[kept].HeaderNames, agent.Tools[kept].SealedHeaders
		}
		tools[i] = tool
	}
	agent.Tools = tools
	return nil
}

// ToolHeaders opens the headers of an agent's tool.
func (s *Store) ToolHeaders(agent *Agent, tool *Tool) (map[string]string, error) {
	if len(tool.SealedHeaders) == 0 {
		return nil, nil
	}
	plain, err := s.sealer.Open(tool.SealedHeaders, agent.ID+"/"+tool.Name)
	if err != nil {
		return nil, fmt.Errorf("open the headers of tool %s of agent %s: %w", tool.Name, agent.ID, err)
	}
	return JSONObject(plain).headers()
}
