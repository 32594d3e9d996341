package provider

import (
	"bytes"
	"encoding/json"

	"parley/store"
)

// Schema is a tool's JSON Schema, with the type and the properties that servers insist on.
func Schema(parameters store.JSONObject) map[string]any {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(parameters, &fields) // what is no object describes nothing
	out := map[string]any{"type": "object", "properties": map[string]any{}}
	for name, value := range fields {
		out[name] = value // as it was written
	}
	return out
}

// Arguments are a call's, as they can be told to a server again: as an object, whatever the model made of them. A server that
// looks into them would refuse the whole session for a slip of its model.
func Arguments(raw json.RawMessage) json.RawMessage {
	if json.Valid(raw) && bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		return raw
	}
	wrapped, err := json.Marshal(map[string]string{"INVALID_JSON": string(raw)})
	if err != nil {
		panic(err) // a string always encodes
	}
	return wrapped
}
