package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/99designs/gqlgen/graphql"
)

// object is one JSON object with its members still raw. Unlike a struct it tells a missing member from a null one, does
// not match names in another case, and is refused when a name stands twice in it: two readers of such a request, a proxy
// and this server, could each see another query.
type object map[string]json.RawMessage

// malformed is a request that is not well-formed. Its sentences are fixed: they echo nothing of the input.
type malformed []fault

func (m malformed) Error() string {
	sentences := make([]string, len(m))
	for i, f := range m {
		sentences[i], _ = f.Ctx["error"].(string)
	}
	return strings.Join(sentences, "; ")
}

// wrong makes the error of one fault, whose sentence is also the error's.
func wrong(kind, msg, sentence string, loc ...any) malformed {
	return malformed{{loc, msg, kind, map[string]any{"error": sentence}}}
}

func notJSON(sentence string, loc ...any) malformed {
	return wrong("json_invalid", "JSON decode error", sentence, loc...)
}

var (
	errNotUTF8   = notJSON("the JSON is not valid UTF-8", "body")
	errNotJSON   = notJSON("the JSON is broken", "body")
	errNotObject = wrong("dict_type", "Input should be a valid dictionary", "a JSON object is expected", "body")
	errTwice     = malformed{valueError("a name stands twice in the JSON object", "body")}
	errBatch     = malformed{valueError("batches are not supported: send one operation a request", "body")}
)

// decodeObject reads the one JSON object that data is. Its errors are fixed sentences: they echo nothing of the input.
func decodeObject(data []byte) (object, error) {
	if !utf8.Valid(data) {
		return nil, errNotUTF8
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	switch start, err := dec.Token(); {
	case err != nil:
		return nil, errNotJSON
	case start == json.Delim('['):
		return nil, errBatch
	case start != json.Delim('{'):
		return nil, errNotObject
	}
	members := object{}
	for dec.More() {
		name, err := dec.Token()
		key, ok := name.(string)
		if err != nil || !ok {
			return nil, errNotJSON
		}
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return nil, errNotJSON
		}
		if _, twice := members[key]; twice {
			return nil, errTwice
		}
		members[key] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, errNotJSON
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errNotJSON
	}
	return members, nil
}

// has says whether the member is there and not null: for optional parameters null means absent.
func (o object) has(name string) bool {
	value, ok := o[name]
	return ok && string(value) != "null"
}

func (o object) text(name string) (string, error) {
	if !o.has(name) {
		return "", nil
	}
	var s string
	if json.Unmarshal(o[name], &s) != nil {
		return "", wrong("string_type", "Input should be a valid string", name+" must be a string", name)
	}
	return s, nil
}

// mapping decodes a member that is an object. Numbers stay as they were written: float64 would round a large Int or ID.
func (o object) mapping(name string) (map[string]any, error) {
	if !o.has(name) {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(o[name]))
	dec.UseNumber()
	var m map[string]any
	if dec.Decode(&m) != nil {
		return nil, wrong("dict_type", "Input should be a valid dictionary", name+" must be an object", name)
	}
	return m, nil
}

// params reads the request parameters, section "Request Parameters" of GraphQL over HTTP, the same four that a
// graphql-transport-ws subscribe message carries. Unknown members are ignored: they are reserved.
func (o object) params() (*graphql.RawParams, error) {
	p := &graphql.RawParams{}
	var errs [5]error
	p.Query, errs[0] = o.text("query")
	p.OperationName, errs[2] = o.text("operationName")
	p.Variables, errs[3] = o.mapping("variables")
	p.Extensions, errs[4] = o.mapping("extensions")
	// A persisted query names its document by its hash alone.
	if _, persisted := p.Extensions["persistedQuery"]; !o.has("query") && !persisted {
		errs[1] = wrong("missing", "Field required", "query is missing", "query")
	}
	var all malformed
	for _, err := range errs {
		var m malformed
		if errors.As(err, &m) {
			all = append(all, m...)
		}
	}
	if len(all) > 0 {
		return nil, all
	}
	return p, nil
}

// decodeURL makes of a GET request's URL the object that the same request would have as its JSON body: the strings are
// themselves, variables and extensions are JSON. An empty parameter is an absent one; a parameter twice is refused, as in
// JSON.
func decodeURL(rawQuery string) (object, error) {
	values, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, malformed{valueError("the query component of the URL is broken", "url")}
	}
	members := object{}
	for _, name := range []string{"query", "operationName", "variables", "extensions"} {
		value := values.Get(name)
		switch {
		case len(values[name]) > 1:
			return nil, malformed{valueError(name+" stands twice in the URL", name)}
		case !utf8.ValidString(value):
			return nil, malformed{valueError(name+" is not valid UTF-8", name)}
		case value == "":
		case name == "query" || name == "operationName":
			members[name], _ = json.Marshal(value) // a string always marshals
		case !json.Valid([]byte(value)):
			return nil, notJSON(name+" must be JSON", name)
		default:
			members[name] = json.RawMessage(bytes.TrimSpace([]byte(value)))
		}
	}
	return members, nil
}
