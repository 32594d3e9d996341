package render_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rivo/uniseg"

	"parley/agent/render"
	"parley/store"
)

// The numbers are those of 3GPP TS 23.040, 9.2.3.24.1, at their edges.
func TestSegments(t *testing.T) {
	t.Parallel()
	a, u := "a", "好"
	for _, tt := range []struct {
		text     string
		n        int
		encoding string
	}{
		{a, 1, "GSM-7"},
		{strings.Repeat(a, 160), 1, "GSM-7"},
		{strings.Repeat(a, 161), 2, "GSM-7"},
		{strings.Repeat(a, 306), 2, "GSM-7"},
		{strings.Repeat(a, 307), 3, "GSM-7"},
		{strings.Repeat(a, 158) + "€", 1, "GSM-7"},
		{strings.Repeat(a, 159) + "€", 2, "GSM-7"},
		{strings.Repeat(a, 152) + "€" + strings.Repeat(a, 152), 3, "GSM-7"}, // the € moves to the second part as a whole
		{strings.Repeat(a, 151) + "€" + strings.Repeat(a, 153), 2, "GSM-7"},
		{strings.Repeat("|", 80), 1, "GSM-7"},
		{strings.Repeat("|", 81), 2, "GSM-7"},
		{strings.Repeat(u, 70), 1, "UCS-2"},
		{strings.Repeat(u, 71), 2, "UCS-2"},
		{strings.Repeat(u, 134), 2, "UCS-2"},
		{strings.Repeat(u, 135), 3, "UCS-2"},
		{strings.Repeat("🎉", 35), 1, "UCS-2"},
		{strings.Repeat("🎉", 36), 2, "UCS-2"},
		{strings.Repeat(u, 66) + "🎉" + strings.Repeat(u, 66), 3, "UCS-2"}, // the surrogates stay together
		{strings.Repeat(u, 65) + "🎉" + strings.Repeat(u, 67), 2, "UCS-2"},
		{strings.Repeat(a, 69) + "ç", 1, "UCS-2"}, // of the cedillas only Ç is in GSM-7
		{"", 0, "GSM-7"},
	} {
		got := render.Render(store.SMS, tt.text, 0)
		if got.Text != tt.text || got.Segments != tt.n || got.Encoding != tt.encoding {
			t.Errorf("%.20q…: %d %s, want %d %s; text %.20q…", tt.text, got.Segments, got.Encoding, tt.n, tt.encoding, got.Text)
		}
	}
}

// TestAnIndentedLineIsText, and what follows it is not lost.
func TestAnIndentedLineIsText(t *testing.T) {
	t.Parallel()
	for markdown, want := range map[string]string{
		"Hello.\n\n    indented\n\nMore.":   "Hello.\n\nindented\n\nMore.",
		"Hello.\n\n\tindented *x*\n\nMore.": "Hello.\n\nindented _x_\n\nMore.",
		"# Title\n    indented\n\nMore.":    "*Title*\n\nindented\n\nMore.",
		"```\ncode\n```\n    text\n\nMore.": "```code```\n\ntext\n\nMore.",
		"> quoted\n>\n>     text\n\nMore.":  "> quoted\n> text\n\nMore.",
	} {
		if got := render.Render(store.WhatsApp, markdown, 0).Text; got != want {
			t.Errorf("%q: %q, want %q", markdown, got, want)
		}
	}
}

func TestChannelLimits(t *testing.T) {
	t.Parallel()
	for channel, limit := range map[store.Channel]int{store.SMS: 1600, store.WhatsApp: 4096, store.Instagram: 999, store.LinkedIn: 8000} {
		fits := strings.Repeat("a", limit)
		if got := render.Render(channel, fits, 0); got.Text != fits || got.Truncated {
			t.Errorf("%s: %d characters do not fit", channel, limit)
		}
		long := strings.Repeat("word ", limit/5+1) + "end"
		for _, profile := range []int{0, limit * 2} {
			got := render.Render(channel, long, profile)
			n := utf8.RuneCountInString(got.Text)
			if !got.Truncated || n > limit || n < limit-10 || !strings.HasPrefix(long, strings.TrimRight(got.Text, ".…")) {
				t.Errorf("%s: %d characters, truncated %t", channel, n, got.Truncated)
			}
		}
	}
	if got := render.Render(store.Instagram, strings.Repeat("ü", 600), 0); len(got.Text) > 1000 || len(got.Text) < 995 || !got.Truncated {
		t.Errorf("%d bytes for Instagram", len(got.Text))
	}
	if got := render.Render(store.WhatsApp, strings.Repeat("🎉", 4096), 0); !got.Truncated {
		t.Error("twice WhatsApp's limit in UTF-16 is within it")
	}
	for _, channel := range []store.Channel{store.Voice, store.Gmail, store.Outlook, "fax"} {
		long := strings.Repeat("Word. ", 10_000) + "End."
		if got := render.Render(channel, long, 0); got.Truncated || got.Text != long {
			t.Errorf("%s has a limit of its own", channel)
		}
	}
}

