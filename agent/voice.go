package agent

import (
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"

	"parley/agent/render"
	"parley/store"
)

// told is what a caller has been told of a reply so far. The turn adds to it and never waits; the caller's goroutine passes it
// on.
type told struct {
	text func(string)
	more chan struct{} // something was added

	mu    sync.Mutex // guards added
	added strings.Builder
}

// newTold makes one for who wants to hear the reply as it comes. Without that it is nil, and hears nothing.
func newTold(text func(string)) *told {
	if text == nil {
		return nil
	}
	return &told{text: text, more: make(chan struct{}, 1)}
}

// changed says when there is something to pass on.
func (t *told) changed() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.more
}

func (t *told) add(text string) {
	t.mu.Lock()
	t.added.WriteString(text)
	t.mu.Unlock()
	select {
	case t.more <- struct{}{}:
	default:
	}
}

// pass tells the caller what was added, in the caller's goroutine.
func (t *told) pass() {
	if t == nil {
		return
	}
	t.mu.Lock()
	text := t.added.String()
	t.added.Reset()
	t.mu.Unlock()
	if text != "" {
		t.text(text)
	}
}

// voice says a reply as it comes, as its channel shows it. What is plain is said at once; from the first mark on, the rest of
// its paragraph waits for its end, for a mark may change what follows it. What was said is the reply.
type voice struct {
	channel   store.Channel
	maxLength int // of the agent's profile
	limit     render.Limit
	say       func(string)

	heard strings.Builder // all of it, in Markdown
	block string          // Markdown of the paragraph that has begun
	lines                 // of it
	plain int             // bytes of the paragraph that were said as they are

	said   strings.Builder
	size   render.Size // of it
	paused bool
	held   string // near the limit: what is not said yet, for the mark of a cut may have to stand in its place
	full   bool   // more was heard than the limit takes
	over   bool   // or than any reply may have
}

const (
	nearLimit = 64 // characters before the limit, from where on whole words alone are said: a cut is to fall between two
	tooShort  = 32 // of a text without spaces, what a cut between two words may cost

	longestWords = 1024 // bytes that are looked through for words: what is longer is none
)

func newVoice(channel store.Channel, maxLength int, say func(string)) *voice {
	return &voice{channel: channel, maxLength: maxLength, limit: render.LimitOf(channel, maxLength), say: say}
}

// hear takes the next piece of Markdown.
func (v *voice) hear(delta string) {
	if room := render.MaxInput - v.heard.Len(); len(delta) > room {
		delta, v.over = cut(delta, max(0, room)), true
	}
	v.heard.WriteString(delta)
	v.block += delta
	for {
		end, next := v.paragraph()
		if end < 0 {
			break
		}
		rest := v.block[next:]
		v.block = v.block[:end]
		v.pause()
		v.block = rest
	}
	if n := v.plainPrefix(); n > v.plain {
		v.speak(v.block[v.plain:n])
		v.plain = n
	}
}

// next ends what a step of the model has said.
func (v *voice) next() {
	v.pause()
	v.heard.WriteString("\n\n")
}

// lines is how far the lines of a paragraph were looked at, and what they say of its end.
type lines struct {
	line    int    // where the last one begins
	looked  int    // how far its end was looked for
	fence   string // of the block of code in which it stands
	loose   bool   // there is an item of a list: more of it may follow a blank line
	blank   int    // where such a blank line begins; 0 if none has come since the last other line
	reaches bool   // there is what may be a link by reference, or where one leads: any later line may have to do with it
}

var (
	fenceLine = regexp.MustCompile("^[ \\t>]*(?:(?:[-*+]|\\d{1,9}[.)])[ \\t]+)*(`{3,}|~{3,})(.*)$")
	looseLine = regexp.MustCompile(`^(?: {2,}|\t| ?(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$))`)
	farLine   = regexp.MustCompile(`\](?:[^(]|$)`)
)

// fenceAfter is the fence of the block of code that goes on after the line, which itself stands in that of fence; "" is none.
func fenceAfter(fence, line string) string {
	m := fenceLine.FindStringSubmatch(line)
	switch {
	case m == nil:
		return fence
	case fence == "" && (m[1][0] == '~' || !strings.Contains(m[2], "`")):
		return m[1]
	case fence != "" && strings.HasPrefix(m[1], fence) && strings.TrimSpace(m[2]) == "":
		return ""
	}
	return fence
}

// paragraph is where the paragraph ends, and where the next one may begin; -1 if it goes on. It ends at a blank line that stands
// neither in a block of code nor in a list: what stands together in Markdown is shown together, so that a reply is the same whether
// it is told as it comes or not. Each line is looked at once.
func (v *voice) paragraph() (end, next int) {
	for {
		n := strings.IndexByte(v.block[v.looked:], '\n')
		if n < 0 {
			v.looked = len(v.block)
			return -1, -1
		}
		begin := v.line
		line := v.block[begin : v.looked+n]
		v.line = v.looked + n + 1
		v.looked = v.line
		fenced, blank := v.fence != "", strings.TrimSpace(line) == ""
		v.fence = fenceAfter(v.fence, line)
		switch {
		case v.reaches || fenced:
		case blank && !v.loose:
			return begin, v.line
		case blank && v.blank == 0:
			v.blank = begin
		case blank:
		case v.blank > 0 && !looseLine.MatchString(line):
			return v.blank, begin
		default:
			v.blank, v.loose, v.reaches = 0, v.loose || looseLine.MatchString(line), farLine.MatchString(line)
		}
	}
}

