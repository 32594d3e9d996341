package render

import (
	"strconv"
	"strings"
)

// writer lays a document out as the text of a chat, an SMS or an e-mail.
type writer struct {
	whatsapp bool // with WhatsApp's marks; else without any
}

func (w writer) text(doc []block) string { return strings.Join(w.blocks(doc, 0, true), "\n") }

// blocks gives the lines of blocks; a gap is a blank line between them. depth counts what they stand in.
func (w writer) blocks(blocks []block, depth int, gap bool) []string {
	var out []string
	for _, b := range blocks {
		var lines []string
		switch b.kind {
		case code:
			lines = w.code(b, depth)
		case quote:
			for _, line := range w.blocks(b.blocks, depth+1, true) {
				if line != "" {
					lines = append(lines, "> "+line)
				}
			}
		case list:
			lines = w.list(b, depth)
		case table:
			for _, r := range records(b.rows) {
				lines = append(lines, indent("- ", w.paragraph(r))...)
			}
		case heading:
			runs := make([]run, len(b.runs))
			for i, r := range b.runs {
				r.style |= bold
				runs[i] = r
			}
			lines = w.paragraph(runs)
		default:
			lines = w.paragraph(b.runs)
		}
		if gap && len(out) > 0 && len(lines) > 0 {
			out = append(out, "")
		}
		out = append(out, lines...)
	}
	return out
}

func (w writer) list(b block, depth int) []string {
	var out []string
	for i, it := range b.blocks {
		marker := "- "
		if b.ordered {
			marker = strconv.Itoa(b.start+i) + ". "
		}
		lines := indent(marker, w.blocks(it.blocks, depth+1, b.loose))
		if b.loose && len(out) > 0 {
			out = append(out, "")
		}
		out = append(out, lines...)
	}
	return out
}

// indent puts a list's marker before the first of an item's lines, and sets the others off below it.
func indent(marker string, lines []string) []string {
	if len(lines) == 0 {
		return []string{strings.TrimSpace(marker)}
	}
	out := make([]string, len(lines))
	for i, line := range lines {
		switch {
		case i == 0:
			out[i] = marker + line
		case line != "":
			out[i] = "  " + line
		}
	}
	return out
}

// paragraph gives the lines of a leaf.
func (w writer) paragraph(runs []run) []string {
	var out []string
	for _, line := range lines(spellLinks(runs)) {
		if len(line) == 0 {
			continue
		}
		if w.whatsapp {
			out = append(out, whatsappLine(line))
		} else {
			out = append(out, plainLine(line))
		}
	}
	return out
}

// code gives the lines of a code block: on WhatsApp in three backticks, unless the code has such itself.
func (w writer) code(b block, depth int) []string {
	var text strings.Builder
	for _, r := range b.runs {
		text.WriteString(r.text)
	}
	body := strings.Trim(text.String(), "\n")
	if strings.TrimSpace(body) == "" {
		return nil
	}
	lines := strings.Split(body, "\n")
	switch {
	case !w.whatsapp:
	case strings.Contains(body, "```") || strings.HasPrefix(body, "`") || strings.HasSuffix(body, "`"):
		for i, line := range lines {
			lines[i] = whatsappLine([]run{{text: line}})
		}
	case depth == 0:
		return strings.Split("```"+body+"```", "\n")
	default: // each line has a marker before it, which must not stand within the backticks
		for i, line := range lines {
			if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "`") && !strings.HasSuffix(line, "`") {
				lines[i] = "```" + line + "```"
			} else {
				lines[i] = whatsappLine([]run{{text: line}})
			}
		}
	}
	return lines
}

// spellLinks puts the address of a link behind its text, or in its place if the text says the same.
func spellLinks(runs []run) []run {
	var out []run
	for i, r := range runs {
		l := r.link
		if l == nil || l.bare {
			out = append(out, r)
			continue
		}
		if i > 0 && runs[i-1].link == l {
			continue // was taken with the first
		}
		text := ""
		n := i
		for ; n < len(runs) && runs[n].link == l; n++ {
			text += runs[n].text
		}
		address := strings.TrimPrefix(strings.TrimPrefix(l.url, "mailto:"), "tel:")
		spelled := run{text: address, link: &link{url: l.url, bare: true}}
		if text = strings.TrimSpace(text); text == "" || sameAddress(text, address) && address == l.url {
			out = append(out, spelled)
			continue
		}
		for _, r := range runs[i:n] {
			r.link = nil
			out = append(out, r)
		}
		if !sameAddress(text, address) {
			out = append(out, run{text: " ("}, spelled, run{text: ")"})
		}
	}
	return out
}

func sameAddress(text, address string) bool {
	bare := func(s string) string {
		s = strings.ToLower(strings.TrimSpace(s))
		for _, prefix := range []string{"https://", "http://", "www."} {
			s = strings.TrimPrefix(s, prefix)
		}
		return strings.NewReplacer(" ", "", "-", "").Replace(strings.TrimSuffix(s, "/"))
	}
	return bare(text) == bare(address)
}

// plainLine keeps of all styles only the strike: without it, what no longer holds would read as if it did.
func plainLine(line []run) string {
	var out strings.Builder
	struck := false
	for _, r := range line {
		if now := r.style&strike != 0; now != struck {
			out.WriteByte('~')
			struck = now
		}
		out.WriteString(r.text)
	}
	if struck {
		out.WriteByte('~')
	}
	return out.String()
}

// records makes sentences of a table's rows: each cell behind the name of its column.
func records(rows [][][]run) [][]run {
	if len(rows) == 0 {
		return nil
	}
	header, body := rows[0], rows[1:]
	if len(body) == 0 {
		header, body = nil, rows
	}
	var out [][]run
	for _, row := range body {
		var record []run
		for i, cell := range row {
			if len(cell) == 0 {
				continue
			}
			if len(record) > 0 {
				record = append(record, run{text: "; "})
			}
			if i < len(header) && len(header[i]) > 0 {
				record = append(append(record, header[i]...), run{text: ": "})
			}
			record = append(record, cell...)
		}
		if len(record) > 0 {
			out = append(out, record)
		}
	}
	return out
}
