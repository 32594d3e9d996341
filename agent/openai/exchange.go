package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3/option"

	"parley/agent"
)

const (
	maxAnswer  = 4 << 20 // bytes: some 1,000,000 tokens, beyond what any model writes at once
	maxExcerpt = 512     // bytes of an error answer that the log is told
	maxText    = 4096    // bytes of an error: JSON's errors repeat what they cannot use, at any length
	userAgent  = "Parley"
)

// exchange stands between the SDK and the HTTP client: it sends what the server needs to know and no more, takes only a 200
// for an answer, and bounds it.
func exchange(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	for name := range req.Header {
		if strings.HasPrefix(name, "X-Stainless-") { // system, architecture and versions of this machine
			req.Header.Del(name)
		}
	}
	req.Header.Set("User-Agent", userAgent)
	resp, err := next(req)
	if err != nil {
		return resp, err
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()
		return nil, &statusError{code: resp.StatusCode, excerpt: excerpt(resp.Body, key(req))}
	}
	resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	resp.Header.Set("Content-Type", "application/json") // the SDK insists on it, and some servers forget it
	return resp, nil
}

func key(req *http.Request) string {
	return strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
}

// excerpt is the beginning of an error answer; nothing of one that repeats the key, whole or cut off at the excerpt's end.
func excerpt(body io.Reader, key string) string {
	raw, _ := io.ReadAll(io.LimitReader(body, int64(maxExcerpt+len(key))))
	if key != "" && strings.Contains(string(raw), key) {
		return "(left out: it repeats the key)"
	}
	return strings.ToValidUTF8(string(raw[:min(len(raw), maxExcerpt)]), "\uFFFD")
}

// statusError is an answer other than 200.
type statusError struct {
	code    int
	excerpt string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("status %d %s: %s", e.code, http.StatusText(e.code), e.excerpt)
}

// refused says whether the same request would be refused again: a 4xx, but for those that speak of the moment.
func (e *statusError) refused() bool {
	switch e.code {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return e.code >= 400 && e.code < 500
}

// failure is why there is no reply: agent's words for it, and the cause.
type failure struct {
	kinds []error
	cause error
	text  string
}

func (f *failure) Error() string   { return f.text }
func (f *failure) Unwrap() []error { return append(f.kinds[:len(f.kinds):len(f.kinds)], f.cause) }

// failed says which of agent's errors a cause is.
func failed(ctx context.Context, cause error, key string) error {
	kinds := []error{agent.ErrModelFailed}
	var status *statusError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(cause, context.DeadlineExceeded):
		kinds = []error{agent.ErrModelTimeout}
	case errors.As(cause, &status) && status.refused():
		kinds = []error{agent.ErrModelFailed, agent.ErrModelRefused}
	}
	text := kinds[len(kinds)-1].Error() + ": " + cause.Error()
	if key != "" && strings.Contains(text, key) {
		text = strings.ReplaceAll(text, key, "[key]")
		cause = errors.New("a cause that holds the key")
	}
	return &failure{kinds: kinds, cause: cause, text: text[:min(len(text), maxText)]}
}
