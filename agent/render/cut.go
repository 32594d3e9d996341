package render

import (
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// shorten gives the longest beginning of the document that fits as show shows it: up to the end of a sentence if that
// leaves most of it, else of a word, else of a grapheme cluster. The cut is made in the document and not in what is shown,
// so that every mark, tag and link is closed or absent. It is nil if nothing fits.
func shorten(doc []block, mark string, show func([]block) string, fits func(string) bool) []block {
	text := flatten(doc)
	sentences, words := breaks(text)
	at := func(offset int) []block { return cut(doc, offset, mark) }
	ok := func(offset int) bool {
		shown := show(at(offset))
		return shown != "" && fits(shown)
	}
	word := longest(words, ok)
	if cluster := longest(clusters(text), ok); word < cluster/2 { // a text without spaces, or a word as long as the limit
		word = cluster
	}
	if word == 0 {
		return nil
	}
	if sentence := longest(sentences, ok); sentence >= word*2/3 {
		return at(sentence)
	}
	return at(word)
}

// longest is the last of the offsets, in ascending order, that is ok; 0 if none is. It gallops: a document far beyond its
// limit costs no more than one a little beyond.
func longest(offsets []int, ok func(int) bool) int {
	end := 1
	for end <= len(offsets) && ok(offsets[end-1]) {
		end *= 2
	}
	begin := end / 2 // as many offsets are ok
	more := sort.Search(min(end-1, len(offsets))-begin, func(i int) bool { return !ok(offsets[begin+i]) })
	if begin+more == 0 {
		return 0
	}
	return offsets[begin+more-1]
}

// flatten is the text of the document's leaves, each ending in a line feed.
func flatten(doc []block) string {
	var text strings.Builder
	leaves(doc, func(runs []run) {
		for _, r := range runs {
			text.WriteString(r.text)
		}
		text.WriteByte('\n')
	})
	return text.String()
}

// breaks are the offsets behind the sentences and the words of a flattened text.
func breaks(text string) (sentences, words []int) {
	previous := ' '
	for i, r := range text {
		switch {
		case unicode.IsSpace(r) && !unicode.IsSpace(previous):
			words = append(words, i)
			if r == '\n' || endsSentence(previous) {
				sentences = append(sentences, i)
			}
		case strings.ContainsRune("。！？", previous): // which need no space
			sentences = append(sentences, i)
		}
		previous = r
	}
	return sentences, words
}

func clusters(text string) []int {
	var offsets []int
	state, offset := -1, 0
	for len(text) > 0 {
		var cluster string
		cluster, text, _, state = uniseg.FirstGraphemeClusterInString(text, state)
		offset += len(cluster)
		offsets = append(offsets, offset)
	}
	return offsets
}

func endsSentence(r rune) bool { return strings.ContainsRune(".!?:…。！？؟।", r) }

// cut is the document up to an offset of its flattened text, with the mark behind. The document stays as it is.
func cut(doc []block, offset int, mark string) []block {
	c := cutter{left: offset, mark: mark}
	out := c.blocks(doc)
	if !c.done {
		c.finish(out)
	}
	return out
}

type cutter struct {
	left int
	mark string
	done bool
}

func (c *cutter) blocks(in []block) []block {
	var out []block
	for _, b := range in {
		if c.done || c.left <= 0 {
			break
		}
		switch {
		case b.rows != nil:
			b.rows = c.rows(b.rows)
			if len(b.rows) == 0 {
				continue
			}
		case b.blocks != nil:
			b.blocks = c.blocks(b.blocks)
			if len(b.blocks) == 0 {
				continue
			}
		default:
			b.runs = c.runs(b.runs)
		}
		out = append(out, b)
	}
	if c.left <= 0 && !c.done {
		c.finish(out)
	}
	return out
}

func (c *cutter) rows(in [][][]run) [][][]run {
	var out [][][]run
	for _, row := range in {
		var cells [][]run
		for _, cell := range row {
			if c.done || c.left <= 0 {
				break
			}
			cells = append(cells, c.runs(cell))
		}
		if len(cells) > 0 {
			out = append(out, cells)
		}
	}
	return out
}

// runs takes what is left to take of a leaf.
func (c *cutter) runs(in []run) []run {
	for i, r := range in {
		if c.left >= len(r.text) {
			c.left -= len(r.text)
			continue
		}
		out := slices.Clone(in[:i])
		if part := strings.TrimRightFunc(r.text[:c.left], unicode.IsSpace); part != "" && !r.isBare() {
			out = append(out, run{text: part, style: r.style})
			for j := i - 1; j >= 0 && r.link != nil && out[j].link == r.link; j-- {
				out[j].link = nil // half a link's text leads nowhere
			}
		}
		c.left = 0
		return c.end(merge(out))
	}
	c.left-- // the line feed behind it
	if c.left < 0 {
		return c.end(slices.Clone(in))
	}
	return in
}

// end puts the mark behind the last text of a leaf.
func (c *cutter) end(runs []run) []run {
	for len(runs) > 0 {
		last := &runs[len(runs)-1]
		if last.text = strings.TrimRightFunc(last.text, unicode.IsSpace); last.text != "" {
			break
		}
		runs = runs[:len(runs)-1]
	}
	if len(runs) == 0 || c.mark == "" {
		c.done = c.done || len(runs) > 0
		return runs
	}
	c.done = true
	last := runs[len(runs)-1]
	r, _ := utf8.DecodeLastRuneInString(last.text)
	if last.link != nil || endsSentence(r) {
		return append(runs, run{text: " " + c.mark})
	}
	return append(runs, run{text: c.mark})
}

// finish marks a document that was cut between two leaves: behind the last text that it still has.
func (c *cutter) finish(doc []block) {
	for i := len(doc) - 1; i >= 0 && !c.done; i-- {
		b := &doc[i]
		switch {
		case b.rows != nil:
			for j := len(b.rows) - 1; j >= 0 && !c.done; j-- {
				row := slices.Clone(b.rows[j])
				for k := len(row) - 1; k >= 0 && !c.done; k-- {
					row[k] = c.end(slices.Clone(row[k]))
				}
				b.rows[j] = row
			}
		case b.blocks != nil:
			c.finish(b.blocks)
		default:
			b.runs = c.end(slices.Clone(b.runs))
		}
	}
}
