package agent

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"parley/store"
)

// Variables are written `{{name}}` or `{{name | default}}` in an agent's prompt and its profiles' instructions. They are
// filled in before a model is told anything: a customer never sees one.

var variable = regexp.MustCompile(`\{\{([^{}|]*)(\|([^{}]*))?\}\}`)

// variables are the names that need no metadata.
var variables = []string{"agent.name", "channel", "lead.name", "lead.email", "lead.number"}

const (
	metadataPrefix = "metadata."
	leadPrefix     = "lead." // a chat has no lead: no caller could give what one of these lacks
)

// CheckPrompt finds the variables of a prompt that nothing can ever fill in for a chat.
func CheckPrompt(prompt string) store.Faults {
	var f store.Faults
	for _, m := range variable.FindAllStringSubmatch(prompt, -1) {
		name := strings.TrimSpace(m[1])
		if slices.Contains(variables, name) || strings.HasPrefix(name, metadataPrefix) && len(name) > len(metadataPrefix) {
			if strings.HasPrefix(name, leadPrefix) && m[2] == "" {
				f = append(f, store.ValueError("a chat has no lead: give "+name+" a default, as in {{"+name+" | our guest}}"))
			}
			continue
		}
		f = append(f, store.ValueError("there is no variable "+strconv.Quote(cut(name, 100))+
			": use metadata.…, "+strings.Join(variables[:len(variables)-1], ", ")+" or "+variables[len(variables)-1]))
	}
	return f
}

// fill replaces the variables of a text. Those that have neither a value nor a default are the caller's fault: they are told
// under metadata, where the caller can give them.
func fill(text string, values map[string]string, metadata map[string]any) (string, store.Faults) {
	var f store.Faults
	filled := variable.ReplaceAllStringFunc(text, func(whole string) string {
		m := variable.FindStringSubmatch(whole)
		name := strings.TrimSpace(m[1])
		value, ok := values[name]
		if path, of := strings.CutPrefix(name, metadataPrefix); of {
			value, ok = lookUp(metadata, strings.Split(path, "."))
		}
		switch {
		case ok && value != "":
			return value
		case m[2] != "":
			return strings.TrimSpace(m[3])
		}
		var loc []any
		for part := range strings.SplitSeq(name, ".") {
			loc = append(loc, part)
		}
		fault := store.Missing
		fault.Loc = loc
		f = append(f, fault)
		return ""
	})
	return filled, f
}

// lookUp follows a path into metadata. Numbers and booleans are written as JSON has them; what is no value has no text.
func lookUp(metadata map[string]any, path []string) (string, bool) {
	var v any = metadata
	for _, name := range path {
		object, ok := v.(map[string]any)
		if !ok {
			return "", false
		}
		v = object[name]
	}
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// fillAgent fills in the variables of an agent's prompt, and of its profile for the channel. The agent that it returns has its
// prompt as it was: what a model derives from it is cached for all callers.
func fillAgent(a *store.Agent, in ChatInput) (filled *store.Agent, prompt string, err error) {
	values := map[string]string{"agent.name": a.Name, "channel": string(in.Channel)}
	var metadata map[string]any
	if in.Metadata != nil {
		dec := json.NewDecoder(strings.NewReader(string(*in.Metadata)))
		dec.UseNumber()
		if err := dec.Decode(&metadata); err != nil {
			return nil, "", err
		}
	}
	prompt, faults := fill(a.Prompt, values, metadata)
	copied := *a
	copied.ChannelProfiles = slices.Clone(a.ChannelProfiles)
	for i, p := range copied.ChannelProfiles {
		if p.Channel == in.Channel && p.Instructions != nil {
			text, f := fill(*p.Instructions, values, metadata)
			faults = append(faults, f...)
			copied.ChannelProfiles[i].Instructions = &text
		}
	}
	return &copied, prompt, faults.Err()
}

// cut is s, cut to so many bytes between two characters.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && s[most]&0xc0 == 0x80 {
		most--
	}
	return s[:most]
}
