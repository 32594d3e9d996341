package agent

import (
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

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
	channel store.Channel
	limit   int // characters; 0: none
	say     func(string)

	block  string // Markdown of the paragraph that has begun
	plain  int    // bytes of it that were said as they are
	said   strings.Builder
	count  int // characters of it
	paused bool
	over   string // what is beyond the limit, from its last character on
}

func newVoice(channel store.Channel, limit int, say func(string)) *voice {
	return &voice{channel: channel, limit: limit, say: say}
}

// hear takes the next piece of Markdown.
func (v *voice) hear(delta string) {
	v.block += delta
	for {
		i := paragraphEnd(v.block)
		if i < 0 {
			break
		}
		rest := strings.TrimLeft(v.block[i:], "\n")
		v.block = v.block[:i]
		v.pause()
		v.block = rest
	}
	if n := plainPrefix(v.block); n > v.plain {
		v.speak(v.block[v.plain:n])
		v.plain = n
	}
}

// paragraphEnd is where a blank line ends the paragraph, outside of a fence; -1 if it goes on.
func paragraphEnd(block string) int {
	for from := 0; ; {
		i := strings.Index(block[from:], "\n\n")
		if i < 0 {
			return -1
		}
		i += from
		if strings.Count("\n"+block[:i], "\n```")%2 == 0 {
			return i
		}
		from = i + 1
	}
}

// plainPrefix is how much of a paragraph means the same with and without Markdown, whatever follows it. A space at its end may be
// the paragraph's, and waits.
func plainPrefix(block string) int {
	end := 0
	for i, r := range block {
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

// pause ends the paragraph.
func (v *voice) pause() {
	block, plain := v.block, v.plain
	v.block, v.plain = "", 0
	if strings.TrimSpace(block) == "" {
		return
	}
	shown := render.Render(v.channel, block, 0).Text
	if rest, ok := strings.CutPrefix(shown, block[:plain]); ok {
		v.speak(rest)
	} else { // what came later made more of the beginning than its words
		v.speak(render.Render(v.channel, block[plain:], 0).Text)
	}
	v.paused = true
}

// speak says a text, up to the limit.
func (v *voice) speak(text string) {
	if text == "" {
		return
	}
	if v.paused {
		text, v.paused = "\n\n"+text, false
	}
	if n := utf8.RuneCountInString(text); v.limit > 0 && v.count+n >= v.limit { // the last character may have to be the ellipsis
		runes := []rune(text)
		room := max(0, v.limit-v.count-1)
		v.over += string(runes[room:])
		text = string(runes[:room])
	}
	if text == "" {
		return
	}
	v.count += utf8.RuneCountInString(text)
	v.said.WriteString(text)
	v.say(text)
}

// end says what is left, and returns all that was said.
func (v *voice) end() string {
	v.pause()
	if last := v.over; last != "" {
		if utf8.RuneCountInString(last) > 1 {
			last = "…"
		}
		v.said.WriteString(last)
		v.say(last)
	}
	return v.said.String()
}
