package render

import (
	"fmt"
	"strings"
	"unicode"
)

// What WhatsApp makes of a mark is documented by examples only. Taken together they say: a pair of marks formats what
// stands between them on one line, when there is no space inside next to them and no letter or digit outside. Marks are
// written only where this holds; what a reader of these rules would take for a mark, and is none, is replaced.

var marks = []struct {
	style style
	char  rune
	other rune // looks like char and formats nothing
}{
	{bold, '*', '∗'},
	{italic, '_', '＿'},
	{strike, '~', '∼'},
	{mono, '`', '‵'},
}

// role is why a character stands in a line.
type role uint8

const (
	literal role = iota
	address      // of a link: replaced by its percent-encoding, which leads to the same page
	codeText
	formats
)

// marker writes one line of WhatsApp text.
type marker struct {
	seen  []rune // what the customer will see, without marks
	solid []bool // of each: a mark beside it would be no mark
	at    int    // how much of it is written
	line  []rune
	roles []role
}

func whatsappLine(runs []run) string {
	runs = trimStyles(runs)
	m := &marker{}
	for _, r := range runs {
		for _, char := range r.text {
			m.seen, m.solid = append(m.seen, char), append(m.solid, isWord(char) || r.isBare())
		}
	}
	m.write(runs, 0)
	for _, mark := range marks {
		m.neutralize(mark.char, mark.style)
	}
	return m.String()
}

// trimStyles takes the style from the white space at the edge of a stretch, where no mark can stand beside it, and from
// addresses, which a mark would become a part of.
func trimStyles(runs []run) []run {
	var out []run
	for i, r := range runs {
		if r.isBare() {
			r.style = 0
		}
		if r.style == 0 || r.style&mono != 0 {
			out = append(out, r)
			continue
		}
		var before, after style
		if len(out) > 0 {
			before = out[len(out)-1].style
		}
		if i+1 < len(runs) && !runs[i+1].isBare() {
			after = runs[i+1].style
		}
		text := strings.TrimLeftFunc(r.text, unicode.IsSpace)
		head := r.text[:len(r.text)-len(text)]
		body := strings.TrimRightFunc(text, unicode.IsSpace)
		out = append(out, run{text: head, style: r.style & before}, run{text: body, style: r.style, link: r.link},
			run{text: text[len(body):], style: r.style & after})
	}
	return merge(out)
}

// write writes runs of which all have the given styles, whose marks stand already.
func (m *marker) write(runs []run, within style) {
	for len(runs) > 0 {
		s, n := stretch(runs, within)
		if s == 0 {
			m.text(runs[0])
			runs = runs[1:]
			continue
		}
		char, role := m.markOf(runs[:n], s)
		if char != 0 {
			m.put(char, role)
		}
		m.write(runs[:n], within|s)
		if char != 0 {
			m.put(char, role)
		}
		runs = runs[n:]
	}
}

// stretch is the style that begins at the first run and goes on for longest, and for how many runs.
func stretch(runs []run, without style) (longest style, n int) {
	for _, s := range []style{bold, italic, strike} {
		if s&without != 0 {
			continue
		}
		i := 0
		for i < len(runs) && runs[i].style&s != 0 {
			i++
		}
		if i > n {
			longest, n = s, i
		}
	}
	return longest, n
}

// markOf is the mark to write around runs; 0 if it would not be understood. A strike is then written all the same, for its
// sense.
func (m *marker) markOf(runs []run, s style) (rune, role) {
	char := rune(0)
	for _, mark := range marks {
		if mark.style == s {
			char = mark.char
		}
	}
	length, fine := 0, true
	for _, r := range runs {
		length += len([]rune(r.text))
		fine = fine && (r.style&mono == 0 || !strings.ContainsRune(r.text, char))
	}
	switch {
	case fine && m.stands(length):
		return char, formats
	case s == strike:
		return char, literal
	}
	return 0, 0
}

// stands says that marks around the next length characters would be understood.
func (m *marker) stands(length int) bool {
	end := m.at + length
	return length > 0 && !unicode.IsSpace(m.seen[m.at]) && !unicode.IsSpace(m.seen[end-1]) &&
		(m.at == 0 || !m.solid[m.at-1]) && (end == len(m.seen) || !m.solid[end])
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

func (m *marker) put(char rune, r role) {
	m.line, m.roles = append(m.line, char), append(m.roles, r)
}

func (m *marker) text(r run) {
	chars := []rune(r.text)
	as := literal
	switch {
	case r.isBare():
		as = address
	case r.style&mono != 0 && !strings.ContainsRune(r.text, '`') && m.stands(len(chars)):
		m.put('`', formats)
		defer m.put('`', formats)
		as = codeText
	}
	for _, char := range chars {
		m.put(char, as)
	}
	m.at += len(chars)
}

// neutralize replaces what would be taken for the mark char: a literal that opens before one that closes, one beside marks
// of its kind, and any within them.
func (m *marker) neutralize(char rune, s style) {
	var opens, pair, formatted, open bool
	literals := 0
	inside := make([]bool, len(m.line))
	for i, r := range m.line {
		if r == char && m.roles[i] == formats {
			formatted, open = true, !open
			continue
		}
		inside[i] = open
		if r != char || m.roles[i] == codeText {
			continue
		}
		literals++
		pair = pair || opens && m.closes(i)
		opens = opens || m.opens(i)
	}
	if s == mono {
		pair = literals > 1
	}
	if !formatted && !pair {
		return
	}
	for i, r := range m.line {
		if r == char && m.roles[i] <= address && (inside[i] || s == mono || m.opens(i) || m.closes(i)) {
			m.line[i] = -char
		}
	}
}

func (m *marker) opens(i int) bool {
	return (i == 0 || !isWord(m.line[i-1])) && i+1 < len(m.line) && !unicode.IsSpace(m.line[i+1])
}

func (m *marker) closes(i int) bool {
	return i > 0 && !unicode.IsSpace(m.line[i-1]) && (i+1 == len(m.line) || !isWord(m.line[i+1]))
}

func (m *marker) String() string {
	var out strings.Builder
	for i, r := range m.line {
		switch {
		case r >= 0 && (i > 0 || r != '>' || m.roles[i] != literal):
			out.WriteRune(r)
		case r >= 0:
			out.WriteRune('›') // a quote otherwise
		case m.roles[i] == address:
			fmt.Fprintf(&out, "%%%02X", -r)
		default:
			for _, mark := range marks {
				if mark.char == -r {
					out.WriteRune(mark.other)
				}
			}
		}
	}
	return out.String()
}
