package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"parley/store"
)

// Bounds of a schema and of what is held against it. A business writes the one, and its model, which may be the business's own
// server, the other: neither is to keep this server busy. To compile a schema costs the cube of its depth and the square of its
// parts, so both are bounded before; to check a value costs what the schema makes of it, so that has a budget.
const (
	maxSchemaDepth = 64     // arrays and objects in each other; what generators write has some 20
	maxSchemaParts = 1000   // objects and booleans, each of which may be a schema
	maxSchemaName  = 256    // bytes of a name: the place of each schema repeats those above it
	maxPatterns    = 50_000 // instructions that the regular expressions of a schema come to

	maxArguments      = 256 << 10 // bytes
	maxArgumentsDepth = 64
	maxNumber         = 64      // characters: numbers are compared as fractions of any length
	maxChecks         = 200_000 // of a part of a call's arguments against a part of a schema

	maxViolation      = 20  // of a schema, that are told at once
	maxViolationBytes = 300 // of each
)

// refuseLoader loads nothing: the library's own would open file:// references, and a business's schema so read the server's
// files.
type refuseLoader struct{}

func (refuseLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("a schema may refer only to itself, and not to %s", cut(url, 100))
}

const schemaURL = "mem:///parameters"

// budget ends a validation that takes too many steps. Schemas can double at every level, in so many bytes as their depth. The
// library has no way to count its steps but a format, which it looks at early in each: as a vocabulary without a keyword,
// budget sees every schema and gives it one. A step counts as many as the schema and the value have members, for a schema that
// requires 10,000 names looks for all of them in each object.
type budget struct {
	left     int
	patterns int // what the regular expressions of a schema may still come to
}

var errTooMuch = errors.New("the check took too many steps")

// spend counts n steps. It panics with errTooMuch, which validate recovers, when they are too many.
func (b *budget) spend(n int) {
	if b.left -= n; b.left < 0 {
		panic(errTooMuch)
	}
}

func (b *budget) vocabulary() *jsonschema.Vocabulary {
	return &jsonschema.Vocabulary{
		URL: "urn:parley:budget",
		Compile: func(at *jsonschema.CompilerContext, object map[string]any) (jsonschema.SchemaExt, error) {
			schema := at.Enqueue(nil) // the very one that is being compiled
			schema.Format = b.count(schema.Format, 1+members(object, 2), schema.UniqueItems)
			if schema.Enum == nil && schema.Const == nil {
				return nil, nil
			}
			values := &choices{budget: b, enum: schema.Enum, constant: schema.Const}
			schema.Enum, schema.Const = nil, nil // the library would compare them before it looks at the format
			values.cost = members(object["enum"], maxSchemaDepth) + members(object["const"], maxSchemaDepth)
			return values, nil
		},
	}
}

func (b *budget) count(format *jsonschema.Format, cost int, unique bool) *jsonschema.Format {
	name, own := "any", func(any) error { return nil }
	if format != nil {
		name, own = format.Name+" ", format.Validate // another name, for the library has its own way with "regex"
	}
	return &jsonschema.Format{Name: name, Validate: func(v any) error {
		b.spend(cost + length(v))
		if unique {
			b.spend(compared(v))
		}
		return own(v)
	}}
}

// compared is what it costs to find equal elements: the library compares up to 20 with each other, and more by a hash.
func compared(v any) int {
	n := members(v, maxArgumentsDepth)
	if elements, ok := v.([]any); ok && len(elements) <= 20 {
		return 20 * n
	}
	return n
}

// length is what it costs to look at a value's members, and not into them.
func length(v any) int {
	switch v := v.(type) {
	case map[string]any:
		return len(v)
	case []any:
		return len(v)
	case string:
		return len(v) / 16
	}
	return 0
}

// members counts a value's members, down to a depth.
func members(v any, depth int) int {
	n := length(v)
	if depth == 1 {
		return n
	}
	switch v := v.(type) {
	case map[string]any:
		for _, member := range v {
			n += members(member, depth-1)
		}
	case []any:
		for _, member := range v {
			n += members(member, depth-1)
		}
	}
	return n
}

