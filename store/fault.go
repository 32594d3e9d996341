package store

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// The faults that more than one input can have, in Pydantic v2's words. Their Loc is empty: the caller places them.

func missing() Faults {
	return Faults{{Type: "missing", Msg: "Field required"}}
}

func valueError(sentence string) Faults {
	return Faults{{Type: "value_error", Msg: "Value error, " + sentence, Ctx: map[string]any{"error": sentence}}}
}

func atLeast(least, got int) Faults {
	return Faults{{
		Type: "greater_than_equal", Msg: fmt.Sprintf("Input should be greater than or equal to %d", least),
		Input: got, Ctx: map[string]any{"ge": least},
	}}
}

func tooLong(got, most int) Faults {
	return Faults{{
		Type: "too_long", Msg: fmt.Sprintf("List should have at most %d items after validation, not %d", most, got),
		Ctx: map[string]any{"field_type": "List", "max_length": most, "actual_length": got},
	}}
}

// text checks a text's length in characters, and that it has no U+0000, which no database keeps alike.
func text(s string, least, most int) Faults {
	var f Faults
	switch n := utf8.RuneCountInString(s); {
	case n < least:
		f = append(f, Fault{
			Type: "string_too_short", Msg: fmt.Sprintf("String should have at least %d character%s", least, plural(least)),
			Input: s, Ctx: map[string]any{"min_length": least},
		})
	case n > most:
		f = append(f, Fault{
			Type: "string_too_long", Msg: fmt.Sprintf("String should have at most %d characters", most),
			Ctx: map[string]any{"max_length": most},
		})
	}
	if strings.ContainsRune(s, 0) {
		f = append(f, valueError("U+0000 is not allowed")...)
	}
	return f
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
