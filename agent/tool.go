package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"parley/store"
)

const (
	maxResult    = 16 << 10 // bytes of a tool's answer that a model is told
	maxViolation = 20       // of a schema, that a model is told at once
	maxArguments = 256 << 10
	maxChecks    = 200_000 // of a part of a call's arguments against a part of a schema
)

// refuseLoader loads nothing: the library's own would open file:// references, and a business's schema so read the server's
// files.
type refuseLoader struct{}

func (refuseLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("a schema may refer only to itself, and not to %s", url)
}

const schemaURL = "mem:///parameters"

// budget ends a validation that takes too many steps. Schemas can double at every level, in so many bytes as their depth: a
// business's schema, or a model's arguments, could so keep the server busy for ever. The library has no way to count its steps but
// a format, which it looks at first in each: as a vocabulary without a keyword, budget sees every schema and gives it one.
type budget struct{ left int }

var errTooMuch = errors.New("the check took too many steps")

func (b *budget) vocabulary() *jsonschema.Vocabulary {
	return &jsonschema.Vocabulary{
		URL: "urn:parley:budget",
		Compile: func(at *jsonschema.CompilerContext, _ map[string]any) (jsonschema.SchemaExt, error) {
			schema := at.Enqueue(nil) // the very one that is being compiled
			schema.Format = b.count(schema.Format)
			return nil, nil
		},
	}
}

func (b *budget) count(format *jsonschema.Format) *jsonschema.Format {
	name, own := "any", func(any) error { return nil }
	if format != nil {
		name, own = format.Name+" ", format.Validate // another name, for the library has its own way with "regex"
	}
	return &jsonschema.Format{Name: name, Validate: func(v any) error {
		if b.left--; b.left < 0 {
			panic(errTooMuch)
		}
		return own(v)
	}}
}

// validate is schema.Validate within its budget.
func validate(schema *jsonschema.Schema, value any) (err error) {
	defer func() {
		if p := recover(); p == errTooMuch { //nolint:errorlint // the very value
			err = errTooMuch
		} else if p != nil {
			panic(p)
		}
	}()
	return schema.Validate(value)
}

func compile(schema store.JSONObject) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.RegisterVocabulary((&budget{left: maxChecks}).vocabulary())
	c.AssertVocabs()
	c.UseLoader(refuseLoader{})
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	return c.Compile(schemaURL)
}

// CheckSchema finds what is wrong with a tool's parameters: they must be a JSON Schema of an object, without references to
// anything outside of it.
func CheckSchema(schema store.JSONObject) store.Faults {
	var shape struct {
		Type any `json:"type"`
	}
	if err := json.Unmarshal(schema, &shape); err != nil {
		return store.Faults{store.NotObject}
	}
	var f store.Faults
	if shape.Type != nil && shape.Type != "object" {
		f = append(f, store.ValueError("a tool's arguments are an object: type must be \"object\""))
	}
	_, err := compile(schema)
	var invalid *jsonschema.SchemaValidationError
	var violated *jsonschema.ValidationError
	switch {
	case err == nil:
	case errors.As(err, &invalid) && errors.As(invalid.Err, &violated):
		for _, sentence := range violations(violated) {
			f = append(f, store.ValueError("it is no JSON Schema: "+sentence))
		}
	default:
		f = append(f, store.ValueError("it is no JSON Schema: "+cut(err.Error(), 300)))
	}
	return f
}

var english = message.NewPrinter(language.English)

// violations are all that a value breaks of a schema, a sentence each with its place.
func violations(err *jsonschema.ValidationError) []string {
	if len(err.Causes) == 0 {
		return []string{"at /" + strings.Join(err.InstanceLocation, "/") + ": " + err.ErrorKind.LocalizedString(english)}
	}
	var out []string
	for _, cause := range err.Causes {
		if out = append(out, violations(cause)...); len(out) >= maxViolation {
			return out[:maxViolation]
		}
	}
	return out
}

