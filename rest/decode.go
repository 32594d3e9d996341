package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"parley/store"
)

const (
	maxBody  = 1 << 20
	bodyTime = time.Minute // for a body to come
)

// body is a request's JSON object, field by field, with the faults found so far.
type body struct {
	fields map[string]json.RawMessage
	faults store.Faults
	nul    bool // U+0000 stands somewhere in it
}

// read takes the request's JSON object. Unknown fields are ignored.
func read(w http.ResponseWriter, r *http.Request) (*body, error) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := strings.ToLower(params["charset"])
	if err != nil || kind != "application/json" || charset != "" && charset != "utf-8" {
		return nil, refuse(http.StatusUnsupportedMediaType, "unsupported_media_type", "the body must be application/json")
	}
	// The deadline is the body's alone: left standing, it would end the request while the agent thinks. Not every
	// ResponseWriter has deadlines (a test's has none), and that is well.
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(bodyTime))
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = connection.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, refuse(http.StatusRequestEntityTooLarge, "body_too_large", "the body may be 1 MiB at most")
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "body_unreadable", "the body could not be read to its end")
	}
	return parse(raw)
}

func parse(raw []byte) (*body, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, store.Faults{{Loc: []any{"body"}, Msg: "Field required", Type: "missing"}}.Err()
	}
	if !utf8.Valid(raw) {
		return nil, invalidJSON(0, "the body is not UTF-8")
	}
	var document json.RawMessage
	if err := json.Unmarshal(raw, &document); err != nil {
		var syntax *json.SyntaxError
		offset := int64(0)
		if errors.As(err, &syntax) {
			offset = syntax.Offset
		}
		return nil, invalidJSON(offset, err.Error())
	}
	b := &body{nul: store.JSONObject(raw).HasNUL()}
	if err := json.Unmarshal(raw, &b.fields); err != nil || b.fields == nil {
		return nil, store.Faults{{
			Loc: []any{"body"}, Msg: "Input should be a valid dictionary or object to extract fields from", Type: "model_attributes_type",
		}}.Err()
	}
	return b, nil
}

func invalidJSON(offset int64, cause string) error {
	return store.Faults{{
		Loc: []any{"body", offset}, Msg: "JSON decode error", Type: "json_invalid", Input: map[string]any{}, Ctx: map[string]any{"error": cause},
	}}.Err()
}

func (b *body) fault(f store.Fault, loc ...any) {
	f.Loc = append([]any{"body"}, loc...)
	b.faults = append(b.faults, f)
}

// given returns a field's JSON; null counts as absent where the field is optional.
func (b *body) given(name string, required bool) (json.RawMessage, bool) {
	raw, ok := b.fields[name]
	switch {
	case !ok && required:
		b.fault(store.Fault{Msg: "Field required", Type: "missing"}, name)
		return nil, false
	case !ok, !required && string(raw) == "null":
		return nil, false
	}
	return raw, true
}

func (b *body) text(name string, required bool) (string, bool) {
	raw, ok := b.given(name, required)
	if !ok {
		return "", false
	}
	s, ok := asString(raw)
	if !ok {
		b.fault(store.Fault{Msg: "Input should be a valid string", Type: "string_type", Input: raw}, name)
	}
	return s, ok
}

func asString(raw json.RawMessage) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return s, json.Unmarshal(raw, &s) == nil
}

// object takes a JSON object as it stands.
func (b *body) object(name string) *store.JSONObject {
	raw, ok := b.given(name, false)
	if !ok {
		return nil
	}
	if raw[0] != '{' {
		b.fault(store.Fault{Msg: "Input should be a valid dictionary", Type: "dict_type", Input: raw}, name)
		return nil
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil // it has been parsed before
	}
	o := store.JSONObject(compact.Bytes())
	return &o
}

// list takes a JSON array's elements.
func (b *body) list(name string) ([]json.RawMessage, bool) {
	raw, ok := b.given(name, true)
	if !ok {
		return nil, false
	}
	var elements []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &elements) != nil {
		b.fault(store.Fault{Msg: "Input should be a valid list", Type: "list_type", Input: raw}, name)
		return nil, false
	}
	return elements, true
}

// oneOf takes one of some strings.
func oneOf[E ~string](b *body, raw json.RawMessage, all []E, loc ...any) (E, bool) {
	s, ok := asString(raw)
	if ok {
		for _, e := range all {
			if string(e) == s {
				return e, true
			}
		}
	}
	quoted := make([]string, len(all))
	for i, e := range all {
		quoted[i] = "'" + string(e) + "'"
	}
	expected := quoted[0]
	if n := len(quoted); n > 1 {
		expected = strings.Join(quoted[:n-1], ", ") + " or " + quoted[n-1]
	}
	b.fault(store.Fault{Msg: "Input should be " + expected, Type: "enum", Input: raw, Ctx: map[string]any{"expected": expected}}, loc...)
	return "", false
}

// check adds the faults that the domain found, but for fields of which the body has told already, and returns all of them.
func (b *body) check(faults store.Faults) error {
	for _, f := range faults {
		told := false
		for _, own := range b.faults {
			told = told || len(own.Loc) > 1 && own.Loc[1] == f.Loc[0]
		}
		if !told {
			b.fault(f, f.Loc...)
		}
	}
	if len(b.faults) == 0 && b.nul {
		const sentence = "U+0000 is not allowed"
		b.fault(store.Fault{Msg: "Value error, " + sentence, Type: "value_error", Ctx: map[string]any{"error": sentence}})
	}
	return b.faults.Err()
}
