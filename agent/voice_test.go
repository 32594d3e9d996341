package agent

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"parley/agent/render"
	"parley/store"
)

// speakIn has a voice say a reply that comes in pieces of so many bytes, and returns what it told, piece by piece.
func speakIn(channel store.Channel, maxLength, size int, markdown string) (told []string, shown render.Rendered) {
	v := newVoice(channel, maxLength, func(text string) { told = append(told, text) })
	for len(markdown) > 0 {
		n := min(size, len(markdown))
		for n < len(markdown) && !utf8.RuneStart(markdown[n]) {
			n++
		}
		v.hear(markdown[:n])
		markdown = markdown[n:]
	}
	return told, v.end()
}

func TestAReplyIsSaidAsItsChannelShowsIt(t *testing.T) {
	t.Parallel()
	const W, V, S = store.WhatsApp, store.Voice, store.SMS
	for name, c := range map[string]struct {
		channel   store.Channel
		maxLength int
		markdown  string
		want      string
		truncated bool
	}{
		"paragraphs":                    {W, 0, "We are **open**.\n\n- Tea\n- Cake\n\n1. One\n\n2. Two", "We are *open*.\n\n- Tea\n- Cake\n\n1. One\n\n2. Two", false},
		"a blank line of spaces":        {W, 0, "One.\n  \nTwo.", "One.\n\nTwo.", false},
		"code with blank lines":         {W, 0, "See:\n\n```\na\n\n*b*\n```\n\nDone.", "See:\n\n```a\n\n*b*```\n\nDone.", false},
		"a heading by its underline":    {W, 0, "Our hours\n===\nNine to five.", "Our hours\nNine to five.", false},
		"a rule":                        {W, 0, "Here they are\n---\nTea", "Here they are\nTea", false},
		"speech":                        {V, 0, "Call us (or write). See www.example.com for 5 % off", "Call us, or write. See example dot com for 5 percent off", false},
		"speech of paragraphs":          {V, 0, "We sell\n\n- Tea\n- Cake\n\nAnd more!\n\nBye", "We sell. Tea. Cake. And more! Bye", false},
		"speech of a quotation":         {V, 0, "It says \"open\", don't ask", "It says open, don't ask", false},
		"a text message":                {S, 0, "It’s “fine” – really…", `It's "fine" - really...`, false},
		"cut at a word":                 {W, 30, "We are open from nine to five, and on Sundays.", "We are open from nine to…", true},
		"cut at a sentence":             {W, 20, "We are open. Tomorrow we are not.", "We are open. …", true},
		"cut between paragraphs":        {W, 20, "We are open now.\n\nTomorrow we are not.", "We are open now. …", true},
		"cut in a text message":         {S, 30, "We are open from nine to five, and on Sundays.", "We are open from nine to...", true},
		"cut in speech":                 {V, 30, "We are open from nine to five, and on Sundays.", "We are open from nine to", true},
		"cut in a long word":            {W, 10, strings.Repeat("x", 100), strings.Repeat("x", 8) + "…", true},
		"just as long as may be":        {W, 10, "0123456789", "0123456789", false},
		"one character":                 {W, 1, "Hello", "…", true},
		"two characters of an SMS":      {S, 2, "Hello", "He", true},
		"emoji count twice in the unit": {store.Instagram, 0, strings.Repeat("🧶", 400), strings.Repeat("🧶", 249) + "…", true},
	} {
		for _, size := range []int{1, 3, 1000} {
			told, shown := speakIn(c.channel, c.maxLength, size, c.markdown)
			if shown.Text != c.want || strings.Join(told, "") != c.want || shown.Truncated != c.truncated {
				t.Errorf("%s, in pieces of %d:\nwant %q %v\ngot  %q %v\ntold %q", name, size, c.want, c.truncated, shown.Text, shown.Truncated, told)
			}
		}
	}
}

