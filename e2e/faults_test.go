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
		var got []string
		faults, _ := at(answer, "detail").([]any)
		for _, f := range faults {
			var loc []string
			for _, l := range at(f, "loc").([]any) {
				loc = append(loc, fmt.Sprint(l))
			}
			got = append(got, fmt.Sprintf("%s %v: %v", strings.Join(loc, "."), at(f, "type"), at(f, "msg")))
		}
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
	if n := len(at(answer, "detail").([]any)); n != 1001 || at(answer, "detail", 0, "type") != "url_scheme" {
		t.Errorf("50,001 faulty events and a URL: %d faults", n)
	}
}
