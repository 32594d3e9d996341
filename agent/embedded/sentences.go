package embedded

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// sentence is a piece of a text, word for word as it stands there.
type sentence struct {
	text string
	role role
	gap  bool // an empty line stands before it
}

// role says what a sentence is good for.
type role int

const (
	statement role = iota // can be quoted
	question              // no answer, but the next statement is one to it: "Do you ship abroad? Yes, to Norway."
	opener                // opens a list, and says what its lines are about: "Opening hours:"
	heading               // a Markdown heading: says what all that follows is about
)

// marker is what a line of a list begins with. White space must follow: "-5 °C" is no line of a list.
var marker = regexp.MustCompile(`^(?:[-*+•–]|\d{1,3}[.)])\s+`)

// sentences cuts a text into its sentences. A line break ends a sentence; so does a full stop, question or exclamation mark
// before white space, unless what stands before it is an abbreviation or what comes after it begins in lower case: that spares
// decimals, prices, times, addresses. In doubt it does not cut: two sentences quoted as one are better than half of one.
func sentences(text string) []sentence {
	var out []sentence
	gap := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			gap = true
			continue
		}
		if strings.HasPrefix(line, "#") {
			out = append(out, sentence{strings.TrimSpace(strings.TrimLeft(line, "#")), heading, gap})
			gap = false
			continue
		}
		for _, s := range cut(line[len(marker.FindString(line)):]) {
			as := statement
			switch bare := strings.TrimRight(s, `*_"'”’)`); {
			case strings.HasSuffix(bare, "?"), strings.HasSuffix(bare, "？"):
				as = question
			case strings.HasSuffix(bare, ":"):
				as = opener
			}
			out = append(out, sentence{s, as, gap})
			gap = false
		}
	}
	return out
}

// cut cuts a line.
func cut(line string) []string {
	var out []string
	keep := func(s string) {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	begin, from := 0, 0
	for {
		mark := strings.IndexAny(line[from:], ".!?…。！？")
		if mark < 0 {
			keep(line[begin:])
			return out
		}
		end := len(line) - len(strings.TrimLeft(line[from+mark:], ".!?…。！？\"')”’»*_"))
		wide := strings.HasSuffix(line[:end], "。") || strings.HasSuffix(line[:end], "！") || strings.HasSuffix(line[:end], "？")
		if wide || endsSentence(line[begin:end], line[end:]) {
			keep(line[begin:end])
			begin = end
		}
		from = end
	}
}

var abbreviations = set("e.g.", "i.e.", "etc.", "mr.", "mrs.", "ms.", "dr.", "prof.", "st.", "no.", "nos.", "a.m.", "p.m.", "approx.", "incl.",
	"excl.", "ca.", "vs.", "tel.", "min.", "max.", "inc.", "ltd.", "co.", "dept.", "ext.", "fig.", "u.s.", "u.k.")

// endsSentence says whether a sentence ends between before, which closes with a mark, and after.
func endsSentence(before, after string) bool {
	next, _ := utf8.DecodeRuneInString(after)
	if !unicode.IsSpace(next) {
		return false // a decimal, a time, an address; or the end of the line, where it makes no difference
	}
	if first, _ := utf8.DecodeRuneInString(strings.TrimLeft(after, " \t\"'(“‘«")); unicode.IsLower(first) {
		return false
	}
	word := strings.ToLower(before[strings.LastIndexAny(before, " \t(")+1:])
	initial := len(word) == 2 && word[1] == '.' && unicode.IsLetter(rune(word[0])) // J. Smith
	return !abbreviations[word] && !initial
}

// instruction matches the sentences of a prompt that tell the agent what to be or do: the second person ("You are…", "Your
// tone…", "…you must…"), what begins with one of the verbs and words that orders begin with, and what speaks of the agent or the
// customer as of a third. They are not for customers: only a prompt's other sentences, its facts ("We are open from 9 to 5."), are
// quoted. It errs towards silence: a fact in the second person ("You can pay by card") belongs in the knowledge.
var instruction = regexp.MustCompile(`(?i)^\W*(you|your|you're|never|always|do|don't|only|please|if|when|be|keep|use|answer|reply|respond|say|tell|ask|offer|refer|` +
	`quote|act|speak|write|help|make|avoid|stay|remember|pretend|greet|give|include|provide|explain|focus|follow|address|sign|end|start|begin|` +
	`try|let|assume|ignore|limit|format|mention|return|under no circumstances|rules?|instructions?|tone|the (user|customer|assistant|agent|bot)|` +
	`this (agent|assistant|bot|prompt))\b|\byou (are|must|should|shall|will|may not|can't|cannot)\b|\b(the|a) (user|assistant|bot)\b|\{\{`)
