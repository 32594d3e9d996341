package render

import (
	"bytes"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// The bounds of what is parsed. Parts of goldmark are quadratic; within these bounds the worst input takes some tenths of
// a second, and no reply that a customer could read comes near them.
const (
	MaxInput   = 64 << 10 // bytes; what follows is cut off, and reported
	maxNesting = 16       // quotes and lists within each other; what is deeper stands at this depth
	maxOpeners = 64       // quote and list markers that begin one line
	maxMarks   = 1000     // characters of inline markup in one block
	maxCells   = 8192     // of a table
)

// markdown is CommonMark with tables, strikethrough, task lists and bare links, short of two things that models do not mean:
// text that is indented is not code, and a block that begins with a tag is text with tags, not HTML.
var markdown = parser.NewParser(
	parser.WithBlockParsers(
		util.Prioritized(parser.NewSetextHeadingParser(), 100),
		util.Prioritized(parser.NewThematicBreakParser(), 200),
		util.Prioritized(parser.NewListParser(), 300),
		util.Prioritized(parser.NewListItemParser(), 400),
		util.Prioritized(parser.NewATXHeadingParser(), 600),
		util.Prioritized(parser.NewFencedCodeBlockParser(), 700),
		util.Prioritized(parser.NewBlockquoteParser(), 800),
		util.Prioritized(paragraphs{parser.NewParagraphParser()}, 1000),
	),
	parser.WithInlineParsers(append(parser.DefaultInlineParsers(),
		util.Prioritized(extension.NewTaskCheckBoxParser(), 0),
		util.Prioritized(extension.NewStrikethroughParser(), 500),
		util.Prioritized(extension.NewLinkifyParser(extension.WithLinkifyAllowedProtocols([]string{"http:", "https:"})), 999),
	)...),
	parser.WithParagraphTransformers(append(parser.DefaultParagraphTransformers(),
		util.Prioritized(tables{extension.NewTableParagraphTransformer()}, 200),
	)...),
	parser.WithASTTransformers(util.Prioritized(extension.NewTableASTTransformer(), 0)),
)

// paragraphs may begin with an indented line: without a parser for code nothing else takes it, and goldmark drops what no parser
// takes, to the end of the text.
type paragraphs struct{ parser.BlockParser }

func (paragraphs) CanAcceptIndentedLine() bool { return true }

// tables leaves tables beyond maxCells as they are written: goldmark fills every row up to the width of the header.
type tables struct{ parser.ParagraphTransformer }

func (t tables) Transform(node *ast.Paragraph, reader text.Reader, pc parser.Context) {
	wide := 0
	for i := range node.Lines().Len() {
		line := node.Lines().At(i)
		wide = max(wide, bytes.Count(line.Value(reader.Source()), []byte("|"))+1)
	}
	if wide*node.Lines().Len() <= maxCells {
		t.ParagraphTransformer.Transform(node, reader, pc)
	}
}

// parse reads Markdown, and says whether it had to cut off its end.
func parse(source string) (doc []block, cut bool) {
	source = tidy(source)
	if cut = len(source) > MaxInput; cut {
		end := MaxInput
		for !utf8.RuneStart(source[end]) {
			end--
		}
		source = source[:end]
	}
	if hostile(source) {
		return plain(source), cut
	}
	b := builder{source: []byte(source), used: map[string]bool{}}
	root := markdown.Parse(text.NewReader(b.source))
	b.findReferences(root)
	return b.blocks(root, 0), cut
}

// tidy makes the source valid UTF-8, with line feeds as the only line ends, and without control characters.
func tidy(source string) string {
	source = strings.ReplaceAll(strings.ToValidUTF8(source, "\uFFFD"), "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r' || r == '\v' || r == '\f' || r == '\u0085' || r == '\u2028' || r == '\u2029':
			return '\n'
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, source)
}

// hostile says that the source is markup more than text, of the kinds that take goldmark long.
func hostile(source string) bool {
	marks := 0
	for line := range strings.Lines(source) {
		n, rest := openers(line)
		if n > maxOpeners {
			return true
		}
		if strings.TrimSpace(rest) == "" || n > 0 {
			marks = 0 // another block begins
		}
		for _, c := range []byte(rest) {
			switch c {
			case '*', '_', '~', '[', ']', '<', '!', '`', '&', '\\':
				marks++
			}
		}
		if marks > maxMarks {
			return true
		}
	}
	return false
}

// openers counts the quote and list markers that a line begins with.
func openers(line string) (n int, rest string) {
	for rest = strings.TrimSpace(line); ; n++ {
		marker := opener.FindString(rest)
		if marker == "" {
			return n, rest
		}
		rest = rest[len(marker):]
	}
}

var opener = regexp.MustCompile(`^(?:>|[-*+]\s|\d{1,9}[.)]\s)\s*`)

// plain is the source as paragraphs of text, with nothing in it understood.
func plain(source string) []block {
	var doc []block
	var runs []run
	flush := func() {
		if len(runs) > 0 {
			doc, runs = append(doc, block{kind: paragraph, runs: runs[:len(runs)-1]}), nil
		}
	}
	for line := range strings.Lines(source) {
		if line = strings.TrimSpace(line); line == "" {
			flush()
			continue
		}
		runs = append(runs, run{text: line}, run{text: "\n"})
	}
	flush()
	return doc
}
