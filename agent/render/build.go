package render

import (
	"fmt"
	"html"
	"net/url"
	"strings"
	"unicode"

	"github.com/yuin/goldmark/ast"
	extast "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/util"
)

// builder makes a document of goldmark's tree.
type builder struct {
	source []byte
	used   map[string]bool // labels of the link references that some link uses
	skip   string          // the element whose text is not shown, while within it
}

func (b *builder) findReferences(root ast.Node) {
	use := func(r *ast.ReferenceLink) {
		if r != nil {
			b.used[util.ToLinkReference(r.Value)] = true
		}
	}
	_ = ast.Walk(root, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			use(n.Reference)
		case *ast.Image:
			use(n.Reference)
		}
		return ast.WalkContinue, nil
	})
}

func (b *builder) blocks(parent ast.Node, depth int) []block {
	var out []block
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Heading:
			out = append(out, block{kind: heading, level: n.Level, runs: b.runs(n)})
		case *ast.FencedCodeBlock:
			body := strings.TrimRight(string(n.Lines().Value(b.source)), "\n")
			out = append(out, block{kind: code, runs: merge([]run{{text: strings.ReplaceAll(body, "\t", "    ")}})})
		case *ast.Blockquote:
			out = append(out, atMost(depth, block{kind: quote, blocks: b.blocks(n, depth+1)})...)
		case *ast.List:
			l := block{kind: list, ordered: n.IsOrdered(), start: n.Start, loose: !n.IsTight}
			for i := n.FirstChild(); i != nil; i = i.NextSibling() {
				l.blocks = append(l.blocks, block{kind: item, blocks: b.blocks(i, depth+1)})
			}
			out = append(out, atMost(depth, l)...)
		case *extast.Table:
			out = append(out, block{kind: table, rows: b.rows(n)})
		case *ast.ThematicBreak: // between blocks, which blank lines part anyway
		case *ast.LinkReferenceDefinition:
			if !b.used[util.ToLinkReference(n.Label)] { // nobody refers to it: it was meant to be read
				out = append(out, block{kind: paragraph, runs: []run{{text: fmt.Sprintf("[%s]: %s", n.Label, n.Destination)}}})
			}
		default: // *ast.Paragraph, *ast.TextBlock
			if runs := b.runs(n); len(runs) > 0 {
				out = append(out, block{kind: paragraph, runs: runs})
			}
		}
	}
	return out
}

// atMost is the block, or what it holds if it lies too deep.
func atMost(depth int, b block) []block {
	if depth < maxNesting {
		return []block{b}
	}
	if b.kind == quote {
		return b.blocks
	}
	var out []block
	for _, i := range b.blocks {
		out = append(out, i.blocks...)
	}
	return out
}

func (b *builder) rows(t *extast.Table) [][][]run {
	var rows [][][]run
	for r := t.FirstChild(); r != nil; r = r.NextSibling() {
		var row [][]run
		for c := r.FirstChild(); c != nil; c = c.NextSibling() {
			cell := b.runs(c)
			for i := range cell {
				if cell[i].isBreak() {
					cell[i].text = " "
				}
			}
			row = append(row, merge(cell))
		}
		rows = append(rows, row)
	}
	return rows
}

// runs is the text of a leaf, without white space around its lines.
func (b *builder) runs(leaf ast.Node) []run {
	var all []run
	b.skip = ""
	b.inline(leaf, 0, nil, &all)
	var out []run
	for _, line := range lines(merge(all)) {
		for len(line) > 0 && strings.TrimSpace(line[0].text) == "" {
			line = line[1:]
		}
		for len(line) > 0 && strings.TrimSpace(line[len(line)-1].text) == "" {
			line = line[:len(line)-1]
		}
		if len(line) == 0 {
			continue
		}
		line[0].text = strings.TrimLeftFunc(line[0].text, unicode.IsSpace)
		line[len(line)-1].text = strings.TrimRightFunc(line[len(line)-1].text, unicode.IsSpace)
		if last := len(out) - 1; last >= 0 {
			lineBreak := run{text: "\n"}
			if out[last].link == line[0].link { // one link over two lines
				lineBreak.link = line[0].link
			}
			out = append(out, lineBreak)
		}
		out = append(out, line...)
	}
	return out
}

func (b *builder) inline(parent ast.Node, s style, l *link, out *[]run) {
	add := func(text string) {
		if b.skip == "" {
			*out = append(*out, run{oneLine(text), s, l})
		}
	}
	for n := parent.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Text:
			value := string(n.Segment.Value(b.source))
			if !n.IsRaw() {
				value = unescape(value)
			}
			add(value)
			if n.SoftLineBreak() || n.HardLineBreak() {
				*out = append(*out, run{text: "\n"})
			}
		case *ast.String:
			add(string(n.Value))
		case *ast.CodeSpan:
			b.inline(n, s|mono, l, out)
		case *ast.Emphasis:
			if b.isArithmetic(n) {
				marks := strings.Repeat("*", n.Level)
				add(marks)
				b.inline(n, s, l, out)
				add(marks)
				continue
			}
			b.inline(n, s|[]style{1: italic, 2: bold}[n.Level], l, out)
		case *extast.Strikethrough:
			b.inline(n, s|strike, l, out)
		case *ast.Link:
			b.inline(n, s, newLink(unescape(string(n.Destination))), out)
		case *ast.AutoLink:
			b.autoLink(n, s, l, out)
		case *ast.RawHTML:
			b.tag(string(n.Segments.Value(b.source)), add, out)
		case *extast.TaskCheckBox:
			add(map[bool]string{true: "[x] ", false: "[ ] "}[n.IsChecked])
		default: // *ast.Image: its alternative text
			b.inline(n, s, l, out)
		}
	}
}

