package embedded

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// sentences cuts a text into its sentences, each a piece of the text as it stands. A line break ends a sentence; so does a
// full stop, question or exclamation mark before white space, unless what stands before it is an abbreviation or what comes
// after it begins in lower case.
func sentences(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(line), "-*•# \t"))
		begin := 0
		for i := 0; i < len(line); i++ {
			if !strings.ContainsRune(".!?", rune(line[i])) {
				continue
			}
			end := i + 1
			for end < len(line) && strings.ContainsRune(`.!?"')`, rune(line[end])) {
				end++
			}
			if end < len(line) && !endsSentence(line[begin:end], line[end:]) {
				continue
			}
			out = keep(out, line[begin:end])
			begin, i = end, end-1
		}
		out = keep(out, line[begin:])
	}
	return out
}

func keep(out []string, sentence string) []string {
	if sentence = strings.TrimSpace(sentence); sentence != "" {
		out = append(out, sentence)
	}
	return out
}

var abbreviations = set("e.g.", "i.e.", "etc.", "mr.", "mrs.", "ms.", "dr.", "st.", "no.", "a.m.", "p.m.", "approx.", "incl.", "ca.", "vs.", "tel.")

func endsSentence(before, after string) bool {
	next, _ := utf8.DecodeRuneInString(after)
	if !unicode.IsSpace(next) {
		return false // a decimal, a time, an address
	}
	if first, _ := utf8.DecodeRuneInString(strings.TrimLeft(after, " \t\"'(")); unicode.IsLower(first) {
		return false
	}
	word := before[strings.LastIndexAny(before, " \t(")+1:]
	return !abbreviations[strings.ToLower(word)]
}

// instruction matches the sentences of a prompt that tell the agent what to be or do. They are not for customers: only a
// prompt's other sentences, its facts, are quoted.
var instruction = regexp.MustCompile(`(?i)^(you|your|you're|never|always|do|don't|only|please|if|when|be|keep|use|answer|reply|respond|say|tell|ask|offer|refer|quote|act|` +
	`speak|write|help|make|avoid|stay|remember|pretend|greet|give|include|provide|explain|focus|follow|address|sign|end|start|begin|try|let|assume|` +
	`ignore|limit|format|mention|return|the (user|customer|assistant|agent|bot)|this (agent|assistant|bot))\b|\{\{`)