func TestEndlessRepliesAreCut(t *testing.T) {
	t.Parallel()
	for _, channel := range store.Channels {
		if got := render.Render(channel, strings.Repeat("Word. ", 100_000), 0); !got.Truncated || len(got.Text) > 1<<16+10 {
			t.Errorf("%s: %d bytes, truncated %t", channel, len(got.Text), got.Truncated)
		}
	}
}

func TestNothingToShowIsShownAsItIsWritten(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		"![](https://example.com/x.png)": "![](https://example.com/x.png)",
		"![a map](https://example.com/)": "a map",
		"---":                            "---",
		"<div></div>":                    "<div></div>",
		"<script>x</script>":             "<script>x</script>",
		"```\n```":                       "```\n```",
		"1986.":                          "1986.",
		"[Note]: https://example.com":    "[Note]: https://example.com",
		"**":                             "**",
		"#":                              "#",
		">":                              ">",
	} {
		for _, channel := range store.Channels {
			got := render.Render(channel, reply, 0)
			switch {
			case strings.TrimSpace(got.Text) == "":
				t.Errorf("%s: nothing of %q", channel, reply)
			case channel != store.Voice && channel != store.WhatsApp && channel != store.SMS && got.Text != want:
				t.Errorf("%s: %q of %q, want %q", channel, got.Text, reply, want)
			}
		}
	}
	if got := render.Render(store.Voice, "🎉", 0); got.Text != "🎉" {
		t.Errorf("speech of an emoji: %q", got.Text)
	}
	for _, reply := range []string{"", " \n\t ", "\x00\x1b"} {
		if got := render.Render(store.Gmail, reply, 0); got != (render.Rendered{}) {
			t.Errorf("%+v of %q", got, reply)
		}
	}
}

// A customer sees whole characters: no family without its children, no flag cut into letters, no letter without its accent.
func TestCutsFallBetweenGraphemeClusters(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		strings.Repeat("👨‍👩‍👧‍👦", 20), strings.Repeat("🇩🇪🇫🇷", 20), strings.Repeat("e\u0301", 60), strings.Repeat("👍🏽", 40), strings.Repeat("한국어", 30),
		strings.Repeat("क्षि", 20), strings.Repeat("a👩‍🚀 ", 20),
	} {
		whole := clusters(text)
		for limit := 1; limit < utf8.RuneCountInString(text); limit++ {
			for _, channel := range []store.Channel{store.WhatsApp, store.SMS, store.Instagram, store.Gmail} {
				got := render.Render(channel, text, limit)
				if got.Text == "." {
					continue // not even one cluster fits
				}
				beginning := clusters(strings.TrimRight(got.Text, ".…"))
				for i, c := range beginning {
					if whole[i] != c {
						t.Fatalf("%s, %d: %q within %q", channel, limit, got.Text, text)
					}
				}
			}
		}
	}
}

func clusters(text string) (out []string) {
	for g := uniseg.NewGraphemes(text); g.Next(); {
		out = append(out, g.Str())
	}
	return out
}

// Whatever the limit, the marks that are left are whole: WhatsApp would show none of them.
func TestCutsLeaveNoMarkOpen(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 15 {
		reply := marked(rng)
		for limit := 1; limit < 100; limit++ {
			got := render.Render(store.WhatsApp, reply, limit)
			if n := utf8.RuneCountInString(got.Text); n > limit {
				t.Fatalf("%d characters of %d: %q", n, limit, got.Text)
			}
			if seen := seenOnWhatsApp(got.Text); strings.ContainsAny(seen, "*_~`") {
				t.Fatalf("limit %d of %q: %q shows marks: %q", limit, reply, got.Text, seen)
			}
		}
	}
}

