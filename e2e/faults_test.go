package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRESTFaults sends faulty bodies: a 422 names every fault of them, in Pydantic's words.
func TestRESTFaults(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_ALLOW_PRIVATE_WEBHOOKS=false")
	const chat, hooks = "/agents/demo/chat", "/v1/webhooks"
	channels := "'voice', 'sms', 'whatsapp', 'instagram', 'gmail', 'outlook' or 'linkedin'"
	for name, c := range map[string]struct {
		path, body string
		want       []string // loc, type and message of each fault
	}{
		"empty":        {chat, ``, []string{"body missing: Field required"}},
		"not JSON":     {chat, `{"message":`, []string{"body.11 json_invalid: JSON decode error"}},
		"not UTF-8":    {chat, "{\"message\":\"\xff\"}", []string{"body.0 json_invalid: JSON decode error"}},
		"no object":    {chat, `[1]`, []string{"body model_attributes_type: Input should be a valid dictionary or object to extract fields from"}},
		"null":         {chat, `null`, []string{"body model_attributes_type: Input should be a valid dictionary or object to extract fields from"}},
		"empty object": {chat, `{}`, []string{"body.message missing: Field required", "body.channel missing: Field required"}},
		"wrong types": {chat, `{"message":1,"channel":"fax","session_id":2,"metadata":[]}`, []string{
			"body.message string_type: Input should be a valid string", "body.channel enum: Input should be " + channels,
			"body.session_id string_type: Input should be a valid string", "body.metadata dict_type: Input should be a valid dictionary",
		}},
		"white space, and a type beside": {chat, `{"message":" \n ","channel":null}`, []string{
			"body.message string_too_short: String should have at least 1 character", "body.channel enum: Input should be " + channels,
		}},
		"too long": {chat, `{"message":"` + strings.Repeat("ä", 32_001) + `","channel":"sms"}`, []string{
			"body.message string_too_long: String should have at most 32000 characters",
		}},
		"NUL": {chat, `{"message":"a\u0000","channel":"sms"}`, []string{"body.message value_error: Value error, U+0000 is not allowed"}},
		"NUL in an unknown field": {chat, `{"message":"a","channel":"sms","x":"\u0000"}`, []string{
			"body value_error: Value error, U+0000 is not allowed",
		}},
		"NUL in an unknown field, and faults beside": {chat, `{"x":{"\u0000":1},"session_id":"\u0000","message":5}`, []string{
			"body.message string_type: Input should be a valid string", "body.channel missing: Field required",
			"body.session_id value_error: Value error, U+0000 is not allowed", "body value_error: Value error, U+0000 is not allowed",
		}},
		"NUL in an unknown name": {chat, `{"message":"a","channel":"sms","\u0000":1}`, []string{"body value_error: Value error, U+0000 is not allowed"}},
		"NUL in a hidden double": {chat, `{"message":"\u0000","message":"a","channel":"sms"}`, []string{"body value_error: Value error, U+0000 is not allowed"}},
		"an escaped backslash":   {chat, `{"message":"\\u0000","channel":"fax"}`, []string{"body.channel enum: Input should be " + channels}},
		"NUL in a field of faults": {chat, `{"message":"\u0000","channel":"\u0000","metadata":["\u0000"]}`, []string{
			"body.message value_error: Value error, U+0000 is not allowed", "body.channel enum: Input should be " + channels,
			"body.metadata dict_type: Input should be a valid dictionary",
		}},
		"much metadata": {chat, `{"message":"a","channel":"sms","metadata":{"x":"` + strings.Repeat("x", 17<<10) + `"}}`, []string{
			"body.metadata value_error: Value error, metadata may be 16 KiB at most",
		}},
		"hook: empty object": {hooks, `{}`, []string{"body.url missing: Field required", "body.events missing: Field required"}},
		"hook: no events":    {hooks, `{"url":"https://example.com","events":[]}`, []string{"body.events too_short: List should have at least 1 item after validation, not 0"}},
		"hook: wrong types":  {hooks, `{"url":7,"events":"all"}`, []string{"body.url string_type: Input should be a valid string", "body.events list_type: Input should be a valid list"}},
		"hook: wrong events and scheme": {hooks, `{"url":"http://example.com","events":["run.failed","run.started",3]}`, []string{
			"body.url url_scheme: URL scheme should be 'https'",
			"body.events.1 enum: Input should be 'message.created', 'conversation.holder_changed', 'inbox.item_created', 'run.finished', 'run.failed', 'call.ended', 'channel.status_changed' or 'approval.requested'",
			"body.events.2 enum: Input should be 'message.created', 'conversation.holder_changed', 'inbox.item_created', 'run.finished', 'run.failed', 'call.ended', 'channel.status_changed' or 'approval.requested'",
		}},
	} {
		status, _, answer := s.call("POST", c.path, http.Header{
			"X-Api-Key": {apiKey}, "Authorization": {"Bearer " + token}, "Content-Type": {"application/json; charset=utf-8"},
		}, c.body)
		got := wordsOf(at(answer, "detail"))
		if status != http.StatusUnprocessableEntity || !slices.Equal(got, c.want) {
			t.Errorf("%s: %d %q, want 422 %q", name, status, got, c.want)
		}
	}
	for _, url := range []string{
		"https://127.0.0.1", "https://localhost", "https://10.0.0.1/x", "https://[::1]", "https://2130706433", "https://user:pass@example.com",
		"https://example.com/#x", "ftp://example.com", "example.com", "", "https://" + strings.Repeat("x", 2048) + ".com", "https://metadata.internal",
	} {
		status, _, answer := s.call("POST", hooks, withToken(token), encode(object{"url": url, "events": []string{"run.failed"}}))
		if status != http.StatusUnprocessableEntity || at(answer, "detail", 0, "loc", 1) != "url" {
			t.Errorf("%.60s: %d %v", url, status, answer)
		}
	}
	if _, _, list := s.call("GET", hooks, withToken(token), ""); len(list.([]any)) != 0 {
		t.Errorf("refused webhooks were stored: %v", list)
	}
}

