package embedded

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	enough    = 0.45 // coverage below which a message is declined
	elsewhere = 0.4  // what a word that only other passages know weighs against a passage: it says that the message is on the subject
	idle      = 0.2  // what an unknown word of chatter weighs, of an unknown word's weight
	hint      = 0.4  // what a hint counts when passages are compared, of what a word of the message counts
	alsoGood  = 0.6  // of the best sentence's weight: what a further one must have to be quoted beside it
	opening   = 0.25 // the same for the passage's first sentence, which says what the others go into
	maxQuoted = 3    // sentences of an answer
)

// query is a message as an index sees it.
type query struct {
	known   []int32 // the terms that the agent's texts have
	asked   []int32 // those of them that say how something is asked for, and count for finding alone
	hints   []int32 // terms that the message has not, and that help a little to find what it means
	unknown float64 // the weight of what they lack
}

func (x *index) query(terms []term) query {
	var q query
	add := func(to *[]int32, id int32) {
		if !slices.Contains(*to, id) {
			*to = append(*to, id)
		}
	}
	tries := 0
	for _, t := range terms {
		stem := t.stem
		id, known := x.terms[stem]
		if !known && !chatter[stem] && !asking[stem] && tries < mostMended {
			tries++
			id, known = x.mended(t.word)
		}
		switch {
		case known && asking[stem]:
			add(&q.asked, id)
		case known:
			add(&q.known, id)
		case asking[stem] || isNumber(stem):
		case chatter[stem]:
			q.unknown += idle * x.rare
		default:
			q.unknown += x.rare
		}
	}
	return q
}

// answer quotes what answers the query within limit characters (0: any number), or nothing.
func (x *index) answer(q query, limit int) string {
	if best := x.find(q); best != nil {
		return best.quote(x, q, limit)
	}
	return ""
}

// find is the passage that answers the query best, nil if none does.
//
// The best is that of the highest BM25 score times coverage: BM25 alone prefers a passage that is full of one of the query's words
// to one that has them all.
func (x *index) find(q query) *passage {
	score := make([]float64, len(x.passages))
	covered := make([]float64, len(x.passages))
	on := 0.0 // the weight of all the query's terms that the agent knows
	for _, id := range q.known {
		on += x.idf[id]
		for _, p := range x.postings[id] {
			score[p.passage] += x.idf[id] * p.weight
			covered[p.passage] += x.idf[id]
		}
	}
	for _, id := range q.asked {
		for _, p := range x.postings[id] {
			score[p.passage] += x.idf[id] * p.weight
		}
	}
	for _, id := range q.hints {
		for _, p := range x.postings[id] {
			score[p.passage] += hint * x.idf[id] * p.weight
		}
	}
	var best *passage
	top := 0.0
	for i, c := range covered {
		if c == 0 {
			continue
		}
		coverage := c / (c + elsewhere*(on-c) + q.unknown)
		if s := score[i] * coverage; coverage >= enough && s > top {
			best, top = &x.passages[i], s
		}
	}
	return best
}

// quote picks the sentences that know most of the query, and gives them in their order. One that does not fit into limit is
// left out for the next best.
func (p *passage) quote(x *index, q query, limit int) string {
	weights := make([]float64, len(p.quotes))
	order := make([]int, len(p.quotes))
	for i, s := range p.quotes {
		order[i] = i
		weights[i] = x.weigh(q, s.terms)
	}
	// Of equals, the earlier: a snippet begins with what matters.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(weights[b], weights[a]) })
	most := weights[order[0]]
	need, needOpening := alsoGood*most, opening*most
	if x.weigh(q, p.title) > most || p.isAbout(q.known) {
		need, needOpening = 0, 0 // it asks for no more than the title says: the answer is the snippet as a whole
	}
	var picked []int
	length := 0
	for rank, i := range order {
		if rank > 0 && weights[i] < need && (i > 0 || weights[i] < needOpening) {
			continue
		}
		n := utf8.RuneCountInString(p.quotes[i].text) + min(1, length)
		if limit > 0 && length+n > limit {
			continue
		}
		length += n
		if picked = append(picked, i); len(picked) == maxQuoted {
			break
		}
	}
	slices.Sort(picked)
	out := make([]string, len(picked))
	for i, n := range picked {
		out[i] = p.quotes[n].text
	}
	return strings.Join(out, " ")
}

// isAbout says whether the title has all the terms.
func (p *passage) isAbout(terms []int32) bool {
	for _, id := range terms {
		if _, has := slices.BinarySearch(p.title, id); !has {
			return false
		}
	}
	return true
}

// weigh is how much of the query is among terms.
func (x *index) weigh(q query, terms []int32) float64 {
	sum := 0.0
	for _, ids := range [][]int32{q.known, q.asked} {
		for _, id := range ids {
			if _, has := slices.BinarySearch(terms, id); has {
				sum += x.idf[id]
			}
		}
	}
	return sum
}
