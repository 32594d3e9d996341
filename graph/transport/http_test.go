package transport_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/99designs/gqlgen/graphql"

	"parley/graph/transport"
)

const (
	mediaGraphQL = "application/graphql-response+json"
	mediaJSON    = "application/json"
)

func TestHTTPAnswersAsTheDraftSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{
		MaxBody: 1000,
		StatusFor: func(resp *graphql.Response) int {
			if resp.Errors[0].Extensions["code"] == "UNAUTHENTICATED" {
				return http.StatusUnauthorized
			}
			return 0
		},
	})
	get := func(query string) string { return "?query=" + url.QueryEscape(query) }
	post := func(query string) string {
		b, _ := json.Marshal(map[string]string{"query": query})
		return string(b)
	}
	const bad = `"extensions":{"code":"BAD_USER_INPUT","validation":[{"loc":["`
	wrong := func(loc, msg, kind, sentence string) string {
		return bad + loc + `],"msg":"` + msg + `","type":"` + kind + `","ctx":{"error":"` + sentence + `"}}]}`
	}
	for name, c := range map[string]struct {
		method, url, body string
		header            http.Header
		status            int
		media             string // application/json if empty
		contains          string
		allow             string
	}{
		"query":                       {body: post(`{name}`), status: 200, contains: `{"data":{"name":"test"}}`},
		"query by GET":                {method: "GET", url: get(`{name}`), status: 200, contains: `{"data":{"name":"test"}}`},
		"mutation":                    {body: post(`mutation{name}`), status: 200, contains: `{"data":{"name":"test"}}`},
		"large numbers stay exact":    {body: `{"query":"query($n:ID){number(of:$n)}","variables":{"n":9007199254740993}}`, status: 200, contains: `9007199254740993`},
		"variables by GET":            {method: "GET", url: get(`query($n:ID){number(of:$n)}`) + `&variables=%7B%22n%22:7%7D&operationName=`, status: 200, contains: `"7"`},
		"headers reach the resolver":  {body: post(`{header}`), header: http.Header{"X-Test": {"hi"}}, status: 200, contains: `{"header":"hi"}`},
		"the URL of a POST is unread": {url: get(`{nothing}`), body: post(`{name}`), status: 200, contains: `{"name":"test"}`},
		"unknown members are ignored": {body: `{"query":"{name}","id":7}`, status: 200, contains: `{"name":"test"}`},
		"charset utf-8":               {body: post(`{name}`), header: http.Header{"Content-Type": {"application/json; charset=UTF-8"}}, status: 200},

		"field error":               {body: post(`{fail}`), status: 200, contains: `"data":{"fail":null}`},
		"field error, modern":       {body: post(`{fail}`), header: accept(mediaGraphQL), status: 200, media: mediaGraphQL, contains: `"a field failed"`},
		"null data is data":         {body: post(`{nothing}`), header: accept(mediaGraphQL), status: 200, media: mediaGraphQL, contains: `"data":null`},
		"invalid document":          {body: post(`{absent}`), status: 200},
		"invalid document, modern":  {body: post(`{absent}`), header: accept(mediaGraphQL), status: 400, media: mediaGraphQL},
		"refused by code":           {body: post(`{refused}`), status: 401, contains: `UNAUTHENTICATED`},
		"panic":                     {body: post(`{panics}`), status: 500, contains: `"recovered"`},
		"persisted query unknown":   {body: `{"extensions":{"persistedQuery":{"version":1}}}`, status: 200, contains: "no operation provided"},
		"defer":                     {body: post(`{...@defer{name}}`), status: 400, contains: bad},
		"defer in a fragment":       {body: post(`{...F @defer} fragment F on Query{name}`), status: 400, contains: bad},
		"subscription":              {body: post(`subscription{feed}`), status: 400, contains: "over WebSocket"},
		"subscription by GET":       {method: "GET", url: get(`subscription{feed}`), status: 400, contains: bad},
		"mutation by GET":           {method: "GET", url: get(`mutation{name}`), status: 405, allow: "POST", contains: bad},
		"other method":              {method: "PUT", body: post(`{name}`), status: 405, allow: "GET, POST", contains: wrong(`method"`, "Value error, use GET or POST", "value_error", "use GET or POST")},
		"HEAD":                      {method: "HEAD", status: 405, allow: "GET, POST"},
		"h2c upgrade is plain HTTP": {body: post(`{name}`), header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"h2c"}}, status: 200},
		"not acceptable":            {body: post(`{name}`), header: accept("text/html"), status: 406, contains: bad + `header","Accept"]`},
		"forbidden by q=0":          {body: post(`{name}`), header: accept("application/json;q=0, application/graphql-response+json;q=0"), status: 406},
		"both media types":          {body: post(`{name}`), header: accept("application/json, application/graphql-response+json"), status: 200, media: mediaGraphQL},
		"legacy preferred":          {body: post(`{name}`), header: accept("application/json, application/graphql-response+json;q=0.9"), status: 200},
		"modern or anything":        {body: post(`{name}`), header: accept("application/graphql-response+json, */*"), status: 200, media: mediaGraphQL},
		"all but legacy":            {body: post(`{name}`), header: accept("*/*, application/json;q=0"), status: 200, media: mediaGraphQL},
		"a browser":                 {method: "GET", url: get(`{name}`), header: accept("text/html,application/xml;q=0.9,*/*;q=0.8"), status: 200},
		"form":                      {body: "query=%7Bname%7D", header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, status: 415, contains: bad},
		"plain text":                {body: post(`{name}`), header: http.Header{"Content-Type": {"text/plain"}}, status: 415},
		"no content type":           {body: post(`{name}`), header: http.Header{"Content-Type": {""}}, status: 415},
		"charset latin-1":           {body: post(`{name}`), header: http.Header{"Content-Type": {"application/json;charset=iso-8859-1"}}, status: 415},
		"compressed":                {body: post(`{name}`), header: http.Header{"Content-Encoding": {"gzip"}}, status: 415},
		"too large":                 {body: post(`{name}` + strings.Repeat(" ", 1000)), status: 413, contains: bad},
		"no body":                   {status: 400, contains: wrong(`body"`, "Field required", "missing", "the request has no body")},
		"broken JSON":               {body: `{"SECRET`, status: 400, contains: wrong(`body"`, "JSON decode error", "json_invalid", "the JSON is broken")},
		"trailing JSON":             {body: post(`{name}`) + `{"SECRET":1}`, status: 400, contains: bad},
		"not UTF-8":                 {body: "{\"query\":\"{name}\",\"SECRET\":\"\xff\"}", status: 400, contains: bad},
		"batch":                     {body: `[` + post(`{name}`) + `]`, status: 400, contains: "batches"},
		"a JSON string":             {body: `"SECRET"`, status: 400, contains: wrong(`body"`, "Input should be a valid dictionary", "dict_type", "a JSON object is expected")},
		"a member twice":            {body: `{"query":"{name}","query":"{SECRET}"}`, status: 400, contains: bad},
		"query in another case":     {body: `{"Query":"{SECRET}"}`, status: 400, contains: "query is missing"},
		"query null":                {body: `{"query":null}`, status: 400, contains: wrong(`query"`, "Field required", "missing", "query is missing")},
		"query a number":            {body: `{"query":1}`, status: 400, contains: wrong(`query"`, "Input should be a valid string", "string_type", "query must be a string")},
		"operationName an object":   {body: `{"query":"{name}","operationName":{"SECRET":1}}`, status: 400, contains: "operationName must be a string"},
		"variables a list":          {body: `{"query":"{name}","variables":["SECRET"]}`, status: 400, contains: wrong(`variables"`, "Input should be a valid dictionary", "dict_type", "variables must be an object")},
		"extensions a string":       {body: `{"query":"{name}","extensions":"SECRET"}`, status: 400, contains: "extensions must be an object"},
		"four wrong at once": {
			body: `{"variables":1,"operationName":{},"extensions":[]}`, status: 400,
			contains: `"message":"query is missing; operationName must be a string; variables must be an object; extensions must be an object"`,
		},
		"GET without query":               {method: "GET", status: 400, contains: "query is missing"},
		"GET with two queries":            {method: "GET", url: get(`{name}`) + "&query=SECRET", status: 400, contains: bad},
		"GET with broken variables":       {method: "GET", url: get(`{name}`) + "&variables=SECRET", status: 400, contains: wrong(`variables"`, "JSON decode error", "json_invalid", "variables must be JSON")},
		"GET with variables not a map":    {method: "GET", url: get(`{name}`) + "&variables=%5B%22SECRET%22%5D", status: 400, contains: bad},
		"GET with a broken URL":           {method: "GET", url: "?query=%zzSECRET", status: 400, contains: bad},
		"GET with bytes that are no text": {method: "GET", url: "?query=%ff", status: 400, contains: bad},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			method := c.method
			if method == "" {
				method = http.MethodPost
			}
			req, err := http.NewRequest(method, w.URL+c.url, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", mediaJSON)
			for k, v := range c.header {
				req.Header[k] = v
			}
			resp, err := w.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			media := c.media
			if media == "" {
				media = mediaJSON
			}
			text := string(body)
			switch {
			case resp.StatusCode != c.status:
				t.Errorf("status %d, wanted %d: %s", resp.StatusCode, c.status, text)
			case !strings.Contains(text, c.contains):
				t.Errorf("%s\nlacks %s", text, c.contains)
			case resp.Header.Get("Content-Type") != media+"; charset=utf-8":
				t.Errorf("Content-Type %q", resp.Header.Get("Content-Type"))
			case resp.Header.Get("Allow") != c.allow:
				t.Errorf("Allow %q", resp.Header.Get("Allow"))
			case resp.Header.Get("X-Content-Type-Options") != "nosniff", resp.Header.Get("Cache-Control") != "no-store":
				t.Errorf("headers %v", resp.Header)
			case strings.Contains(text, "SECRET"):
				t.Errorf("the input is echoed: %s", text)
			}
			if method == http.MethodHead {
				return
			}
			var form struct {
				Data   *json.RawMessage
				Errors []struct {
					Message    string
					Extensions struct {
						Code       string
						Validation []struct {
							Loc       []any
							Msg, Type string
						}
					}
				}
			}
			if err := json.Unmarshal(body, &form); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			for _, e := range form.Errors {
				faults := e.Extensions.Validation
				if e.Extensions.Code == "BAD_USER_INPUT" && (len(faults) == 0 || len(faults[0].Loc) == 0 || faults[0].Msg == "" || faults[0].Type == "") {
					t.Errorf("bad input, and no word on what is wrong: %s", text)
				}
			}
			if c.status >= 400 && (len(form.Errors) == 0 || form.Errors[0].Message == "" || strings.Contains(text, `"data"`)) {
				t.Errorf("not the form of a request error: %s", text)
			}
		})
	}
}