// checkArguments says everything that is wrong with a call's arguments, for the model to mend; "" if nothing is.
func checkArguments(schema store.JSONObject, raw json.RawMessage) string {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = json.RawMessage("{}")
	}
	if len(raw) > maxArguments {
		return "The arguments are too long."
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return "The arguments are not JSON: " + err.Error()
	}
	if _, ok := value.(map[string]any); !ok {
		return "The arguments must be a JSON object."
	}
	compiled, err := compile(schema)
	if err != nil {
		return "" // it was checked when it was set: the tool's server decides
	}
	err = validate(compiled, value)
	var violated *jsonschema.ValidationError
	switch {
	case errors.Is(err, errTooMuch):
		return "The arguments are too much to be checked."
	case errors.As(err, &violated):
		return "The arguments do not fit the tool's parameters: " + strings.Join(violations(violated), "; ")
	}
	return ""
}

// toolbox runs an agent's tools.
type toolbox struct {
	client *http.Client // guarded
	store  *store.Store
}

// bind says how each of an agent's tools is called.
func (b *toolbox) bind(a *store.Agent) []boundTool {
	out := make([]boundTool, len(a.Tools))
	for i := range a.Tools {
		t := &a.Tools[i]
		out[i] = boundTool{
			Tool{Name: t.Name, Description: t.Description, Parameters: t.Parameters, Triggers: t.Triggers},
			func(ctx context.Context, call Call) Result { return b.call(ctx, a, t, call) },
		}
	}
	return out
}

// call has a tool's server do what a model wants. Its failures are results too: the model is told, in words that show nothing of
// our side.
func (b *toolbox) call(ctx context.Context, a *store.Agent, tool *store.Tool, call Call) Result {
	failed := func(sentence string) Result { return Result{CallID: call.ID, Content: sentence, Failed: true} }
	if wrong := checkArguments(tool.Parameters, call.Arguments); wrong != "" {
		return failed(wrong)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(tool.TimeoutSeconds)*time.Second)
	defer cancel()
	req, err := b.request(ctx, a, tool, call)
	if err != nil {
		return failed("The tool could not be called.")
	}
	resp, err := b.client.Do(req)
	switch {
	case errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
		return failed("The tool gave no answer in time.")
	case err != nil:
		return failed("The tool could not be reached.")
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxResult+1))
	text := clean(raw)
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return failed(fmt.Sprintf("The tool answered with status %d: %s", resp.StatusCode, cut(text, 1024)))
	case err != nil:
		return failed("The tool's answer broke off.")
	}
	return Result{CallID: call.ID, Content: text}
}

// clean makes text of an answer, cut to what a model is told.
func clean(raw []byte) string {
	text := strings.ToValidUTF8(strings.ReplaceAll(string(raw), "\x00", ""), string(utf8.RuneError))
	if len(text) > maxResult {
		return cut(text, maxResult) + "\n[cut off here]"
	}
	return text
}

func (b *toolbox) request(ctx context.Context, a *store.Agent, tool *store.Tool, call Call) (*http.Request, error) {
	arguments := call.Arguments
	if len(bytes.TrimSpace(arguments)) == 0 {
		arguments = json.RawMessage("{}")
	}
	address, body := tool.URL, io.Reader(bytes.NewReader(arguments))
	if tool.Method == http.MethodGet {
		u, err := url.Parse(tool.URL)
		if err != nil {
			return nil, err
		}
		query := u.Query()
		var values map[string]json.RawMessage
		if err := json.Unmarshal(arguments, &values); err != nil {
			return nil, err
		}
		for name, value := range values {
			text := string(value)
			if json.Unmarshal(value, &text) != nil {
				text = string(value) // a number, a list: as JSON has it
			}
			query.Set(name, text)
		}
		u.RawQuery = query.Encode()
		address, body = u.String(), nil
	}
	req, err := http.NewRequestWithContext(ctx, tool.Method, address, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "Parley")
	req.Header.Set("Accept", "application/json, text/*")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	headers, err := b.store.ToolHeaders(a, tool)
	if err != nil {
		return nil, err
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	return req, nil
}
