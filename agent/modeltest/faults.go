package modeltest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"parley/agent"
)

// classes says which of agent's errors an error is.
func classes(err error) (failed, refused, timeout bool) {
	return errors.Is(err, agent.ErrModelFailed), errors.Is(err, agent.ErrModelRefused), errors.Is(err, agent.ErrModelTimeout)
}

func deadline(t *testing.T, after time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), after)
}

// testFailures: each is told apart, promptly, after one request.
func (d Dialect) testFailures(t *testing.T) {
	type outcome struct{ failed, refused, timeout bool }
	failed, refused, timeout := outcome{failed: true}, outcome{failed: true, refused: true}, outcome{timeout: true}
	events, whole := d.Stream(hello), d.Whole(hello)
	stream, part := join(events), join(events[:3])
	silent, declined := hello, hello
	silent.Stop, declined.Stop = Silent, Declined
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   outcome
	}{
		"400":                {status(400, `{"error":{"message":"no","type":"invalid_request_error","param":"temperature","code":"x"}}`), refused},
		"401":                {status(401, `{"error":{"message":"bad key"}}`), refused},
		"401 without JSON":   {status(401, "no"), refused},
		"404 without a body": {status(404, ""), refused},
		"422":                {status(422, "{}"), refused},
		"408":                {status(408, "{}"), failed},
		"409":                {status(409, "{}"), failed},
		"425":                {status(425, "{}"), failed},
		"429":                {status(429, `{"error":{"message":"slow down"}}`), failed},
		"500":                {status(500, "oops"), failed},
		"503":                {status(503, stream), failed},
		"529":                {status(529, d.Error), failed},
		"204":                {status(204, ""), failed},
		"a redirect":         {status(307, stream), failed},
		"a whole 302":        {status(302, whole), failed},
		"another protocol":   {switches, failed},

		"nothing":                     {Says(""), failed},
		"white space":                 {Says(strings.Repeat(" \n", 100)), failed},
		"null":                        {Says("null"), failed},
		"no protocol at all":          {Says("<html>"), failed},
		"an empty document":           {Says("{}"), failed},
		"another document":            {Says(`[1,2]`), failed},
		"half a document":             {Says(whole[:len(whole)/2]), failed},
		"a document that tells why":   {Says(`{"error":{"message":"overloaded"},"type":"error"}`), failed},
		"a document without a stop":   {Says(d.Whole(silent)), failed},
		"a document that is declined": {Says(d.Whole(declined)), refused},
		"an enormous number":          {Says(`{"created":` + strings.Repeat("9", 1<<20) + `e,"choices":[],"content":[]}`), failed},
		"a very deep document":        {Says(`{"choices":` + strings.Repeat(`[`, 1<<20)), failed},

		"half a stream":               {Says(stream[:len(stream)/2]), failed},
		"a stream without a stop":     {d.says(silent), failed},
		"a stream that is declined":   {d.says(declined), refused},
		"a stream without a text":     {d.says(Answer{}), failed},
		"a stream of white space":     {d.says(Answer{Deltas: []string{" ", "\n"}}), failed},
		"an event that is no JSON":    {Says(part + "event: content_block_delta\ndata: {\"choices\":[{\n\n" + stream), failed},
		"an event of another kind":    {Says(part + "event: content_block_delta\ndata: [1,2]\n\n"), failed},
		"an error event":              {Says(part + d.Error), failed},
		"an error event and the rest": {Says(part + d.Error + stream), failed},

		"reset at once":        {reset(""), failed},
		"reset in mid-stream":  {reset(part), failed},
		"reset in a document":  {reset(whole[:40]), failed},
		"closed in mid-stream": {cut(part), failed},
		"closed in a document": {cut(whole[:40]), failed},
		"an endless document":  {endless(`{"choices":[`, strings.Repeat(" ", 4096)), failed},
		"endless white space":  {endless("", strings.Repeat(" ", 4096)), failed},
		"an endless line":      {endless("data: ", strings.Repeat("x", 4096)), failed},
		"endless comments":     {endless(part, ": still here\n\n"), failed},
		"an endless text":      {endless(join(events[:1]), strings.Repeat(events[2], 100)), failed},
		"an endless 400": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			endless("", strings.Repeat("x", 4096))(w, r)
		}, refused},
		"a hang":                      {hang(""), timeout},
		"a hang in a document":        {hang(whole[:40]), timeout},
		"a hang in mid-stream":        {hang(part), timeout},
		"a byte now and then":         {drip, timeout},
		"a server that is not there":  {nil, failed},
		"an error event of its kind":  {Says("event: error\ndata: {\"error\":{\"message\":\"x\"}}\n\n"), failed},
		"an error event with the key": {Says("event: error\ndata: {\"error\":{\"message\":\"" + operatorKey + "\"}}\n\n"), failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := c.answer
			if answer == nil {
				answer = Says(stream)
			}
			server := NewServer(t, answer)
			after := limit
			if c.want.timeout {
				after = 100 * time.Millisecond
			}
			if c.answer == nil {
				server.Close()
			}
			ctx, cancel := deadline(t, after)
			defer cancel()
			reply, err := d.operated(t, server.URL).Generate(ctx, Ask("Hi"))
			var got outcome
			got.failed, got.refused, got.timeout = classes(err)
			if got != c.want {
				t.Fatalf("got %+v (%v), want %+v", got, err, c.want)
			}
			if diff := cmp.Diff(agent.Reply{}, reply); diff != "" {
				t.Errorf("a reply all the same: %s", diff)
			}
			if len(err.Error()) > 5000 || strings.Contains(unfolded(err), operatorKey) {
				t.Errorf("an error of %d bytes, or one with the key: %.200s", len(err.Error()), err)
			}
			if strings.Contains(unfolded(err), server.URL) {
				t.Errorf("an error with the address: %v", err)
			}
			if n := len(server.Seen()); n != 1 && c.answer != nil && (!c.want.timeout || n != 0) { // on a busy machine its time may be over before
				t.Errorf("%d requests were sent, want 1", n)
			}
		})
	}
}

func (d Dialect) testRetryAfter(t *testing.T) {
	date := func(from time.Time, after time.Duration) string { return from.Add(after).UTC().Format(http.TimeFormat) }
	now := time.Now()
	for value, want := range map[string][2]time.Duration{ // at least, and at most
		"7": {7 * time.Second, 7 * time.Second}, "0.5": {time.Second / 2, time.Second / 2}, "1e300": {24 * time.Hour, 24 * time.Hour},
		date(now, time.Hour): {30 * time.Minute, time.Hour}, date(now, 1000*time.Hour): {24 * time.Hour, 24 * time.Hour},
		date(now, -time.Hour): {}, "": {}, "0": {}, "-3": {}, "soon": {}, "NaN": {},
	} {
		for _, code := range []int{429, 503} {
			_, _, err := d.ask(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", value)
				status(code, "")(w, r)
			}, Ask("Hi"))
			var told agent.RetryAfter
			if found := errors.As(err, &told); found != (want[1] > 0) || time.Duration(told) < want[0] || time.Duration(told) > want[1] {
				t.Errorf("%d, %q: told %v, want %v; %v", code, value, time.Duration(told), want, err)
			}
			if failed, refused, timeout := classes(err); !failed || refused || timeout {
				t.Errorf("%d, %q: %v", code, value, err)
			}
		}
	}
}
