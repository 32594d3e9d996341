package render

import (
	"html"
	"strconv"
	"strings"
)

// markup is a document as HTML for the body of an e-mail. It is safe because nothing of the reply reaches it but text, which
// is escaped, and the addresses of links, of which link vouches for the scheme; tags of the reply's own, images and
// attributes never do.
func markup(doc []block) string {
	var w htmlWriter
	w.blocks(doc)
	return strings.TrimSuffix(w.String(), "\n")
}

type htmlWriter struct{ strings.Builder }

func (w *htmlWriter) blocks(blocks []block) {
	for _, b := range blocks {
		w.block(b)
	}
}

func (w *htmlWriter) block(b block) {
	switch b.kind {
	case heading:
		tag := "h" + strconv.Itoa(b.level)
		w.WriteString("<" + tag + ">")
		w.runs(b.runs)
		w.WriteString("</" + tag + ">\n")
	case code:
		w.WriteString("<pre><code>")
		for _, r := range b.runs {
			w.WriteString(html.EscapeString(r.text))
		}
		w.WriteString("</code></pre>\n")
	case quote:
		w.WriteString("<blockquote>\n")
		w.blocks(b.blocks)
		w.WriteString("</blockquote>\n")
	case list:
		w.list(b)
	case table:
		w.table(b.rows)
	default:
		if len(b.runs) > 0 {
			w.WriteString("<p>")
			w.runs(b.runs)
			w.WriteString("</p>\n")
		}
	}
}

func (w *htmlWriter) list(b block) {
	tag := "ul"
	if b.ordered {
		tag = "ol"
	}
	w.WriteString("<" + tag)
	if b.ordered && b.start != 1 {
		w.WriteString(` start="` + strconv.Itoa(b.start) + `"`)
	}
	w.WriteString(">\n")
	for _, it := range b.blocks {
		w.WriteString("<li>")
		for i, b := range it.blocks {
			if i == 0 && b.kind == paragraph {
				w.runs(b.runs)
				continue
			}
			w.block(b)
		}
		w.WriteString("</li>\n")
	}
	w.WriteString("</" + tag + ">\n")
}

func (w *htmlWriter) table(rows [][][]run) {
	w.WriteString("<table>\n")
	for i, row := range rows {
		tag := "td"
		if i == 0 {
			tag = "th"
		}
		w.WriteString("<tr>")
		for _, cell := range row {
			w.WriteString("<" + tag + ">")
			w.runs(cell)
			w.WriteString("</" + tag + ">")
		}
		w.WriteString("</tr>\n")
	}
	w.WriteString("</table>\n")
}

var tags = []struct {
	style style
	name  string
}{{strike, "del"}, {bold, "strong"}, {italic, "em"}, {mono, "code"}}

func (w *htmlWriter) runs(runs []run) {
	for i, r := range runs {
		if r.link != nil && (i == 0 || runs[i-1].link != r.link) {
			w.WriteString(`<a href="` + html.EscapeString(r.link.url) + `">`)
		}
		if r.isBreak() {
			w.WriteString("<br>\n")
		} else {
			w.text(r)
		}
		if r.link != nil && (i+1 == len(runs) || runs[i+1].link != r.link) {
			w.WriteString("</a>")
		}
	}
}

func (w *htmlWriter) text(r run) {
	for _, t := range tags {
		if r.style&t.style != 0 {
			w.WriteString("<" + t.name + ">")
		}
	}
	w.WriteString(html.EscapeString(r.text))
	for i := len(tags) - 1; i >= 0; i-- {
		if r.style&tags[i].style != 0 {
			w.WriteString("</" + tags[i].name + ">")
		}
	}
}