// marked is a reply of words in all styles that has no mark characters of its own.
func marked(rng *rand.Rand) string {
	var b strings.Builder
	styles := []string{"", "", "", "**", "*", "~~", "`", "***", "__", "_"}
	words := []string{"bread", "nine.", "(open)", "é", "Sunday,", "好的", "x"}
	for range 4 + rng.IntN(4) {
		b.WriteString([]string{"", "# ", "- ", "> ", "1. ", "- > "}[rng.IntN(6)])
		for range 1 + rng.IntN(4) {
			s, inner := styles[rng.IntN(len(styles))], ""
			for range 1 + rng.IntN(3) {
				inner += words[rng.IntN(len(words))] + " "
			}
			fmt.Fprintf(&b, "%s%s%s ", s, strings.TrimSpace(inner), s)
		}
		b.WriteString("\n\n")
	}
	return b.String()
}

// Goldmark alone takes more than ten seconds for some of these.
func TestHostileMarkdownTakesNoTime(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const size = 32 << 10
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	ladder := func(step func(i int) string) string {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			b.WriteString(step(i))
		}
		return b.String()
	}
	replies := map[string]string{
		"quote ladder":  ladder(func(i int) string { return strings.Repeat(">", i) + " a\n" }),
		"list ladder":   ladder(func(i int) string { return strings.Repeat(" ", i*2) + "- a\n" }),
		"shallow lists": ladder(func(i int) string { return strings.Repeat(" ", i%60*2) + "- a\n" }),
		"references":    ladder(func(i int) string { return fmt.Sprintf("[a%d]: /b\n\n[a%d]\n\n", i, i) }),
		"backticks":     ladder(func(i int) string { return "a" + strings.Repeat("`", i) }),
		"wide table":    "|" + strings.Repeat("a|", size/8) + "\n|" + strings.Repeat("-|", size/8) + "\n" + strings.Repeat("|\n", size/4),
		"brackets":      strings.Repeat("[", size/2) + strings.Repeat("]", size/2),
		"links":         strings.Repeat("[a", size/8) + strings.Repeat("](b)", size/8),
		"deep quote":    strings.Repeat(">", size/2) + strings.Repeat("\na", size/4),
		"deep list":     strings.Repeat("- ", size/4) + strings.Repeat("a\n\n", size/6),
		"one word":      fill("a"),
		"clusters":      "a" + fill("\u0301"),
	}
	for _, s := range []string{
		"> ", "- ", "*", "_", "*_", "**a ", "*a_ ", "[", "[a](", "![", "`", "``` \n", "`a``b", "<", "<a ", "a <!A ", "a <? ", "~~a ",
		"|", "| a |\n|-|\n", "\\", "&", "http://", "www.a ", "a@b.c ", "1. ", "- - \n", "* a\n", "[a]: b\n", "[a]\n", "\n", "\t", "# ",
		"a\n=\n", "<!--", "a***b", "[a]: <", "[a](((", "[a](<", "[![a](b)", "- [ ] ", "https://a.b/?(", "*a **b ", "**a** ", "https://a.b/_x_ ",
		"- [a](http://b.c)\n", "\\* ", "\\*a\\* ", "**a**\n", "$1 ", "a.b.c@",
	} {
		replies[s] = fill(s)
	}
	for name, reply := range replies {
		channel := store.WhatsApp
		if strings.ContainsAny(name, "@$.") { // what speech looks for
			channel = store.Voice
		}
		began := cpu()
		render.Render(channel, reply, 1000)
		if took := cpu() - began; took > 5*time.Second { // a tenth, without -race
			t.Errorf("%s: %q took %s", channel, name, took)
		}
	}
}

// The bounds behind it: markup of which no person could see the use is not understood, long lists and tables are.
func TestMarkupBeyondSenseIsText(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		strings.Repeat("*a* ", 700):                                                                "*a* *a*",
		strings.Repeat("> ", 70) + "a":                                                             "> > >",
		"**b** " + strings.Repeat("- ", 70) + "a":                                                  "b - - -",
		strings.Repeat("- **[a](http://b.c)**\n", 200):                                             "- a (http://b.c)\n- a",
		"|a|b|\n|-|-|\n" + strings.Repeat("|1|2|\n", 1000):                                         "- a: 1; b: 2\n- a: 1",
		strings.Repeat("|a", 100) + "\n" + strings.Repeat("|-", 100) + strings.Repeat("\n|1", 100): "|a|a",
	} {
		if got := render.Render(store.Gmail, reply, 0); !strings.HasPrefix(got.Text, want) {
			t.Errorf("%.40q… became %.40q…, want %q", reply, got.Text, want)
		}
	}
}