// choices are the keywords enum and const, within the budget.
type choices struct {
	budget   *budget
	cost     int
	enum     *jsonschema.Enum
	constant *any
}

// Validate implements jsonschema.SchemaExt.
func (c *choices) Validate(at *jsonschema.ValidatorContext, v any) {
	c.budget.spend(1 + c.cost)
	is := func(choice any) bool {
		same, err := at.Equals(v, choice)
		return same && err == nil
	}
	if c.constant != nil && !is(*c.constant) {
		at.AddError(&kind.Const{Got: v, Want: *c.constant})
	}
	if c.enum != nil && !slices.ContainsFunc(c.enum.Values, is) {
		at.AddError(&kind.Enum{Got: v, Want: c.enum.Values})
	}
}

// pattern is a regular expression within the budget.
type pattern struct {
	*regexp.Regexp
	budget *budget
	size   int
}

// MatchString implements jsonschema.Regexp.
func (p pattern) MatchString(s string) bool {
	p.budget.spend(1 + len(s)*p.size/100)
	return p.Regexp.MatchString(s)
}

// pattern is the library's engine for regular expressions: a few bytes can stand for a program of 100 MB.
func (b *budget) pattern(text string) (jsonschema.Regexp, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	size := instructions(parsed)
	if b.patterns -= size; b.patterns < 0 {
		return nil, errors.New("the regular expressions are too long")
	}
	compiled, err := regexp.Compile(text)
	return pattern{compiled, b, size}, err
}

// instructions are what a regular expression's program comes to, with its repetitions written out.
func instructions(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return n
}

// validate is schema.Validate within its budget.
func validate(schema *jsonschema.Schema, value any) (err error) {
	defer func() {
		if p := recover(); p == errTooMuch { //nolint:errorlint // the very value
			err = errTooMuch
		} else if p != nil {
			panic(p)
		}
	}()
	return schema.Validate(value)
}

// compile compiles a schema, unless it is too much for that: then it is a tooLarge.
func compile(schema store.JSONObject) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	if err := (&bounds{depth: maxSchemaDepth, parts: maxSchemaParts, name: maxSchemaName}).check(doc, nil); err != nil {
		return nil, err
	}
	b := &budget{left: maxChecks, patterns: maxPatterns}
	c := jsonschema.NewCompiler()
	c.RegisterVocabulary(b.vocabulary())
	c.AssertVocabs()
	c.UseLoader(refuseLoader{})
	c.UseRegexpEngine(b.pattern)
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	return c.Compile(schemaURL)
}

// bounds are what a decoded JSON value may be. 0 is no bound.
type bounds struct {
	depth, parts, name int
	seen               int // parts
}

// tooLarge is a value that is beyond its bounds, and where.
type tooLarge struct {
	at   []any
	what string
}

func (e *tooLarge) Error() string { return e.what }

// check looks for what is beyond the bounds, and goes no deeper than they are.
func (b *bounds) check(v any, at []any) error {
	within := func(member any, key any) error { return b.check(member, append(at, key)) }
	refuse := func(format string, figure int) error {
		return &tooLarge{slices.Clone(at), fmt.Sprintf(format, figure)}
	}
	switch v := v.(type) {
	case map[string]any:
		if len(at) >= b.depth {
			return refuse("JSON may be nested %d deep here", b.depth)
		}
		if err := b.part(refuse); err != nil {
			return err
		}
		for name, member := range v {
			if b.name > 0 && len(name) > b.name {
				return refuse("a name may have %d bytes here", b.name)
			}
			if err := within(member, name); err != nil {
				return err
			}
		}
	case []any:
		if len(at) >= b.depth {
			return refuse("JSON may be nested %d deep here", b.depth)
		}
		for i, member := range v {
			if err := within(member, i); err != nil {
				return err
			}
		}
	case bool:
		return b.part(refuse)
	case json.Number:
		if _, err := v.Float64(); err != nil || len(v) > maxNumber {
			return refuse("a number may have %d characters, and be no larger than a float64", maxNumber)
		}
		if _, exponent, ok := strings.Cut(strings.ToLower(string(v)), "e"); ok && len(strings.TrimLeft(exponent, "+-0")) > 3 {
			return refuse("a number's exponent may have %d digits", 3)
		}
	}
	return nil
}

