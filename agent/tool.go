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

	"parley/store"
)

const maxResult = 16 << 10 // bytes of a tool's answer that a model is told

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
