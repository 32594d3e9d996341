package store

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// The faults that more than one input can have, in Pydantic v2's words. Their Loc is empty: the caller places them.

// The faults of a field that is required and not there, and of one that nobody asked for.
var (
	Missing = Fault{Type: "missing", Msg: "Field required"}
	Extra   = Fault{Type: "extra_forbidden", Msg: "Extra inputs are not permitted"}
)

// The faults of a value of the wrong type.
var (
	NotString  = Fault{Type: "string_type", Msg: "Input should be a valid string"}
	NotInt     = Fault{Type: "int_type", Msg: "Input should be a valid integer"}
	NotFloat   = Fault{Type: "float_type", Msg: "Input should be a valid number"}
	NotBoolean = Fault{Type: "bool_type", Msg: "Input should be a valid boolean"}
	NotList    = Fault{Type: "list_type", Msg: "Input should be a valid list"}
	NotObject  = Fault{Type: "dict_type", Msg: "Input should be a valid dictionary"}
)

// NotOneOf is the fault of a value that is none of those named.
func NotOneOf(names []string) Fault {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = "'" + name + "'"
	}
	expected := quoted[0]
	if n := len(quoted); n > 1 {
		expected = strings.Join(quoted[:n-1], ", ") + " or " + quoted[n-1]
	}
	return Fault{Type: "enum", Msg: "Input should be " + expected, Ctx: map[string]any{"expected": expected}}
}

// ValueError is the fault of a value that breaks a rule, in a sentence of ours.
func ValueError(sentence string) Fault {
	return Fault{Type: "value_error", Msg: "Value error, " + sentence, Ctx: map[string]any{"error": sentence}}
}

func missing() Faults { return Faults{Missing} }

func valueError(sentence string) Faults { return Faults{ValueError(sentence)} }

func atLeast(least int) Faults {
	return Faults{{
		Type: "greater_than_equal", Msg: fmt.Sprintf("Input should be greater than or equal to %d", least),
		Ctx: map[string]any{"ge": least},
	}}
}

func tooLong(got, most int) Faults { return Faults{TooLong(got, most)} }

// TooLong is the fault of a list with more items than it may have.
func TooLong(got, most int) Fault {
	return Fault{
		Type: "too_long", Msg: fmt.Sprintf("List should have at most %d items after validation, not %d", most, got),
		Ctx: map[string]any{"field_type": "List", "max_length": most, "actual_length": got},
	}
}

// StringTooLong is the fault of a text with more characters than it may have.
func StringTooLong(most int) Fault {
	return Fault{
		Type: "string_too_long", Msg: fmt.Sprintf("String should have at most %d characters", most), Ctx: map[string]any{"max_length": most},
	}
}

// text checks a text's length in characters, and that it has no U+0000, which no database keeps alike.
func text(s string, least, most int) Faults {
	var f Faults
	switch n := utf8.RuneCountInString(s); {
	case n < least:
		f = append(f, Fault{
			Type: "string_too_short", Msg: fmt.Sprintf("String should have at least %d character%s", least, plural(least)),
			Ctx: map[string]any{"min_length": least},
		})
	case n > most:
		f = append(f, StringTooLong(most))
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

// storable says whether PostgreSQL takes a text. What no database holds is no row's id.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
