package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"parley/store"
)

// repeated is a text n times, with its number for %, and commas between.
func repeated(n int, text string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(text, "%", fmt.Sprint(i))
	}
	return strings.Join(all, ",")
}

// nested is a text n times in itself, for the @ in it.
func nested(n int, text, innermost string) string {
	head, tail, _ := strings.Cut(text, "@")
	return strings.Repeat(head, n) + innermost + strings.Repeat(tail, n)
}

// TestHostileSchemas: whatever 64 KiB of schema, and 256 KiB of arguments, are made of, to check them takes about as much as their
// size. Allocations are the measure, since they are the same on each machine; some of these would take hours, or all memory.
func TestHostileSchemas(t *testing.T) {
	for name, c := range map[string]struct {
		schema    string // of the arguments' member x
		arguments string // the member
		told      string // what the schema, or else the model's call, is refused with
	}{
		"3,000 allOf in each other":      {nested(3000, `{"allOf":[@]}`, "{}"), "", "nested 64 deep"},
		"as deep as it may be":           {nested(30, `{"allOf":[@]}`, "{}"), "1", ""},
		"3,000 properties in each other": {nested(3000, `{"properties":{"a":@}}`, "{}"), "", "nested 64 deep"},
		"arrays in each other":           {`{"enum":` + nested(9000, "[@]", "") + "}", "", "nested 64 deep"},
		"20,000 schemas":                 {`{"allOf":[` + repeated(20_000, "{}") + "]}", "", "1000 objects"},
		"12,000 booleans":                {`{"allOf":[` + repeated(12_000, "true") + "]}", "", "1000 objects"},
		"as many as it may have":         {`{"allOf":[` + repeated(900, "{}") + "]}", "1", ""},
		"with ids":                       {`{"allOf":[` + repeated(900, `{"$id":"urn:a:%"}`) + "]}", "1", ""},
		"with anchors":                   {`{"allOf":[` + repeated(900, `{"$anchor":"a%"}`) + "]}", "1", ""},
		"references":                     {`{"allOf":[` + repeated(450, `{"$ref":"#/properties/x/x-y/%"}`) + `],"x-y":[` + repeated(450, "{}") + "]}", "1", ""},
		"a long name":                    {`{"properties":{"` + strings.Repeat("a", 30_000) + `":{"allOf":[` + repeated(900, "{}") + "]}}}", "", "256 bytes"},
		"a large number":                 {`{"enum":[` + repeated(5_000, "1e99999%") + "]}", "", "no larger than a float64"},
		"a small number":                 {`{"enum":[` + repeated(5_000, "1e-99999%") + "]}", "", "exponent"},
		"a long number":                  {`{"minimum":` + strings.Repeat("1", 50_000) + "}", "", "64 characters"},
		"regular expressions":            {`{"patternProperties":{` + repeated(500, `"(a{10}){99}%":{}`) + "}}", "", "too long"},
		"names that it requires":         {`{"items":{"required":[` + repeated(6_000, `"a%"`) + "]}}", "[" + repeated(80_000, "{}") + "]", "too much"},
		"numbers that it chooses among":  {`{"items":{"enum":[` + repeated(9_000, "%") + "]}}", "[" + repeated(60_000, "-1") + "]", "too much"},
		"numbers in the arguments":       {`{"items":{"minimum":1}}`, "[" + repeated(10_000, "1e-99999%") + "]", "exponent"},
		"a text and an expression":       {`{"allOf":[` + repeated(100, `{"pattern":"(a|aa){20}$"}`) + "]}", `"` + strings.Repeat("a", 200_000) + `"`, "too much"},
		"a text and its length":          {`{"allOf":[` + repeated(900, `{"minLength":1}`) + "]}", `"` + strings.Repeat("ä", 100_000) + `"`, "too much"},
		"members of no schema":           {`{"allOf":[` + repeated(450, `{"additionalProperties":true}`) + "]}", "{" + repeated(20_000, `"%":1`) + "}", "too much"},
		"arguments in each other":        {"{}", nested(9_000, "[@]", ""), "nested 64 deep"},
	} {
		t.Run(name, func(t *testing.T) {
			schema := store.JSONObject(`{"type":"object","properties":{"x":` + c.schema + `}}`)
			var told string
			allocations := testing.AllocsPerRun(1, func() {
				told = CheckSchema(schema).String()
				if told == "" {
					told = checkArguments(schema, json.RawMessage(`{"x":`+c.arguments+`}`))
				}
			})
			if allocations > 2_000_000 {
				t.Errorf("%.0f allocations", allocations)
			}
			if !strings.Contains(told, c.told) || c.told == "" && told != "" || len(told) > 10_000 {
				t.Errorf("told %.300q", told)
			}
		})
	}
}
