package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"parley/store"
)

const (
	maxBody   = 1 << 20
	maxDepth  = 100         // arrays and objects in each other
	bodyTime  = time.Minute // for a body to come
	maxEcho   = 1 << 10     // bytes of JSON that a fault repeats as its `input`; longer ones it leaves out
	maxFaults = 1000        // of one body: those of a list of 1 MiB would be 100 MiB
)

// body is a request's JSON object, field by field, with the faults found so far.
type body struct {
	raw    json.RawMessage
	fields map[string]json.RawMessage
	asked  []string // the fields that the handler has asked for: the model's, in its order
	faults store.Faults
	beside store.Faults // of the request beside its body
	secret string       // a field that no fault may repeat
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
		return nil, bodyFault(store.Missing, json.RawMessage("null"))
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
	if store.JSONObject(raw).Deeper(maxDepth) {
		return nil, invalidJSON(0, fmt.Sprintf("the body may be nested %d deep", maxDepth))
	}
	b := &body{raw: raw}
	if err := json.Unmarshal(raw, &b.fields); err != nil || b.fields == nil {
		return nil, bodyFault(store.Fault{
			Msg: "Input should be a valid dictionary or object to extract fields from", Type: "model_attributes_type",
		}, raw)
	}
	return b, nil
}

func invalidJSON(offset int64, cause string) error {
	return store.Faults{{
		Loc: []any{"body", offset}, Msg: "JSON decode error", Type: "json_invalid", Input: map[string]any{}, Ctx: map[string]any{"error": cause},
	}}.Err()
}

// bodyFault is the fault of a body as a whole.
func bodyFault(f store.Fault, raw json.RawMessage) error {
	f.Loc, f.Input = []any{"body"}, echo(raw)
	return store.Faults{f}.Err()
}

// echo is what a fault repeats of the input: all of it, unless it is long.
func echo(raw json.RawMessage) any {
	if len(raw) > maxEcho {
		return nil
	}
	return raw
}

// fault adds a fault of what was given at loc; where something is missing, of what it is missing from.
func (b *body) fault(f store.Fault, given json.RawMessage, loc ...any) {
	f.Loc = append([]any{"body"}, loc...)
	if b.secret == "" || len(loc) > 0 && loc[0] != b.secret && f.Type != "missing" {
		f.Input = echo(given)
	}
	b.faults = append(b.faults, f)
}

// given returns a field's JSON; null counts as absent where the field is optional.
func (b *body) given(name string, required bool) (json.RawMessage, bool) {
	b.asked = append(b.asked, name)
	raw, ok := b.fields[name]
	switch {
	case !ok && required:
		b.fault(store.Missing, b.raw, name)
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
		b.fault(store.NotString, raw, name)
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
		b.fault(store.NotObject, raw, name)
		return nil
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil // it has been parsed before
	}
	o := store.JSONObject(compact.Bytes())
	if o.Deeper(store.MaxDepth) {
		b.fault(store.TooDeep, raw, name)
		return nil
	}
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
		b.fault(store.NotList, raw, name)
		return nil, false
	}
	return elements, true
}

// oneOf takes one of some strings. Of very many faults it keeps the first.
func oneOf[E ~string](b *body, raw json.RawMessage, all []E, loc ...any) (E, bool) {
	if s, ok := asString(raw); ok && slices.Contains(all, E(s)) {
		return E(s), true
	}
	if len(b.faults) >= maxFaults {
		return "", false
	}
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = string(e)
	}
	b.fault(store.NotOneOf(names), raw, loc...)
	return "", false
}

// check adds the faults that the domain found, but for fields of which the body has told already, and returns all of them,
// in the order of the model's fields.
func (b *body) check(faults store.Faults) error {
	told := map[any]bool{}
	for _, own := range b.faults {
		told[own.Loc[1]] = true
	}
	for _, f := range faults {
		if name := f.Loc[0].(string); !told[name] {
			b.fault(f, b.fields[name], f.Loc...)
		}
	}
	slices.SortStableFunc(b.faults, func(x, y store.Fault) int {
		return slices.Index(b.asked, x.Loc[1].(string)) - slices.Index(b.asked, y.Loc[1].(string))
	})
	if b.strayNUL() {
		b.fault(store.ValueError("U+0000 is not allowed"), b.raw)
	}
	return append(b.faults, b.beside...).Err()
}

// header adds the faults of a header that may be given once.
func (b *body) header(name string, given []string, faults store.Faults) {
	if len(given) > 1 {
		faults = store.Faults{store.ValueError("give this header once")}
	}
	for _, f := range faults.Under("header", name) {
		f.Input = given[0]
		b.beside = append(b.beside, f)
	}
}

// strayNUL says whether U+0000 stands where no field's own check finds it: in unknown fields, their names, and in doubles
// that a later field of the same name hides.
func (b *body) strayNUL() bool {
	if !store.JSONObject(b.raw).HasNUL() {
		return false
	}
	found := false
	for name, raw := range b.fields {
		has := store.JSONObject(raw).HasNUL()
		if has && !slices.Contains(b.asked, name) || strings.ContainsRune(name, 0) {
			return true
		}
		found = found || has
	}
	return !found
}
