package embedded

import (
	"math"
	"strings"
	"unicode"

	"github.com/kljensen/snowball/english"
)

// Bounds that keep a turn cheap whatever a message holds.
const (
	longestWord = 48  // bytes; what is longer is no word of a language, and the stemmer is slow on it
	mostWords   = 300 // words of a message that are read: a message may have 32,000 characters
	mostTerms   = 64  // different stems of a message that are looked for
)

// words are a text's words in lower case. One with hyphens counts whole and in its parts: an e-mail is an email.
func words(text string) []string { return firstWords(text, math.MaxInt) }

// firstWords are about the first n of them.
func firstWords(text string, n int) []string {
	text = strings.ReplaceAll(strings.ToLower(text), "’", "'")
	apart := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) && r != '\'' && r != '-'
	}
	var out []string
	for w := range strings.FieldsFuncSeq(text, apart) {
		if parts := strings.Split(w, "-"); len(parts) > 1 {
			out = append(append(out, parts...), strings.Join(parts, ""))
		} else {
			out = append(out, w)
		}
		if len(out) >= n {
			break
		}
	}
	return out
}

// term is a word that says something, with its stem.
type term struct{ word, stem string }

// telling are those of the words that say something, with their stems, each as often as it comes.
func telling(words []string) []term {
	out := make([]term, 0, len(words))
	for _, w := range words {
		w = strings.Trim(w, "'")
		if before, _, ok := strings.Cut(w, "'"); ok {
			w = before // shop's, I'd
		}
		if len(w) < 2 || len(w) > longestWord || stopWords[w] {
			continue
		}
		out = append(out, term{w, stemOf(w)})
	}
	return out
}

// terms are the different terms of a message, as many as are looked for.
func terms(words []string) []term {
	seen := make(map[string]bool, len(words))
	var different []string
	for _, w := range words {
		if !seen[w] {
			seen[w] = true
			different = append(different, w)
		}
	}
	return distinct(telling(different))
}

func distinct(terms []term) []term {
	seen := make(map[string]bool, len(terms))
	out := terms[:0:0]
	for _, t := range terms {
		if !seen[t.stem] && len(out) < mostTerms {
			seen[t.stem] = true
			out = append(out, t)
		}
	}
	return out
}

// stems are the stems of a list of words, synonyms apart.
func stems(list string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		set[english.Stem(w, false)] = true
	}
	return set
}

// isNumber matches the numbers of orders, telephones and the like, which no text can know.
func isNumber(stem string) bool {
	return len(stem) >= 4 && strings.Trim(stem, "0123456789") == ""
}

// stopWords say nothing about the subject of a message, and are not looked for.
var stopWords = set(strings.Fields(`a about after all also am an and any are as at be because been before being between both but by can cannot could
	did do does doing don doesn didn won isn aren wasn couldn shouldn down during each else few for from further get gets getting never got had has have
	having he her here hers him his how i i'd i'll i'm i've im if in into is it its just let like me more most my myself need no nor not now of off
	on once one only or other our ours out over own please same she should so some something such tell than that the their theirs them then there
	these they thing things item items this those through to too under until up us very want wanted was we were what which while whom why
	will with would yes you your yours hello hi hey thanks thank know many take takes give go goes going
	hasn haven hadn weren wouldn mustn needn hasnt havent hadnt arent wasnt werent wouldnt shouldnt
	im ive id youre dont didnt doesnt isnt cant couldnt wont whats hows thats ur pls plz
	ll ve re ok okay maybe really actually possible way anyone anything else check find look see show ask say explain wonder question`)...)

// asking are the stems that say how something is asked for. They help to find where it is answered, and say nothing about
// whether it is.
var asking = stems(`when where who come long fast quick soon often far much cost times today tomorrow tonight currently morning afternoon evening
	policy info information detail details option method number process procedure condition instruction list
	period window form chart guide range programme program scheme`)
