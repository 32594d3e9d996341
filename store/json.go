package store

import (
	"encoding/json"
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
	return err
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
