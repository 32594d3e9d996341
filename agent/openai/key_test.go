package openai_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"parley/agent"
	"parley/agent/openai"
	"parley/egress"
)

func TestWhoseKeyGoesWhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what         string
		own          bool // the business set an address of its own
		business     string
		operator     string
		authorized   string
		wantOperator bool // asked the operator's server
	}{
		{"neither has a key", false, "", "", "", true},
		{"the operator's key, at its own address", false, "", operatorKey, "Bearer " + operatorKey, true},
		{"the business's key, at the operator's address", false, businessKey, operatorKey, "Bearer " + businessKey, true},
		{"the business's key, at its own address", true, businessKey, operatorKey, "Bearer " + businessKey, false},
		{"the operator's key never goes to a business's address", true, "", operatorKey, "", false},
	} {
		operators, businesses := newRecorder(t, said(whole)), newRecorder(t, said(whole))
		guarded, free := 0, 0
		count := func(n *int) *http.Client {
			inner := client(t)
			return &http.Client{CheckRedirect: inner.CheckRedirect, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				*n++
				return inner.Transport.RoundTrip(r)
			})}
		}
		model := openai.New(openai.Config{Client: count(&guarded), OperatorClient: count(&free), BaseURL: operators.URL, APIKey: c.operator})
		req := ask("Hi")
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
		if len(at.seen()) != 1 || len(not.seen()) != 0 || (free == 1) != c.wantOperator || (guarded == 1) == c.wantOperator {
			t.Errorf("%s: the wrong server or client was used: %d guarded, %d free", c.what, guarded, free)
			continue
		}
		if got := at.seen()[0].header.Get("Authorization"); got != c.authorized {
			t.Errorf("%s: got %q, want %q", c.what, got, c.authorized)
		}
	}
}

func TestABusinesssAddressGoesThroughTheGuard(t *testing.T) {
	t.Parallel()
	server := newRecorder(t, said(whole))
	guard, err := egress.NewGuard(egress.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	req := ask("Hi")
	req.Agent.Model.BaseURL = &server.URL
	_, err = openai.New(openai.Config{Client: egress.NewClient(guard, 1), OperatorClient: client(t)}).Generate(t.Context(), req)
	if !errors.Is(err, egress.ErrBlocked) || !errors.Is(err, agent.ErrModelFailed) || len(server.seen()) != 0 {
		t.Errorf("got %v", err)
	}
	_, err = openai.New(openai.Config{OperatorClient: client(t)}).Generate(t.Context(), req)
	if !errors.Is(err, agent.ErrModelFailed) || len(server.seen()) != 0 {
		t.Errorf("without a guarded client: got %v", err)
	}
}

func TestAnErrorNeverHoldsTheKey(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		"Incorrect API key provided: %s.", `{"error":{"message":"%s"}}`, strings.Repeat("x", 500) + "%s", strings.Repeat("%[1]s", 40), strings.Repeat("x", 511) + "%s",
	} {
		for _, code := range []int{200, 401, 500} {
			server := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(code)
				_, _ = fmt.Fprintf(w, body, businessKey)
			})
			req := ask("Hi")
			req.APIKey = businessKey
			_, err := operated(t, server.URL).Generate(t.Context(), req)
			if err == nil || strings.Contains(unfolded(err), businessKey[:12]) {
				t.Errorf("%d, %.40q: %s", code, body, unfolded(err))
			}
		}
	}
	// In a path, where the business itself put it.
	req := ask("Hi")
	req.APIKey, req.Agent.Model.BaseURL = businessKey, ptr("http://127.0.0.1:1/"+businessKey)
	if _, err := operated(t, "").Generate(t.Context(), req); err == nil || strings.Contains(unfolded(err), businessKey) {
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

// TestTheEnvironmentStaysHere is not parallel: it sets the environment.
func TestTheEnvironmentStaysHere(t *testing.T) {
	ambient := newRecorder(t, said(whole))
	business := newRecorder(t, said(whole))
	for name, value := range map[string]string{
		"OPENAI_API_KEY": "sk-ambient", "OPENAI_ADMIN_KEY": "sk-ambient-admin", "OPENAI_ORG_ID": "org-ambient", "OPENAI_PROJECT_ID": "proj-ambient",
		"OPENAI_BASE_URL": ambient.URL, "OPENAI_CUSTOM_HEADERS": "X-Ambient: ambient", "HTTP_PROXY": ambient.URL, "http_proxy": ambient.URL,
	} {
		t.Setenv(name, value)
	}
	req := ask("Hi")
	req.Agent.Model.BaseURL = &business.URL
	if _, err := operated(t, ambient.URL).Generate(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if n := len(ambient.seen()); n != 0 {
		t.Errorf("the address in the environment got %d requests", n)
	}
	seen := business.seen()
	if len(seen) != 1 {
		t.Fatalf("the business's address got %d requests", len(seen))
	}
	for name, values := range seen[0].header {
		switch name {
		case "Accept", "Content-Type", "Content-Length", "User-Agent":
		default:
			t.Errorf("a header that no one asked for: %s", name)
		}
		if all := name + strings.Join(values, " "); strings.Contains(strings.ToLower(all), "ambient") || strings.Contains(all, operatorKey) {
			t.Errorf("the header %s reached the business: %q", name, values)
		}
	}
}
