package render

// kind is what a block of a document is.
type kind uint8

const (
	paragraph kind = iota
	heading
	code
	quote
	list
	item
	table
)

// block is a piece of a document that stands on lines of its own. A leaf has runs (a table, rows of them); the others hold
// blocks.
type block struct {
	kind    kind
	level   int  // of a heading: 1 to 6
	ordered bool // of a list
	start   int  // of an ordered list: its first number
	loose   bool // of a list: blank lines stand between its items
	runs    []run
	rows    [][][]run // of a table: rows of cells, the first row its header
	blocks  []block
}

// style is how a run is set off from its neighbours.
type style uint8

const (
	bold style = 1 << iota
	italic
	strike
	mono
)

// run is a stretch of text of one style. A line break is a run of its own, of the text "\n"; only in a code block do line
// breaks stand within a run.
type run struct {
	text  string
	style style
	link  *link // of neighbours that are one link: the same pointer
}

// link is where a run leads. Its address is safe: http, https, mailto or tel.
type link struct {
	url  string
	bare bool // the text is the address itself, as it stood in the Markdown
}

func (r run) isBreak() bool { return r.text == "\n" }

// isBare says that the run is an address, which is never cut in two or set off.
func (r run) isBare() bool { return r.link != nil && r.link.bare }

// merge joins neighbours that do not differ.
func merge(runs []run) []run {
	out := runs[:0:0]
	for _, r := range runs {
		last := len(out) - 1
		if last >= 0 && out[last].style == r.style && out[last].link == r.link && !out[last].isBreak() && !r.isBreak() {
			out[last].text += r.text
			continue
		}
		if r.text != "" {
			out = append(out, r)
		}
	}
	return out
}

// leaves calls f with the runs of each leaf of the document, in reading order.
func leaves(doc []block, f func([]run)) {
	for _, b := range doc {
		switch {
		case b.rows != nil:
			for _, row := range b.rows {
				for _, cell := range row {
					f(cell)
				}
			}
		case b.blocks != nil:
			leaves(b.blocks, f)
		default:
			f(b.runs)
		}
	}
}

// lines splits runs at their line breaks.
func lines(runs []run) [][]run {
	var out [][]run
	var line []run
	for _, r := range runs {
		if r.isBreak() {
			out, line = append(out, line), nil
			continue
		}
		line = append(line, r)
	}
	return append(out, line)
}
