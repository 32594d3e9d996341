package embedded

import (
	"math"
	"slices"

	"parley/store"
)

// BM25's parameters, at their usual values, and how much more a word says that stands in the title: titles name the subject.
const (
	k1         = 1.2
	b          = 0.75
	titleBoost = 2
)

// How long a passage may become. A short snippet is one passage: its sentences explain each other. A long one has many subjects,
// and as one passage it would know some of the words of every question.
const (
	wholeSnippet   = 12 // sentences; a longer snippet is cut into passages of at most so many
	passageAtLeast = 4  // sentences, before an empty line ends a passage
)

// index is what is known of one version of an agent. It never changes.
type index struct {
	terms    map[string]int32 // each stem's number
	idf      []float64        // how rare each is among the passages
	postings [][]posting      // the passages that each stands in
	passages []passage
	rare     float64             // the idf of a stem that no passage has
	spelling map[byte][]spelling // the texts' words by their first letter, to mend slips with
}

type posting struct {
	passage int32
	titled  bool    // the stem stands in the passage's title
	weight  float64 // of the stem in the passage, but for its idf: BM25's second factor
}

// passage is what is found: a snippet, or a part of one. Its quotes are what is answered.
type passage struct {
	quotes []quote
	title  []int32 // the stems that its title has, ascending
}

// quote is a sentence that can be quoted.
type quote struct {
	text  string
	terms []int32 // the stems that it answers to, ascending
}

func newIndex(agent *store.Agent) *index {
	x := &builder{index: index{terms: map[string]int32{}, spelling: map[byte][]spelling{}}, spelt: map[string]bool{}}
	for _, k := range agent.Knowledge {
		x.addSnippet(k)
	}
	for _, s := range sentences(agent.Prompt) {
		if s.role == statement && !instruction.MatchString(s.text) {
			x.addPassage(nil, []sentence{s}) // a prompt has no title to hold its facts together: each stands alone
		}
	}
	return x.finish()
}

// builder makes an index. In it a posting's weight still is a count.
type builder struct {
	index
	lengths []float64       // of each passage, in words
	spelt   map[string]bool // the words that stand in spelling
}

// addSnippet cuts a snippet into passages.
func (x *builder) addSnippet(k store.Knowledge) {
	all := sentences(k.Text)
	title := telling(words(k.Title))
	if len(all) <= wholeSnippet {
		x.addPassage(title, all)
		return
	}
	above := title
	begin := 0
	for i, s := range all {
		if n := i - begin; s.role == heading || n == wholeSnippet || s.gap && n >= passageAtLeast {
			x.addPassage(above, all[begin:i])
			begin = i
		}
		if s.role == heading {
			above = append(slices.Clone(title), telling(words(s.text))...)
		}
	}
	x.addPassage(above, all[begin:])
}

// addPassage indexes sentences under a title. What they ask or open is not quoted, but its words lead to what is.
func (x *builder) addPassage(title []term, sentences []sentence) {
	var p passage
	counts := map[int32]float64{}
	length := 0.0
	count := func(terms []term) []int32 {
		ids := make([]int32, len(terms))
		for i, t := range terms {
			ids[i] = x.number(t)
			counts[ids[i]]++
			length++
		}
		return ids
	}
	titled := map[int32]bool{}
	for _, id := range count(title) {
		titled[id] = true
	}
	var asked, opened []int32
	for _, s := range sentences {
		if s.gap {
			opened = nil
		}
		ids := count(telling(words(s.text)))
		switch s.role {
		case question:
			asked = append(asked, ids...)
		case opener:
			opened = ids
		case heading:
			opened = nil
		case statement:
			ids = append(append(ids, asked...), opened...)
			asked = nil
			slices.Sort(ids)
			ids = slices.Clip(slices.Compact(ids))
			p.quotes = append(p.quotes, quote{s.text, ids})
		}
	}
	if len(p.quotes) == 0 {
		return
	}
	number := int32(len(x.passages))
	for id, n := range counts {
		if titled[id] {
			p.title = append(p.title, id)
		}
		x.postings[id] = append(x.postings[id], posting{number, titled[id], n})
	}
	slices.Sort(p.title)
	x.passages = append(x.passages, p)
	x.lengths = append(x.lengths, length)
}

// number is that of the term's stem, a new one if it has none yet.
func (x *builder) number(t term) int32 {
	id, ok := x.terms[t.stem]
	if !ok {
		id = int32(len(x.postings))
		x.terms[t.stem] = id
		x.postings = append(x.postings, nil)
	}
	if len(t.word) >= shortestRoot && !x.spelt[t.word] {
		x.spelt[t.word] = true
		x.spelling[t.word[0]] = append(x.spelling[t.word[0]], spelling{t.word, id})
	}
	return id
}

// finish turns counts into weights.
func (x *builder) finish() *index {
	all := float64(len(x.passages))
	idf := func(passages int) float64 { return math.Log(1 + (all-float64(passages)+0.5)/(float64(passages)+0.5)) }
	mean := 0.0
	for _, n := range x.lengths {
		mean += n / all
	}
	x.idf = make([]float64, len(x.postings))
	for id, in := range x.postings {
		x.idf[id] = idf(len(in))
		for i, p := range in {
			in[i].weight = p.weight * (k1 + 1) / (p.weight + k1*(1-b+b*x.lengths[p.passage]/mean))
			if p.titled {
				in[i].weight *= titleBoost
			}
		}
	}
	x.rare = idf(0)
	return &x.index
}