// TestRESTFaultsInFull has whole faults: each repeats what was given, and says in ctx what would have been right.
func TestRESTFaultsInFull(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_ALLOW_PRIVATE_WEBHOOKS=false")
	const chat, hooks = "/agents/demo/chat", "/v1/webhooks"
	channels := "'voice', 'sms', 'whatsapp', 'instagram', 'gmail', 'outlook' or 'linkedin'"
	events := "'message.created', 'conversation.holder_changed', 'inbox.item_created', 'run.finished', 'run.failed', 'call.ended', 'channel.status_changed' or 'approval.requested'"
	model := "Input should be a valid dictionary or object to extract fields from"
	long := strings.Repeat("x", 1022) // with its quotes 1 KiB
	for name, c := range map[string]struct {
		path, body string
		want       []object
	}{
		"all of a chat": {chat, `{"message": 5, "channel": "fax", "session_id": 7, "metadata": []}`, []object{
			{"type": "string_type", "loc": []any{"body", "message"}, "msg": "Input should be a valid string", "input": 5.0},
			{"type": "enum", "loc": []any{"body", "channel"}, "msg": "Input should be " + channels, "input": "fax", "ctx": object{"expected": channels}},
			{"type": "string_type", "loc": []any{"body", "session_id"}, "msg": "Input should be a valid string", "input": 7.0},
			{"type": "dict_type", "loc": []any{"body", "metadata"}, "msg": "Input should be a valid dictionary", "input": []any{}},
		}},
		"missing": {chat, `{"message":" \n "}`, []object{
			{"type": "string_too_short", "loc": []any{"body", "message"}, "msg": "String should have at least 1 character", "input": " \n ", "ctx": object{"min_length": 1.0}},
			{"type": "missing", "loc": []any{"body", "channel"}, "msg": "Field required", "input": object{"message": " \n "}},
		}},
		"null": {chat, `{"message":null,"channel":null,"session_id":null,"metadata":null}`, []object{
			{"type": "string_type", "loc": []any{"body", "message"}, "msg": "Input should be a valid string", "input": nil},
			{"type": "enum", "loc": []any{"body", "channel"}, "msg": "Input should be " + channels, "input": nil, "ctx": object{"expected": channels}},
		}},
		"no body":   {chat, ``, []object{{"type": "missing", "loc": []any{"body"}, "msg": "Field required", "input": nil}}},
		"no object": {chat, `["a"]`, []object{{"type": "model_attributes_type", "loc": []any{"body"}, "msg": model, "input": []any{"a"}}}},
		"no JSON": {chat, `{"message":`, []object{
			{"type": "json_invalid", "loc": []any{"body", 11.0}, "msg": "JSON decode error", "input": object{}, "ctx": object{"error": "unexpected end of JSON input"}},
		}},
		"NUL in an unknown field": {chat, `{"message":"a","channel":"sms","x":"\u0000"}`, []object{
			{
				"type": "value_error", "loc": []any{"body"}, "msg": "Value error, U+0000 is not allowed", "ctx": object{"error": "U+0000 is not allowed"},
				"input": object{"message": "a", "channel": "sms", "x": "\x00"},
			},
		}},
		"NUL in what a tool is to answer": {"/agents/demo/test", `{"message":"a","channel":"sms","tools":{"a":{"b":"\u0000"},"c":"d"}}`, []object{
			{
				"type": "value_error", "loc": []any{"body", "tools"}, "msg": "Value error, U+0000 is not allowed", "ctx": object{"error": "U+0000 is not allowed"},
				"input": object{"a": object{"b": "\x00"}, "c": "d"},
			},
		}},
		"1 KiB": {chat, `{"message":"a","channel":"` + long + `"}`, []object{
			{"type": "enum", "loc": []any{"body", "channel"}, "msg": "Input should be " + channels, "input": long, "ctx": object{"expected": channels}},
		}},
		"more than 1 KiB": {chat, `{"message":" ","channel":"x` + long + `"}`, []object{
			{"type": "string_too_short", "loc": []any{"body", "message"}, "msg": "String should have at least 1 character", "input": " ", "ctx": object{"min_length": 1.0}},
			{"type": "enum", "loc": []any{"body", "channel"}, "msg": "Input should be " + channels, "ctx": object{"expected": channels}},
		}},
		"more than 1 KiB around": {chat, `{"message":"x` + long + `"}`, []object{{"type": "missing", "loc": []any{"body", "channel"}, "msg": "Field required"}}},
		"too long": {chat, `{"message":"` + strings.Repeat("x", 32_001) + `","channel":"sms"}`, []object{
			{"type": "string_too_long", "loc": []any{"body", "message"}, "msg": "String should have at most 32000 characters", "ctx": object{"max_length": 32000.0}},
		}},
		"hook": {hooks, `{"url":"ftp://example.com","events":["run.failed",null]}`, []object{
			{"type": "url_scheme", "loc": []any{"body", "url"}, "msg": "URL scheme should be 'https'", "input": "ftp://example.com", "ctx": object{"expected_schemes": "'https'"}},
			{"type": "enum", "loc": []any{"body", "events", 1.0}, "msg": "Input should be " + events, "input": nil, "ctx": object{"expected": events}},
		}},
		"hook: no URL": {hooks, `{"url":"","events":[]}`, []object{
			{"type": "url_parsing", "loc": []any{"body", "url"}, "msg": "Input should be a valid URL, input is empty", "input": "", "ctx": object{"error": "input is empty"}},
			{
				"type": "too_short", "loc": []any{"body", "events"}, "msg": "List should have at least 1 item after validation, not 0", "input": []any{},
				"ctx": object{"field_type": "List", "min_length": 1.0, "actual_length": 0.0},
			},
		}},
		"hook: a password": {hooks, `{"url":"https:\/\/me:secret@example.com"}`, []object{
			{"type": "value_error", "loc": []any{"body", "url"}, "msg": "Value error, the URL may not hold a user name or password", "ctx": object{"error": "the URL may not hold a user name or password"}},
			{"type": "missing", "loc": []any{"body", "events"}, "msg": "Field required"},
		}},
	} {
		status, _, answer := s.call("POST", c.path, http.Header{
			"X-Api-Key": {apiKey}, "Authorization": {"Bearer " + token}, "Content-Type": {"application/json"},
		}, c.body)
		want := make([]any, len(c.want))
		for i, f := range c.want {
			want[i] = f
		}
		if diff := cmp.Diff(any(object{"detail": want}), answer); status != http.StatusUnprocessableEntity || diff != "" {
			t.Errorf("%s: %d, -want +got:\n%s", name, status, diff)
		}
	}
	_, _, answer := s.call("POST", hooks, withToken(token), `{"url":"ftp://x.com","events":[`+strings.Repeat("0,", 50_000)+`0]}`)
	if n := len(at(answer, "detail").([]any)); n != 101 || at(answer, "detail", 0, "type") != "url_scheme" || at(answer, "detail", 100, "loc", 0) != "body" {
		t.Errorf("50,001 faulty events and a URL: %d faults", n)
	}
}

