package store

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// JSONObject is a JSON object as it was written.
type JSONObject json.RawMessage

// MarshalGQL writes the scalar JSONObject of the schema.
func (o JSONObject) MarshalGQL(w io.Writer) {
	if len(o) == 0 {
		_, _ = io.WriteString(w, "{}")
		return
	}
	_, _ = w.Write(o)
}

// UnmarshalGQL reads the scalar JSONObject of the schema.
func (o *JSONObject) UnmarshalGQL(v any) error {
	m, ok := v.(map[string]any)
	if !ok {
		return Faults{NotObject}.Err()
	}
	b, err := encode(m)
	*o = b
	if err == nil && o.Deeper(MaxDepth) {
		return Faults{TooDeep}.Err()
	}
	return err
}

// MaxDepth is how many arrays and objects of a JSONObject may stand in each other, itself among them. What is kept is read again by
// receivers, and not all of them read what is nested deeper.
const MaxDepth = 64

// TooDeep is the fault of an object that is nested deeper.
var TooDeep = ValueError(fmt.Sprintf("JSON may be nested %d deep", MaxDepth))

// Deeper says whether more than so many arrays and objects stand in each other. It takes valid JSON, and calls nothing for each.
func (o JSONObject) Deeper(than int) bool {
	depth, quoted := 0, false
	for i := 0; i < len(o); i++ {
		switch b := o[i]; {
		case quoted && b == '\\':
			i++ // whatever is escaped
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '[' || b == '{':
			if depth++; depth > than {
				return true
			}
		case b == ']' || b == '}':
			depth--
		}
	}
	return false
}

// MarshalJSON writes the object.
func (o JSONObject) MarshalJSON() ([]byte, error) {
	if len(o) == 0 {
		return []byte("{}"), nil
	}
	return o, nil
}

// UnmarshalJSON keeps a copy of what was read.
func (o *JSONObject) UnmarshalJSON(b []byte) error {
	*o = slices.Clone(b)
	return nil
}

// HasNUL looks for U+0000, which no database keeps alike. JSON can only hold it escaped, as \u0000; \\u0000 is a backslash
// and five characters.
func (o JSONObject) HasNUL() bool {
	for i := 0; i+5 < len(o); i++ {
		if o[i] != '\\' {
			continue
		}
		if string(o[i:i+6]) == `\u0000` {
			return true
		}
		i++ // whatever is escaped is not the beginning of an escape
	}
	return false
}