func (b *builder) autoLink(n *ast.AutoLink, s style, l *link, out *[]run) {
	label, address := string(n.Label(b.source)), string(n.URL(b.source))
	if n.AutoLinkType == ast.AutoLinkEmail {
		address = "mailto:" + label
	}
	if l == nil {
		if l = newLink(address); l != nil {
			l.bare = true
		}
	}
	if b.skip == "" {
		*out = append(*out, run{oneLine(label), s, l})
	}
}

// isArithmetic says that the stars of an emphasis are none: those of 5*3*2 and a*b*c.
func (b *builder) isArithmetic(n *ast.Emphasis) bool {
	first, ok1 := n.FirstChild().(*ast.Text)
	last, ok2 := n.LastChild().(*ast.Text)
	if !ok1 || !ok2 {
		return false
	}
	before, after := first.Segment.Start-n.Level-1, last.Segment.Stop+n.Level
	if before < 0 || after >= len(b.source) || b.source[before+1] != '*' || b.source[after-1] != '*' {
		return false
	}
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	letter := func(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
	x, y := b.source[before], b.source[after]
	return digit(x) && digit(y) || n.Level == 1 && (digit(x) || letter(x)) && (digit(y) || letter(y))
}

// tag takes an HTML tag out of the text. What only looks like one is text.
func (b *builder) tag(tag string, add func(string), out *[]run) {
	name := strings.TrimLeft(tag, "</")
	if i := strings.IndexFunc(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }); i >= 0 {
		name = name[:i]
	}
	name = strings.ToLower(name)
	switch {
	case strings.HasPrefix(tag, "<!") || strings.HasPrefix(tag, "<?"):
	case name == "script" || name == "style":
		if b.skip = ""; !strings.HasPrefix(tag, "</") {
			b.skip = name
		}
	case strings.Contains(blockTags, " "+name+" "):
		*out = append(*out, run{text: "\n"})
	case !strings.Contains(inlineTags, " "+name+" "):
		add(tag)
	}
}

// The elements of HTML, those that begin a line and those within one.
const (
	blockTags = " address article aside blockquote body br caption center dd details div dl dt fieldset figcaption figure footer" +
		" form h1 h2 h3 h4 h5 h6 head header hr html legend li main nav ol option p pre section select summary table tbody" +
		" td tfoot th thead title tr ul "
	inlineTags = " a abbr acronym area audio b base bdi bdo big button canvas cite code col colgroup data datalist del dfn em" +
		" embed font i iframe img input ins kbd label link map mark math meta meter noscript object output param picture" +
		" progress q rp rt ruby s samp small source span strike strong sub sup svg template textarea time track tt u var" +
		" video wbr "
)

// newLink is nil for an address that must not be followed, leads nowhere outside a web page, or hides where it leads behind a
// user's name.
func newLink(address string) *link {
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.User != nil {
		return nil
	}
	switch strings.ToLower(u.Scheme) {
	case "http", "https":
		if u.Host == "" {
			return nil
		}
	case "mailto", "tel":
		if u.Opaque == "" {
			return nil
		}
	default:
		return nil
	}
	var safe strings.Builder
	for _, r := range strings.TrimSpace(address) {
		switch {
		case unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || strings.ContainsRune("\"'`<>\\^{|}", r):
			safe.WriteString(url.PathEscape(string(r)))
		default:
			safe.WriteRune(r)
		}
	}
	escaped := strings.ReplaceAll(safe.String(), "'", "%27") // PathEscape leaves it
	if _, err := url.Parse(escaped); err != nil {            // in a host nothing is escaped
		return nil
	}
	return &link{url: escaped}
}

// oneLine keeps what a character reference or a code span holds within its line.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\u2028' || r == '\u2029':
			return ' '
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, text)
}

// unescape resolves backslashes and character references.
func unescape(text string) string {
	if !strings.ContainsAny(text, `\&`) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && util.IsPunct(text[i+1]):
			i++
			out.WriteByte(text[i])
		case c == '&':
			reference := characterReference(text[i:])
			out.WriteString(html.UnescapeString(reference))
			i += len(reference) - 1
		default:
			out.WriteByte(c)
		}
	}
	return out.String()
}

// characterReference is the one at the start of the text, or only its &.
func characterReference(text string) string {
	const longest = 32
	end := strings.IndexByte(text[:min(len(text), longest)], ';') + 1
	// A name that begins with that of an older reference without its semicolon would be resolved half.
	if end < 3 || strings.HasSuffix(html.UnescapeString(text[:end]), ";") {
		return "&"
	}
	return text[:end]
}