// plainPrefix is how much of the paragraph means the same with and without Markdown, whatever follows it. A space at its end may
// be the paragraph's, and waits.
func (v *voice) plainPrefix() int {
	if v.channel == store.Voice {
		rest := v.block[v.plain:]
		rest = rest[:min(len(rest), longestWords)]
		if !strings.Contains(rest, " ") {
			return v.plain
		}
		if m := plainSpeech.FindStringSubmatchIndex(rest); m != nil && v.block[0] != ' ' {
			return v.plain + m[3]
		}
		return v.plain
	}
	end := v.plain
	for i, r := range v.block[v.plain:] {
		i += v.plain
		switch {
		case unicode.IsLetter(r):
		case i > 0 && (unicode.IsDigit(r) || strings.ContainsRune(".,;:?!'\"()", r)):
		case i > 0 && r == ' ':
			continue // said with what follows it
		default:
			return end
		}
		end = i + utf8.RuneLen(r)
	}
	return end
}

// plainSpeech are words that are said as they are written, the last one being over: no addresses, no numbers with more to them,
// no brackets.
var plainSpeech = regexp.MustCompile(`^( ?\pL[\pL\pM]*(?:'\pL[\pL\pM]*)?[,.?!]?(?: \pL[\pL\pM]*(?:'\pL[\pL\pM]*)?[,.?!]?)*) `)

// pause ends the paragraph.
func (v *voice) pause() {
	block, plain := v.block, v.plain
	v.block, v.lines, v.plain = "", lines{}, 0
	if strings.TrimSpace(block) == "" {
		return
	}
	shown := render.Show(v.channel, block)
	if rest, ok := strings.CutPrefix(shown, block[:plain]); ok {
		v.speak(rest)
	} else { // what came later made more of the beginning than its words
		rest := block[plain:]
		if underline := setext.FindString(rest); underline != "" {
			rest = "\n" + rest[len(underline):]
		}
		if more := strings.TrimSpace(rest); more != "" {
			gap := rest[:len(rest)-len(strings.TrimLeft(rest, " \n"))]
			v.speak(gap + render.Show(v.channel, more))
		}
	}
	v.paused = true
}

// setext is the line below a line that makes it a heading.
var setext = regexp.MustCompile(`^ *\n {0,3}(?:-+|=+) *(?:\n|$)`)

// gap is what stands between two paragraphs: for speech, the end of a sentence.
func (v *voice) gap() string {
	last := v.said.String()
	switch {
	case v.channel != store.Voice:
		return "\n\n"
	case v.held != "":
		last = v.held
	}
	if endsSentence(strings.TrimRight(last, ",; ")) {
		return " "
	}
	return ". "
}

func endsSentence(text string) bool {
	last, _ := utf8.DecodeLastRuneInString(text)
	return strings.ContainsRune(".!?:…。！？؟।", last)
}

// speak says a text, up to the limit.
func (v *voice) speak(text string) {
	if text == "" || v.full {
		return
	}
	if v.paused {
		text, v.paused = v.gap()+text, false
	}
	v.held += text
	whole := v.size.Plus(render.SizeOf(v.held))
	if v.limit.Holds(whole.Plus(render.SizeOf(strings.Repeat("-", nearLimit)))) {
		v.tell(len(v.held))
		return
	}
	v.full = !v.limit.Holds(whole)
	mark := render.SizeOf(" " + v.limit.Mark)
	end, word := 0, 0 // of what leaves room for the mark: of a cluster, and of a word
	size, inWord := v.size, false
	for rest, state := v.held, -1; rest != ""; {
		var cluster string
		cluster, rest, _, state = uniseg.FirstGraphemeClusterInString(rest, state)
		space := strings.TrimSpace(cluster) == ""
		if space && inWord {
			word = end
		}
		inWord = !space
		if size = size.Plus(render.SizeOf(cluster)); !v.limit.Holds(size.Plus(mark)) {
			break
		}
		end += len(cluster)
	}
	if v.full && end-word > tooShort || v.full && v.said.Len()+word == 0 {
		word = end
	}
	v.tell(word)
}

// tell says the first so many bytes of what is held.
func (v *voice) tell(n int) {
	text := v.held[:n]
	v.held = v.held[n:]
	if text != "" {
		v.size = v.size.Plus(render.SizeOf(text))
		v.said.WriteString(text)
		v.say(text)
	}
}

// end says what is left, and returns the reply: its text is all that was said.
func (v *voice) end() render.Rendered {
	v.pause()
	if v.over && !v.full {
		v.tell(len(v.held))
		v.full = true
	}
	var shown render.Rendered
	if v.channel == store.Gmail || v.channel == store.Outlook || v.full && v.said.Len() == 0 {
		shown = render.Render(v.channel, v.heard.String(), v.maxLength)
	}
	switch {
	case !v.full:
	case v.said.Len() == 0: // nothing of it leaves room for the mark
		v.held = shown.Text
	case endsSentence(v.said.String()) && v.limit.Mark != "":
		v.held = " " + v.limit.Mark
	default:
		v.held = v.limit.Mark
	}
	v.tell(len(v.held))
	shown.Text, shown.Truncated = v.said.String(), v.full || shown.Truncated
	if v.channel == store.SMS {
		shown.Segments, shown.Encoding = render.Segments(shown.Text)
	}
	return shown
}
