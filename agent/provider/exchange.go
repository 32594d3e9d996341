package provider

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	maxAnswer  = 4 << 20 // bytes: some 1,000,000 tokens of text, or 20,000 events, beyond what any model writes at once
	maxExcerpt = 512     // bytes of an error answer that are kept
	maxWait    = 24 * time.Hour
	userAgent  = "Parley"
)

// Exchange stands between the SDK and the HTTP client: it sends what the server needs to know and no more, takes only a 200
// for an answer, and bounds it. It is an SDK's option.Middleware.
func (c *Call) Exchange(req *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	if c.Client == nil {
		return nil, errors.New("there is no HTTP client for this address") // never Go's default one: it is not guarded
	}
	for name := range req.Header {
		if strings.HasPrefix(name, "X-Stainless-") { // system, architecture and versions of this machine
			req.Header.Del(name)
		}
	}
	req.Header.Set("User-Agent", userAgent)
	resp, err := next(req)
	var failed *url.Error
	if errors.As(err, &failed) {
		// Without the address: what a business has put into it may be a secret.
		return resp, fmt.Errorf("%w: %w", errUnreachable, failed.Err)
	}
	if err != nil {
		return resp, err
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()
		return nil, &statusError{code: resp.StatusCode, wait: retryAfter(resp.Header), excerpt: excerpt(resp.Body, c.Key, req.URL.RawQuery)}
	}
	resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	if err := c.sort(resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// sort tells a document from a stream by how it begins, for not every server says it, and some say it wrongly. A document is
// put aside, and the SDK is left a stream in which nothing comes.
func (c *Call) sort(resp *http.Response) error {
	body := bufio.NewReader(resp.Body)
	for {
		first, err := body.Peek(1)
		switch {
		case err == io.EOF: //nolint:errorlint // as it is returned
		case err != nil:
			return err
		case strings.IndexByte(" \t\r\n", first[0]) >= 0:
			_, _ = body.Discard(1)
			continue
		case first[0] == '{':
			if c.Whole, err = io.ReadAll(body); err != nil {
				return err
			}
		}
		resp.Header.Set("Content-Type", "text/event-stream") // the SDKs choose a decoder by it, and programs may register others
		resp.Body = struct {
			io.Reader
			io.Closer
		}{body, resp.Body}
		return nil
	}
}

// excerpt is the beginning of an error answer; nothing of one that repeats a secret, whole or cut off at the excerpt's end.
func excerpt(body io.Reader, secrets ...string) string {
	longest := 0
	for _, secret := range secrets {
		longest = max(longest, len(secret))
	}
	raw, _ := io.ReadAll(io.LimitReader(body, int64(maxExcerpt+longest)))
	for _, secret := range secrets {
		if secret != "" && strings.Contains(string(raw), secret) {
			return "(left out: it repeats the key)"
		}
	}
	return strings.ToValidUTF8(string(raw[:min(len(raw), maxExcerpt)]), "\uFFFD")
}

// retryAfter is how long the server asks to be left alone (RFC 9110, section 10.2.3); 0 if it does not say.
func retryAfter(header http.Header) time.Duration {
	value := header.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(value, 64); err == nil && !math.IsNaN(seconds) {
		return time.Duration(min(max(seconds, 0), maxWait.Seconds()) * float64(time.Second))
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(time.Until(at), 0), maxWait)
	}
	return 0
}

// errUnreachable is why there was no answer at all.
var errUnreachable = errors.New("no answer")

// statusError is an answer other than 200.
type statusError struct {
	code    int
	wait    time.Duration
	excerpt string
}

func (e *statusError) Error() string { return e.brief() + ": " + e.excerpt }

// brief is the error without what the server said.
func (e *statusError) brief() string {
	return fmt.Sprintf("status %d %s", e.code, http.StatusText(e.code))
}

// refused says whether the same request would be refused again: a 4xx, but for those that speak of the moment.
func (e *statusError) refused() bool {
	switch e.code {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return e.code >= 400 && e.code < 500
}