// TestAReplyIsTheSameWhetherItIsHeardOrNot, however the parts of its Markdown reach over blank lines.
func TestAReplyIsTheSameWhetherItIsHeardOrNot(t *testing.T) {
	t.Parallel()
	parts := []string{
		"**One**", "See [docs][1].", "[1]: https://example.com/docs", "[docs]", "[docs]: <https://example.com>", "1. a", "1. b", "- c", "* d\n* e",
		"  of an item", "```\na\n\n~~~\n\nb\n```", "~~~\n```\n\nx\n~~~", "- f\n\n  ```\n  g\n\n  h\n  ```", "````\n```\n\n*i*\n````",
		"    code", "> j\n> k", "[l](https://example.com/l) *m*", "# n", "| o | p |\n|---|---|\n| q | r |", "text", "- ```\n  s\n\n  t\n  ```", "> ```\n> u\n>\n> v\n> ```", "100 w",
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var reply []string
		for range 1 + random.IntN(5) {
			reply = append(reply, parts[random.IntN(len(parts))])
		}
		markdown := strings.Join(reply, "\n\n")
		for _, channel := range []store.Channel{store.WhatsApp, store.SMS, store.Gmail} {
			_, heard := speakIn(channel, 0, 7, markdown)
			if whole := render.Render(channel, markdown, 0); heard.Text != whole.Text || heard.HTML != whole.HTML {
				t.Fatalf("on %s, %q:\nheard %q\nelse  %q", channel, markdown, heard.Text, whole.Text)
			}
		}
	}
}

func TestWhatIsPlainIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	for channel, want := range map[store.Channel]string{store.WhatsApp: "We are open", store.Voice: "We are", store.Gmail: "We are open"} {
		said := ""
		v := newVoice(channel, 1000, func(text string) { said += text })
		for _, token := range []string{"We ", "are ", "open"} {
			v.hear(token)
		}
		if said != want {
			t.Errorf("%s: told %q", channel, said)
		}
	}
}

func TestAnEndlessReplyIsHeardInTime(t *testing.T) {
	t.Parallel()
	for name, piece := range map[string]string{"blank lines in a fence": "\n\n", "fences": "```\n", "a word": "xxxx", "words": "x ", "paragraphs": "a*b*\n\n"} {
		for _, channel := range []store.Channel{store.Voice, store.SMS, store.Gmail} {
			v := newVoice(channel, 0, func(string) {})
			began := time.Now()
			v.hear("Look:\n```\n")
			if name == "a word" || name == "words" || name == "paragraphs" {
				v = newVoice(channel, 0, func(string) {})
			}
			for range 7000 { // a quarter of as many events as fit into an answer
				v.hear(piece)
			}
			v.end()
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("%s on %s: %v", name, channel, took)
			}
		}
	}
}

func TestAReplyHasAnEndOnEveryChannel(t *testing.T) {
	t.Parallel()
	for _, channel := range store.Channels {
		told, shown := speakIn(channel, 0, 50_000, strings.Repeat("One more *paragraph*.\n\n", 100_000))
		if all := strings.Join(told, ""); all != shown.Text || len(all) > render.MaxInput+10 || !shown.Truncated {
			t.Errorf("%s: told %d bytes, the reply has %d, %v", channel, len(all), len(shown.Text), shown.Truncated)
		}
	}
}

// FuzzVoice: whatever comes in whatever pieces, what was told is the reply, it is within the limit, and not empty.
func FuzzVoice(f *testing.F) {
	for i, seed := range []string{
		"We are **open**.\n\n- Tea\n- Cake", "Title\n===\n\nText\n---\nmore", "```\na\n\nb\n```\n\n~~~\nx", "日本語のとても長いテキスト。" + strings.Repeat("漢字", 900),
		"👩‍👩‍👧‍👦 " + strings.Repeat("🧶 word ", 300), "[a]: http://example.com\n\n[a]", "a_b_c * d * (e) “f”\n\n\n> g", " \n\n x\u0301\u0301 \n \n",
	} {
		f.Add(seed, uint8(i), uint8(1+i), uint16(i*40))
	}
	f.Fuzz(func(t *testing.T, markdown string, channel, size uint8, maxLength uint16) {
		if !utf8.ValidString(markdown) || strings.ContainsRune(markdown, 0) {
			return
		}
		on := store.Channels[int(channel)%len(store.Channels)]
		told, shown := speakIn(on, int(maxLength), int(size)+1, markdown)
		if strings.Join(told, "") != shown.Text {
			t.Errorf("told %q, and the reply is %q", told, shown.Text)
		}
		if !render.LimitOf(on, int(maxLength)).Fits(shown.Text) {
			t.Errorf("on %s, at most %d: %q", on, maxLength, shown.Text)
		}
		if render.Render(on, markdown, int(maxLength)).Text != "" && shown.Text == "" {
			t.Errorf("nothing was told of %q", markdown)
		}
		for _, text := range told {
			if text == "" || !utf8.ValidString(text) {
				t.Errorf("told %q", told)
			}
		}
	})
}