func accept(value string) http.Header { return http.Header{"Accept": {value}} }

func TestHTTPLeavesHandshakesToOthers(t *testing.T) {
	t.Parallel()
	handshake, _ := http.NewRequest(http.MethodGet, "/graphql", nil)
	handshake.Header.Set("Connection", "keep-alive, Upgrade")
	handshake.Header.Set("Upgrade", "websocket")
	options, _ := http.NewRequest(http.MethodOptions, "/graphql", nil)
	if h := (transport.HTTP{}); h.Supports(handshake) || !h.Supports(options) {
		t.Error("HTTP takes the wrong requests")
	}
	if live := (&transport.WebSocket{}); !live.Supports(handshake) || live.Supports(options) {
		t.Error("WebSocket takes the wrong requests")
	}
}

func TestLongAnswersAreCompressedForWhoTakesThat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &transport.WebSocket{}, transport.HTTP{Events: &transport.SSE{}})
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()
	long := `{"query":"query($n: ID){number(of:$n)}","variables":{"n":"` + strings.Repeat("x", 5000) + `"}}`
	for _, c := range []struct {
		body, accepted, accept string
		compressed             bool
	}{
		{long, "gzip, deflate, br", "*/*", true},
		{long, "br;q=1, gzip;q=0.1", "*/*", true},
		{long, "gzip;q=0, identity", "*/*", false},
		{long, "", "*/*", false},
		{long, "gzip", "text/event-stream", false},
		{`{"query":"{name}"}`, "gzip", "*/*", false},
	} {
		r, _ := http.NewRequest(http.MethodPost, w.URL, strings.NewReader(c.body))
		r.Header = http.Header{"Content-Type": {"application/json"}, "Accept-Encoding": {c.accepted}, "Accept": {c.accept}}
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || (res.Header.Get("Content-Encoding") == "gzip") != c.compressed {
			t.Errorf("%+v: %v, %v", c, res.Header, err)
		}
		if !c.compressed {
			continue
		}
		if !strings.Contains(strings.Join(res.Header.Values("Vary"), ","), "Accept-Encoding") {
			t.Errorf("a cache would mix up who takes what: %v", res.Header)
		}
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if plain, err := io.ReadAll(z); err != nil || !strings.HasSuffix(string(plain), `xxx"}}`) {
			t.Errorf("%.100s, %v", plain, err)
		}
	}
}
