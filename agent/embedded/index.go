package embedded

import (
	"math"
	"strings"
	"unicode"

	"github.com/kljensen/snowball/english"

	"parley/store"
)

// BM25's parameters, at their usual values, and what a title's words count beside those of the text.
const (
	k1          = 1.2
	b           = 0.75
	titleWeight = 2
	elsewhere   = 0.4 // what a known word that a doc lacks weighs against it, beside an unknown one
)

// index is what is known of one version of an agent.
type index struct {
	docs  []doc
	known map[string]float64 // how rare each stem is among the docs: BM25's idf
	rare  float64            // the idf of a stem that no doc has
	mean  float64            // length of a doc
}

// doc is a snippet: what is found. Its sentences are what is quoted.
type doc struct {
	counts    map[string]float64
	length    float64
	sentences []sentence
}

type sentence struct {
	text  string
	stems map[string]bool
}

func newIndex(agent *store.Agent) *index {
	x := &index{known: map[string]float64{}}
	for _, k := range agent.Knowledge {
		x.add(k.Title, sentences(k.Text))
	}
	var facts []string
	for _, s := range sentences(agent.Prompt) {
		if !instruction.MatchString(s) {
			facts = append(facts, s)
		}
	}
	for _, f := range facts { // a prompt has no title to hold its facts together: each stands alone
		x.add("", []string{f})
	}
	for _, d := range x.docs {
		x.mean += d.length / float64(len(x.docs))
		for stem := range d.counts {
			x.known[stem]++
		}
	}
	idf := func(docs float64) float64 { return math.Log(1 + (float64(len(x.docs))-docs+0.5)/(docs+0.5)) }
	for stem, docs := range x.known {
		x.known[stem] = idf(docs)
	}
	x.rare = idf(0)
	return x
}

func (x *index) add(title string, texts []string) {
	d := doc{counts: map[string]float64{}}
	count := func(words []string, weight float64) {
		for _, stem := range stems(words) {
			d.counts[stem] += weight
			d.length += weight
		}
	}
	count(words(title), titleWeight)
	for _, text := range texts {
		w := words(text)
		count(w, 1)
		s := sentence{text: text, stems: map[string]bool{}}
		for _, stem := range stems(w) {
			s.stems[stem] = true
		}
		d.sentences = append(d.sentences, s)
	}
	if len(d.sentences) > 0 {
		x.docs = append(x.docs, d)
	}
}

// score is BM25 of the doc for the query, and its coverage: the share of the query's weight that the doc knows. A word of which
// the agent's other texts know weighs less against it, since it says that the message is on the agent's subject.
func (x *index) score(d *doc, query []string) (score, coverage float64) {
	total := 0.0
	for _, stem := range query {
		weight, known := x.known[stem]
		n := d.counts[stem]
		if n > 0 {
			score += weight * n * (k1 + 1) / (n + k1*(1-b+b*d.length/x.mean))
		}
		switch {
		case asking[stem], !known && isNumber(stem):
		case n > 0:
			coverage += weight
			total += weight
		case known:
			total += elsewhere * weight
		default:
			total += x.rare
		}
	}
	if total == 0 {
		return 0, 0
	}
	return score, coverage / total
}

// isNumber matches the numbers of orders, telephones and the like, which no text can know.
func isNumber(stem string) bool {
	return len(stem) >= 4 && strings.Trim(stem, "0123456789") == ""
}

// words are a text's words in lower case. One with hyphens counts whole and in its parts: an e-mail is an email.
func words(text string) []string {
	text = strings.ReplaceAll(strings.ToLower(text), "’", "'")
	var out []string
	for _, w := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '\'' && r != '-' }) {
		if parts := strings.Split(w, "-"); len(parts) > 1 {
			out = append(append(out, parts...), strings.Join(parts, ""))
		} else {
			out = append(out, w)
		}
	}
	return out
}

// stems reduces words to the stems of those that say something, each as often as it comes.
func stems(words []string) []string {
	out := make([]string, 0, len(words))
	for _, w := range words {
		w = strings.Trim(w, "'")
		if before, _, ok := strings.Cut(w, "'"); ok {
			w = before // shop's, I'd
		}
		if len(w) < 2 || stopWords[w] {
			continue
		}
		out = append(out, english.Stem(w, false))
	}
	return out
}

// stopWords say nothing about the subject of a message.
var stopWords = set(strings.Fields(`a about after all also am an and any are as at be because been before being between both but by can cannot could
	did do does doing don doesn didn won isn aren wasn couldn shouldn down during each else few for from further get gets getting got had has have
	having he her here hers him his how i i'd i'll i'm i've if in into is it its just let like me more most my myself need no nor not now of off on
	once one only or other our ours out over own please same she should so some something such tell than that the their theirs them then there
	these they thing things this those through to too under until up us very want wanted was we were what which while whom why
	will with would yes you your yours hello hi hey thanks thank know many take takes give go goes going
	ll ve re ok okay maybe really actually possible way anyone anything else check find look see show ask say explain wonder question`)...)

// asking are the stems that say how something is asked for. They help to find where it is answered, and say nothing about
// whether it is.
var asking = set(stems(strings.Fields("when where who come long much cost price"))...)
