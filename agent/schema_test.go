package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"parley/store"
)

// doubling is a schema of 60 levels, each of which asks the next one twice.
func doubling() string {
	const n = 60
	defs := []string{fmt.Sprintf(`"d%d": {"maxProperties": 9}`, n)}
	for i := range n {
		defs = append(defs, fmt.Sprintf(`"d%d": {"allOf": [{"$ref": "#/$defs/d%d"}, {"$ref": "#/$defs/d%d"}]}`, i, i+1, i+1))
	}
	return `{"type": "object", "$ref": "#/$defs/d0", "$defs": {` + strings.Join(defs, ", ") + `}}`
}

// TestASchemaThatTakesForEverIsGivenUp: a business writes the schema, and a model the arguments. Neither is to keep the server busy.
func TestASchemaThatTakesForEverIsGivenUp(t *testing.T) {
	t.Parallel()
	branching := `{"type": "object", "$ref": "#/$defs/n", "$defs": {"n": {"allOf": [{"properties": {"a": {"$ref": "#/$defs/n"}}}, {"properties": {"a": {"$ref": "#/$defs/n"}}}]}}}`
	for name, c := range map[string]struct{ schema, arguments, want string }{
		"it doubles":              {doubling(), `{}`, "too much"},
		"an older one":            {`{"$schema": "http://json-schema.org/draft-07/schema#", ` + strings.ReplaceAll(doubling()[1:], "$defs", "definitions"), `{}`, "too much"},
		"it doubles with a depth": {branching, strings.Repeat(`{"a":`, 60) + `{}` + strings.Repeat(`}`, 60), "too much"},
		"it fails at each level":  {`{"type": "object", "not": {"$ref": "#/$defs/d0"}, ` + strings.ReplaceAll(strings.Replace(strings.Replace(doubling(), `"maxProperties": 9`, `"minProperties": 9`, 1), `"$ref": "#/$defs/d0", `, "", 1)[len(`{"type": "object", `):], "allOf", "anyOf"), `{}`, "too much"},
		"with formats":            {strings.ReplaceAll(doubling(), `"allOf"`, `"format": "regex", "allOf"`), `{}`, "too much"},
		"it asks for itself":      {`{"type": "object", "$ref": "#"}`, `{}`, "cycle"},
		"much, and well":          {`{"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"}}}}`, `{"l": [` + strings.Repeat("1,", 20_000) + `1]}`, ""},
		"all different":           {`{"type": "object", "properties": {"l": {"uniqueItems": true}}}`, `{"l": [` + strings.Repeat(`[1],`, 50_000) + `2]}`, "l"},
		"endless":                 {`{"type": "object"}`, `{"x": "` + strings.Repeat("x", 1<<20) + `"}`, "too long"},
	} {
		began := time.Now()
		faults := CheckSchema(store.JSONObject(c.schema))
		got := checkArguments(store.JSONObject(c.schema), json.RawMessage(c.arguments))
		if c.want == "" && got != "" && len(faults) == 0 || !strings.Contains(got, c.want) && len(faults) == 0 {
			t.Errorf("%s: %v, %.200q", name, faults, got)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: %v", name, took)
		}
	}
}