// wordsOf is each fault of a list as "loc type: msg".
func wordsOf(faults any) (words []string) {
	list, _ := faults.([]any)
	for _, f := range list {
		var loc []string
		for _, l := range at(f, "loc").([]any) {
			loc = append(loc, fmt.Sprint(l))
		}
		words = append(words, fmt.Sprintf("%s %v: %v", strings.Join(loc, "."), at(f, "type"), at(f, "msg")))
	}
	return words
}

// TestGraphQLFaults sends faulty input by variables and in documents: one error names every fault of it, in REST's words, at
// the argument that it is of.
func TestGraphQLFaults(t *testing.T) {
	t.Parallel()
	s := start(t, "PARLEY_ALLOW_PRIVATE_WEBHOOKS=false")
	const (
		chat     = `mutation($in: ChatInput!) { chat(input: $in) { reply } }`
		hook     = `mutation($in: CreateWebhookEndpointInput!) { createWebhookEndpoint(input: $in) { secret } }`
		agent    = `mutation($in: AgentInput!) { createAgent(input: $in) { id } }`
		missing  = " missing: Field required"
		text     = " string_type: Input should be a valid string"
		list     = " list_type: Input should be a valid list"
		dict     = " dict_type: Input should be a valid dictionary"
		whole    = " int_type: Input should be a valid integer"
		extra    = " extra_forbidden: Extra inputs are not permitted"
		channels = " enum: Input should be 'VOICE', 'SMS', 'WHATSAPP', 'INSTAGRAM', 'GMAIL', 'OUTLOOK' or 'LINKEDIN'"
		events   = " enum: Input should be 'MESSAGE_CREATED', 'CONVERSATION_HOLDER_CHANGED', 'INBOX_ITEM_CREATED', 'RUN_FINISHED', 'RUN_FAILED', 'CALL_ENDED', 'CHANNEL_STATUS_CHANGED' or 'APPROVAL_REQUESTED'"
	)
	for name, c := range map[string]struct {
		query     string
		variables object
		want      []string
	}{
		"all of a chat": {chat, object{"in": object{"message": 5, "channel": "FAX", "sessionId": true, "metadata": []any{}, "b": 1, "a": 1}}, []string{
			"input.agentId" + missing, "input.message" + text, "input.channel" + channels, "input.sessionId" + text, "input.metadata" + dict,
			"input.a" + extra, "input.b" + extra,
		}},
		"nothing of a chat": {chat, nil, []string{"input" + missing}},
		"null":              {chat, object{"in": nil}, []string{"input" + dict}},
		"a list":            {chat, object{"in": []any{}}, []string{"input" + dict}},
		"nulls in it":       {chat, object{"in": object{"agentId": nil, "message": nil, "channel": nil, "sessionId": nil}}, []string{"input.agentId" + text, "input.message" + text, "input.channel" + channels}},
		"another case":      {chat, object{"in": object{"agentId": "demo", "message": "Hi", "channel": "sms"}}, []string{"input.channel" + channels}},
		"all of a webhook":  {hook, object{"in": object{"url": object{}, "events": []any{"RUN_FAILED", "NOPE", 5, nil}}}, []string{"input.url" + text, "input.events.1" + events, "input.events.2" + events, "input.events.3" + events}},
		"no list":           {hook, object{"in": object{"url": "https://example.com", "events": "NOPE"}}, []string{"input.events" + list}},
		"an agent": {agent, object{"in": object{
			"model": object{"provider": "X", "temperature": "1", "maxOutputTokens": 1.5, "timeoutSeconds": 1 << 31, "name": nil}, "knowledge": []any{object{"title": "a"}, 1},
		}}, []string{
			"input.model.provider enum: Input should be 'EMBEDDED', 'OPENAI' or 'ANTHROPIC'", "input.model.temperature float_type: Input should be a valid number",
			"input.model.maxOutputTokens" + whole, "input.model.timeoutSeconds" + whole, "input.knowledge.0.text" + missing, "input.knowledge.1" + dict,
		}},
		"single variables": {`mutation($u: String!, $e: [EventType!]!) { createWebhookEndpoint(input: {url: $u, events: $e}) { secret } }`, object{"e": object{}}, []string{
			"input.url" + missing, "input.events" + list,
		}},
		"a variable of two arguments": {`query($n: Int) { agents(first: $n) { nodes { id } } events(last: $n) { nodes { id } } }`, object{"n": "1"}, []string{"n" + whole}},
		"a variable of two alike":     {`query($n: Int) { agents(first: $n) { nodes { id } } ...F } fragment F on Query { deliveries(first: $n) { nodes { id } } }`, object{"n": "1"}, []string{"first" + whole}},
		"a directive's":               {`query($b: Boolean!) { feedCursor @skip(if: $b) }`, object{"b": "true"}, []string{"if bool_type: Input should be a valid boolean"}},
		"deep in the document":        {`query($s: DeliveryStatus) { webhookEndpoints { deliveries(status: $s) { nodes { id } } } }`, object{"s": "X"}, []string{"status enum: Input should be 'PENDING', 'RETRYING', 'DELIVERED', 'FAILED' or 'SKIPPED'"}},

		"literals of a chat": {`mutation { chat(input: {message: 5, channel: "SMS", sessionId: 1.5, metadata: 1, x: 1}) { reply } }`, nil, []string{
			"input.agentId" + missing, "input.message" + text, "input.channel" + channels, "input.sessionId" + text, "input.metadata" + dict, "input.x" + extra,
		}},
		"metadata alone":       {`mutation { chat(input: {agentId: "demo", message: "Hi", channel: SMS, metadata: "x"}) { reply } }`, nil, []string{"input.metadata" + dict}},
		"literals of a hook":   {`mutation { createWebhookEndpoint(input: {url: null, events: [RUN_FAILED, NOPE, 5]}) { secret } }`, nil, []string{"input.url" + text, "input.events.1" + events, "input.events.2" + events}},
		"a missing argument":   {`mutation { createWebhookEndpoint { secret } }`, nil, []string{"input" + missing}},
		"an unknown argument":  {`{ agents(last: 1) { nodes { id } } }`, nil, []string{"last" + extra}},
		"a wrong argument":     {`{ agents(first: "x") { nodes { id } } }`, nil, []string{"first" + whole}},
		"a directive's, too":   {`{ feedCursor @include }`, nil, []string{"if" + missing}},
		"a default":            {`query($n: Int = "x") { agents(first: $n) { nodes { id } } }`, nil, []string{"n" + whole}},
		"once for a fragment":  {`{ a: webhookEndpoints { ...F } b: webhookEndpoints { ...F } } fragment F on WebhookEndpoint { deliveries(first: "x") { nodes { id } } }`, nil, []string{"first" + whole}},
		"literals and a value": {`mutation($u: String!) { createWebhookEndpoint(input: {url: $u, events: [NOPE]}) { secret } }`, object{"u": 5}, []string{"input.events.0" + events, "input.url" + text}},

		"the domain's of a chat": {chat, object{"in": object{"agentId": "demo", "message": " ", "channel": "SMS", "sessionId": "\x00"}}, []string{
			"input.message string_too_short: String should have at least 1 character", "input.sessionId value_error: Value error, U+0000 is not allowed",
		}},
		"the domain's of a hook": {hook, object{"in": object{"url": "ftp://example.com", "events": []any{}}}, []string{
			"input.url url_scheme: URL scheme should be 'https'", "input.events too_short: List should have at least 1 item after validation, not 0",
		}},
		"the domain's of a list": {`{ agents(first: 101, after: "?") { nodes { id } } }`, nil, []string{
			"first value_error: Value error, first must be between 0 and 100", "after value_error: Value error, this is not a cursor of this list",
		}},
	} {
		answer := s.graphql(withToken(token), c.query, c.variables)
		if got := wordsOf(at(answer, "errors", 0, "extensions", "validation")); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q in %v", name, got, c.want, answer)
		}
		if at(answer, "errors", 0, "extensions", "code") != "BAD_USER_INPUT" || at(answer, "errors", 1) != nil {
			t.Errorf("%s: not one BAD_USER_INPUT: %v", name, answer)
		}
		if strings.Contains(encode(answer), `"input":`) {
			t.Errorf("%s: the input is repeated: %v", name, answer)
		}
	}
	for name, c := range map[string]struct {
		query     string
		variables object
	}{
		"one for a list":   {`query($f: EventFilter) { events(filter: $f) { nodes { id } } }`, object{"f": object{"types": "RUN_FAILED", "agentId": 7}}},
		"one for a list, ": {`{ events(filter: {types: RUN_FAILED, agentId: 7}, first: null) { nodes { id } } }`, nil},
		"defaults":         {`query($n: Int = 3) { agents(first: $n) { nodes { id } } }`, nil},
		"not given":        {`query($n: Int, $f: EventFilter) { events(filter: $f, last: $n) { nodes { id } } }`, object{"other": 5}},
		"the schema":       {`{ __type(name: "Query") { fields(includeDeprecated: true) { name } } }`, nil},
	} {
		if errs := at(s.graphql(withToken(token), c.query, c.variables), "errors"); errs != nil {
			t.Errorf("%s: refused: %v", name, errs)
		}
	}
}

