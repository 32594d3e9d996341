package modeltest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"parley/agent/provider"
	"parley/egress"
)

func (d Dialect) testKeys(t *testing.T) {
	for _, c := range []struct {
		what         string
		own          bool // the business set an address of its own
		business     string
		operator     string
		want         string
		wantOperator bool // asked the operator's server
	}{
		{"neither has a key", false, "", "", "", true},
		{"the operator's key, at its own address", false, "", operatorKey, operatorKey, true},
		{"the business's key, at the operator's address", false, businessKey, operatorKey, businessKey, true},
		{"the business's key, at its own address", true, businessKey, operatorKey, businessKey, false},
		{"the operator's key never goes to a business's address", true, "", operatorKey, "", false},
	} {
		operators, businesses := NewServer(t, d.says(hello)), NewServer(t, d.says(hello))
		guarded, free := 0, 0
		count := func(n *int) *http.Client {
			inner := Client(t)
			return &http.Client{CheckRedirect: inner.CheckRedirect, Transport: RoundTrip(func(r *http.Request) (*http.Response, error) {
				*n++
				return inner.Transport.RoundTrip(r)
			})}
		}
		model := d.New(provider.Config{Client: count(&guarded), OperatorClient: count(&free), BaseURL: operators.URL, APIKey: c.operator})
		req := Ask("Hi")
		req.APIKey = c.business
		if c.own {
			req.Agent.Model.BaseURL = &businesses.URL
		}
		if _, err := model.Generate(t.Context(), req); err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		at, not := operators, businesses
		if !c.wantOperator {
			at, not = businesses, operators
		}
		if len(at.Seen()) != 1 || len(not.Seen()) != 0 || (free == 1) != c.wantOperator || (guarded == 1) == c.wantOperator {
			t.Errorf("%s: the wrong server or client was used: %d guarded, %d free", c.what, guarded, free)
			continue
		}
		header := at.Seen()[0].Header
		if got := d.Key(header); got != c.want {
			t.Errorf("%s: got %q, want %q", c.what, got, c.want)
		}
		if all := fmt.Sprint(header); c.want != operatorKey && strings.Contains(all, operatorKey) {
			t.Errorf("%s: the operator's key stands in %s", c.what, all)
		}
	}
}

func (d Dialect) testGuard(t *testing.T) {
	server := NewServer(t, d.says(hello))
	guard, err := egress.NewGuard(egress.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	req := Ask("Hi")
	req.Agent.Model.BaseURL = &server.URL
	_, err = d.New(provider.Config{Client: egress.NewClient(guard, 1), OperatorClient: Client(t)}).Generate(t.Context(), req)
	if failed, _, _ := classes(err); !errors.Is(err, egress.ErrBlocked) || !failed || len(server.Seen()) != 0 {
		t.Errorf("got %v", err)
	}
	_, err = d.New(provider.Config{OperatorClient: Client(t)}).Generate(t.Context(), req)
	if failed, _, _ := classes(err); !failed || len(server.Seen()) != 0 {
		t.Errorf("without a guarded client: got %v", err)
	}
}

func (d Dialect) testErrorsHoldNoKey(t *testing.T) {
	for _, body := range []string{
		"Incorrect API key provided: %s.", `{"error":{"message":"%s"}}`, strings.Repeat("x", 500) + "%s", strings.Repeat("%[1]s", 40), strings.Repeat("x", 511) + "%s",
		"event: error\ndata: {\"error\":{\"message\":\"%s\"}}\n\n", "event: message_start\ndata: {\"%s\n\n", "event: error\ndata: " + strings.Repeat("x", 4080) + "%s\n\n",
	} {
		for _, code := range []int{200, 401, 500} {
			server := NewServer(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(code)
				_, _ = fmt.Fprintf(w, body, businessKey)
			})
			req := Ask("Hi")
			req.APIKey = businessKey
			_, err := d.operated(t, server.URL).Generate(t.Context(), req)
			if err == nil || strings.Contains(unfolded(err), businessKey[:12]) {
				t.Errorf("%d, %.40q: %s", code, body, unfolded(err))
			}
		}
	}
	// In a path, where the business itself put it.
	req, address := Ask("Hi"), "http://127.0.0.1:1/"+businessKey
	req.APIKey, req.Agent.Model.BaseURL = businessKey, &address
	if _, err := d.operated(t, "http://127.0.0.1:1").Generate(t.Context(), req); err == nil || strings.Contains(unfolded(err), businessKey) {
		t.Errorf("%s", unfolded(err))
	}
}

// unfolded is an error in every form that a log may choose, with all that it wraps.
func unfolded(err error) string {
	if err == nil {
		return "<nil>"
	}
	out := fmt.Sprintf("%v %+v %q ", err, err, err)
	switch e := err.(type) { //nolint:errorlint // it goes through the wrapped ones itself
	case interface{ Unwrap() error }:
		out += unfolded(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			out += unfolded(inner)
		}
	}
	return out
}

// testEnvironment is not parallel: it sets the environment, to all that the SDKs would read.
func (d Dialect) testEnvironment(t *testing.T) {
	ambient, business := NewServer(t, d.says(hello)), NewServer(t, d.says(hello))
	for name, value := range map[string]string{
		"OPENAI_API_KEY": "sk-ambient", "OPENAI_ADMIN_KEY": "sk-ambient-admin", "OPENAI_ORG_ID": "org-ambient", "OPENAI_PROJECT_ID": "proj-ambient",
		"OPENAI_BASE_URL": ambient.URL, "OPENAI_CUSTOM_HEADERS": "X-Ambient: ambient", "HTTP_PROXY": ambient.URL, "http_proxy": ambient.URL,
		"ANTHROPIC_API_KEY": "sk-ambient", "ANTHROPIC_AUTH_TOKEN": "ambient", "ANTHROPIC_BASE_URL": ambient.URL, "ANTHROPIC_CUSTOM_HEADERS": "X-Ambient: ambient",
		"ANTHROPIC_PROFILE": "ambient", "ANTHROPIC_CONFIG_DIR": t.TempDir(), "ANTHROPIC_IDENTITY_TOKEN": "ambient", "ANTHROPIC_ORGANIZATION_ID": "ambient",
		"ANTHROPIC_FEDERATION_RULE_ID": "ambient", "ANTHROPIC_WORKSPACE_ID": "ambient", "ANTHROPIC_OPEN_TELEMETRY": "true",
	} {
		t.Setenv(name, value)
	}
	for _, key := range []string{"", businessKey} {
		req := Ask("Hi")
		req.APIKey, req.Agent.Model.BaseURL = key, &business.URL
		if _, err := d.operated(t, ambient.URL).Generate(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(ambient.Seen()); n != 0 {
		t.Errorf("the address in the environment got %d requests", n)
	}
	seen := business.Seen()
	if len(seen) != 2 || d.Key(seen[0].Header) != "" || d.Key(seen[1].Header) != businessKey {
		t.Fatalf("the business's address was asked %v", seen)
	}
	usual := append([]string{"Accept", "Content-Type", "Content-Length", "User-Agent"}, d.Headers...)
	for _, request := range seen {
		for name, values := range request.Header {
			if !slices.Contains(usual, name) && strings.Join(values, "") != businessKey {
				t.Errorf("a header that no one asked for: %s", name)
			}
			if all := name + strings.Join(values, " "); strings.Contains(strings.ToLower(all), "ambient") || strings.Contains(all, operatorKey) {
				t.Errorf("the header %s reached the business: %q", name, values)
			}
		}
	}
}