// part counts an object or a boolean.
func (b *bounds) part(refuse func(string, int) error) error {
	if b.seen++; b.parts > 0 && b.seen > b.parts {
		return refuse("a schema may have %d objects and booleans", b.parts)
	}
	return nil
}

// CheckSchema finds what is wrong with a tool's parameters: they must be a JSON Schema of an object, without references to
// anything outside of it.
func CheckSchema(schema store.JSONObject) store.Faults {
	var shape struct {
		Type any `json:"type"`
	}
	if err := json.Unmarshal(schema, &shape); err != nil {
		return store.Faults{store.NotObject}
	}
	var f store.Faults
	if shape.Type != nil && shape.Type != "object" {
		f = append(f, store.ValueError("a tool's arguments are an object: type must be \"object\""))
	}
	_, err := compile(schema)
	var large *tooLarge
	var invalid *jsonschema.SchemaValidationError
	var violated *jsonschema.ValidationError
	switch {
	case err == nil:
	case errors.As(err, &large):
		f = append(f, store.Faults{store.ValueError(large.what)}.Under(large.at...)...)
	case errors.As(err, &invalid) && errors.As(invalid.Err, &violated):
		for _, sentence := range violations(violated) {
			f = append(f, store.ValueError("it is no JSON Schema: "+sentence))
		}
	default:
		f = append(f, store.ValueError("it is no JSON Schema: "+cut(err.Error(), maxViolationBytes)))
	}
	return f
}

var english = message.NewPrinter(language.English)

// violations are what a value breaks of a schema, a sentence each with its place: the first ones, and no more of each than a model
// or a person needs.
func violations(err *jsonschema.ValidationError) []string {
	var out []string
	var gather func(*jsonschema.ValidationError)
	gather = func(err *jsonschema.ValidationError) {
		for _, cause := range err.Causes {
			if gather(cause); len(out) == maxViolation {
				return
			}
		}
		if len(err.Causes) == 0 {
			place := cut(strings.Join(err.InstanceLocation, "/"), maxViolationBytes)
			out = append(out, "at /"+place+": "+cut(err.ErrorKind.LocalizedString(english), maxViolationBytes))
		}
	}
	gather(err)
	return out
}

// checkArguments says what is wrong with a call's arguments, for the model to mend; "" if nothing is.
func checkArguments(schema store.JSONObject, raw json.RawMessage) string {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = json.RawMessage("{}")
	}
	if len(raw) > maxArguments {
		return "The arguments are too long."
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return "The arguments are not JSON: " + cut(err.Error(), maxViolationBytes)
	}
	if _, ok := value.(map[string]any); !ok {
		return "The arguments must be a JSON object."
	}
	if err := (&bounds{depth: maxArgumentsDepth}).check(value, nil); err != nil {
		return "The arguments are too much to be checked: " + err.Error() + "."
	}
	compiled, err := compile(schema)
	var large *tooLarge
	if errors.As(err, &large) {
		return "The tool cannot be called: its parameters are too much to be checked." // from before there were bounds
	}
	if err != nil {
		return "" // it was checked when it was set: the tool's server decides
	}
	err = validate(compiled, value)
	var violated *jsonschema.ValidationError
	switch {
	case errors.Is(err, errTooMuch):
		return "The arguments are too much to be checked."
	case errors.As(err, &violated):
		return "The arguments do not fit the tool's parameters: " + strings.Join(violations(violated), "; ")
	}
	return ""
}