// TestGraphQLDocumentFaults: what is wrong with a document or a request tells where, and repeats nothing that is long.
func TestGraphQLDocumentFaults(t *testing.T) {
	t.Parallel()
	s := start(t)
	huge := strings.Repeat("x", 5000)
	for name, c := range map[string]struct {
		body string
		want []string // the validation of each error
	}{
		"syntax":            {encode(object{"query": "{\n viewer"}), []string{"query.2.8 graphql_syntax: Expected Name, found <EOF>"}},
		"no operation":      {encode(object{"query": ""}), []string{"query graphql_validation: no operation provided"}},
		"unknown fields":    {encode(object{"query": "{ a b }"}), []string{`query.1.3 graphql_validation: Cannot query field "a" on type "Query".`, `query.1.5 graphql_validation: Cannot query field "b" on type "Query".`}},
		"fields and values": {encode(object{"query": `{ agents(first: "x") { nope } }`}), []string{"first int_type: Input should be a valid integer", `query.1.24 graphql_validation: Cannot query field "nope" on type "AgentConnection".`}},
		"a variable's type": {encode(object{"query": `query($n: String) { agents(first: $n) { nodes { id } } }`}), []string{`query.1.35 graphql_validation: Variable "$n" of type "String" used in position expecting type "Int".`}},
		"operationName":     {encode(object{"query": `query A { feedCursor }`, "operationName": "B"}), []string{"operationName value_error: Value error, the document has no operation of this name"}},
		"no operationName":  {encode(object{"query": `query A { feedCursor } query B { feedCursor }`}), []string{"operationName missing: Field required"}},
		"no query":          {`{"variables":[]}`, []string{"query missing: Field required; variables dict_type: Input should be a valid dictionary"}},
		"broken JSON":       {`{"query":`, []string{"body json_invalid: JSON decode error"}},
		"a huge field":      {encode(object{"query": "{ " + huge + " }"}), nil},
		"a huge argument":   {encode(object{"query": "{ agents(" + huge + ": 1) { nodes { id } } }"}), nil},
		"a huge variable":   {encode(object{"query": "query($" + huge + ": Int!) { a: agents(first: $" + huge + ") { nodes { id } } events(last: $" + huge + ") { nodes { id } } }"}), nil},
		"a huge name":       {encode(object{"query": `mutation($in: ChatInput!) { chat(input: $in) { reply } }`, "variables": object{"in": object{huge: 1}}}), nil},
		"a huge value":      {encode(object{"query": `mutation { chat(input: {agentId: "demo", message: "Hi", channel: "` + huge + `"}) { reply } }`}), nil},
		"a huge operation":  {encode(object{"query": `{ feedCursor }`, "operationName": huge}), nil},
	} {
		_, _, answer := s.call("POST", "/graphql", withToken(token), c.body)
		errs, _ := at(answer, "errors").([]any)
		var got []string
		for _, e := range errs {
			words := wordsOf(at(e, "extensions", "validation"))
			if at(e, "extensions", "code") != "BAD_USER_INPUT" || len(words) == 0 {
				t.Errorf("%s: %v", name, e)
			}
			got = append(got, strings.Join(words, "; "))
		}
		if c.want != nil && !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if len(errs) == 0 || strings.Contains(encode(answer), huge[:300]) {
			t.Errorf("%s: much is repeated: %.2000s", name, encode(answer))
		}
	}
	answer := s.graphql(withToken(token), newAgent, object{"in": object{"name": 1, "knowledge": make([]any, 50_000)}})
	if faults := at(answer, "errors", 0, "extensions", "validation").([]any); len(faults) != 101 || len(at(answer, "errors", 0, "message").(string)) > 5000 {
		t.Errorf("50,001 faults: %d told", len(faults))
	} else if last := faults[100]; at(last, "type") != "too_many_faults" || !strings.HasSuffix(at(last, "msg").(string), "more faults") {
		t.Errorf("the last of 50,001 faults: %v", last)
	}
	if got := s.graphql(withToken(token), "{"+strings.Repeat("x ", 5000)+"}", nil); len(at(got, "errors").([]any)) != 100 {
		t.Errorf("5,000 unknown fields: %d errors", len(at(got, "errors").([]any)))
	}
	// The same over a WebSocket.
	live := s.subscribe(token, eventsLive, object{"filter": object{"types": []string{"NOPE"}, "agentId": true}})
	if end := <-live.end; !strings.Contains(end, `"loc":["filter","types",0]`) || !strings.Contains(end, `"loc":["filter","agentId"]`) {
		t.Errorf("a subscription's: %s", end)
	}
}

// TestLimitIsAFault reaches the limit of webhook endpoints: a refusal of the whole input is a fault of it, too.
func TestLimitIsAFault(t *testing.T) {
	t.Parallel()
	s := start(t)
	const create = `createWebhookEndpoint(input: {url: "https://example.com", events: [RUN_FAILED]}) { secret }`
	for range 5 {
		s.query(token, "mutation { "+aliases(20, create)+"}", nil)
	}
	answer := s.graphql(withToken(token), "mutation { "+create+" }", nil)
	want := object{
		"code": "BAD_USER_INPUT", "reason": "limit_reached",
		"validation": []any{object{"loc": []any{}, "type": "limit_reached", "msg": "a business may have 100 enabled webhook endpoints, its agents' own among them"}},
	}
	if diff := cmp.Diff(any(want), at(answer, "errors", 0, "extensions")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	status, _, rest := s.call("POST", "/v1/webhooks", withToken(token), `{"url":"https://example.com","events":["run.failed"]}`)
	if status != http.StatusUnprocessableEntity || at(rest, "code") != "limit_reached" {
		t.Errorf("REST: %d %v", status, rest)
	}
}
