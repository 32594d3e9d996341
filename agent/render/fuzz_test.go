package render_test

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/net/html"

	"parley/agent/render"
	"parley/store"
)

func seeds(f *testing.F, add func(string)) {
	f.Helper()
	files, _ := filepath.Glob("testdata/*.txt")
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		_, reply, _ := strings.Cut(string(content), "-- reply --\n")
		add(reply)
	}
	for _, s := range []string{
		"", "a", "\x00", "\xff\xfe", "**a*b**", "*a\n> b*", "`a` b` `c", "~a~b~c~", "***a** b*", "[*a*](http://b.c/_d_)", "a&#42;b&#42; &#0;&#10;c",
		"- - - a", "> 1. > b\n\n    c", "![x]()", "<b>*a</b>*", "|a|\n|-|\n|`b\\|`|", "[a]: b\n\n[a]", "\u2028a\u202e", "👨‍👩‍👧‍👦*a*", "http://a.b/`c`*d*",
		"[x](javascript:a)", "<javascript:a>", "[a](http://b.c/\"onclick=x)", "<a href='x' onclick=y>z</a>", "&lt;script&gt;", "1\ufe0f\u20e3", "\\`a\\`",
	} {
		add(s)
	}
}

// FuzzRender holds for any reply, channel and limit what Render promises.
func FuzzRender(f *testing.F) {
	seeds(f, func(s string) {
		f.Add(s, uint16(0))
		f.Add(s, uint16(17))
	})
	f.Fuzz(func(t *testing.T, reply string, limit uint16) {
		for _, channel := range store.Channels {
			got := render.Render(channel, reply, int(limit))
			if got != render.Render(channel, reply, int(limit)) {
				t.Fatalf("%s: another time it is another", channel)
			}
			n := utf8.RuneCountInString(got.Text)
			switch own := map[store.Channel]int{store.SMS: 1600, store.WhatsApp: 4096, store.Instagram: 1000, store.LinkedIn: 8000}[channel]; {
			case !utf8.ValidString(got.Text) || !utf8.ValidString(got.HTML):
				t.Errorf("%s: not UTF-8: %q", channel, got.Text)
			case strings.ContainsFunc(got.Text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' }):
				t.Errorf("%s: control characters: %q", channel, got.Text)
			case limit > 0 && n > int(limit) || own > 0 && n > own:
				t.Errorf("%s: %d characters of %d: %q", channel, n, limit, got.Text)
			case channel == store.Instagram && len(got.Text) > 1000:
				t.Errorf("%d bytes", len(got.Text))
			case strings.TrimSpace(got.Text) != got.Text:
				t.Errorf("%s: white space around %q", channel, got.Text)
			case got.Text == "" && strings.ContainsFunc(reply, func(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) }):
				t.Errorf("%s: nothing of %q", channel, reply)
			case !got.Truncated && limit > 0 && got != render.Render(channel, reply, 0):
				t.Errorf("%s: the limit %d changed the reply without saying so", channel, limit)
			case (got.Segments != 0 || got.Encoding != "") != (channel == store.SMS) && got.Text != "":
				t.Errorf("%s: segments %d %s", channel, got.Segments, got.Encoding)
			case (got.HTML != "") != (channel == store.Gmail || channel == store.Outlook) && got.Text != "":
				t.Errorf("%s: HTML %q", channel, got.HTML)
			}
		}
	})
}

// FuzzPlain: words and punctuation come out as they went in.
func FuzzPlain(f *testing.F) {
	f.Add("Hello, how are you? We are open (daily) at 7:30!")
	f.Add("a - b / c; d")
	simple := regexp.MustCompile(`^[\pL][\pL\pN ,.?!;:()/'"%+-]*$`)
	f.Fuzz(func(t *testing.T, reply string) {
		reply = strings.Join(strings.Fields(reply), " ")
		if !utf8.ValidString(reply) || !simple.MatchString(reply) || len(reply) > 900 {
			return
		}
		for _, channel := range store.Channels {
			if got := render.Render(channel, reply, 0); channel != store.Voice && got.Text != reply || got.Truncated {
				t.Errorf("%s: %q of %q", channel, got.Text, reply)
			}
		}
	})
}

// FuzzWhatsApp: what a customer sees on WhatsApp, where marks vanish, is what is seen where there are none. So no mark is left
// over, none is missing its partner, and nothing that is no mark acts as one.
func FuzzWhatsApp(f *testing.F) {
	seeds(f, func(s string) { f.Add(s) })
	f.Fuzz(func(t *testing.T, reply string) {
		if len(reply) > 500 {
			return
		}
		marked, plain := render.Render(store.WhatsApp, reply, 0), render.Render(store.LinkedIn, reply, 0)
		if got, want := likeness(seenOnWhatsApp(marked.Text)), likeness(plain.Text); got != want {
			t.Errorf("of %q WhatsApp gets %q and shows %q, want %q", reply, marked.Text, got, want)
		}
	})
}

// likeness takes a text for what it looks like. The tildes of struck text stand in plain text too.
func likeness(text string) string {
	return strings.NewReplacer("∗", "*", "＿", "_", "‵", "`", "›", ">", "%2A", "*", "%5F", "_", "%60", "`", "%7E", "", "∼", "", "~", "").Replace(text)
}

// seenOnWhatsApp reads a message by WhatsApp's rules as its Help Center and its app show them, and takes the marks away.
func seenOnWhatsApp(text string) string {
	type char struct {
		r    rune
		code bool
	}
	var chars []char
	for i, part := range strings.Split(text, "```") {
		for _, r := range part {
			chars = append(chars, char{r, i%2 == 1})
		}
	}
	if strings.Count(text, "```")%2 == 1 {
		return "an open ```"
	}
	word := func(c char) bool { return unicode.IsLetter(c.r) || unicode.IsDigit(c.r) }
	for _, mark := range "`*_~" {
		for open := 0; open < len(chars); open++ {
			if chars[open].code || chars[open].r != mark || open+1 == len(chars) || unicode.IsSpace(chars[open+1].r) || open > 0 && word(chars[open-1]) {
				continue
			}
			for end := open + 1; end < len(chars) && chars[end].r != '\n'; end++ {
				if !chars[end].code && chars[end].r == mark && end > open+1 && !unicode.IsSpace(chars[end-1].r) && (end+1 == len(chars) || !word(chars[end+1])) {
					for i := open + 1; i < end && mark == '`'; i++ {
						chars[i].code = true
					}
					chars = slices.Delete(slices.Delete(chars, end, end+1), open, open+1)
					open = end - 2
					break
				}
			}
		}
	}
	var seen strings.Builder
	for _, c := range chars {
		seen.WriteRune(c.r)
	}
	return seen.String()
}

// gsm7 is the table of 3GPP TS 23.038, 6.2.1, column by column, 6.2.1.1 behind it.
var gsm7 = func() map[rune]int {
	table := map[rune]int{}
	for _, r := range "@£$¥èéùìòÇ\nØø\rÅå" + "Δ_ΦΓΛΩΠΨΣΘΞÆæßÉ" + " !\"#¤%&'()*+,-./" + "0123456789:;<=>?" +
		"¡ABCDEFGHIJKLMNO" + "PQRSTUVWXYZÄÖÑÜ§" + "¿abcdefghijklmno" + "pqrstuvwxyzäöñüà" {
		table[r] = 1
	}
	for _, r := range "\f^{}\\[~]|€" {
		table[r] = 2
	}
	return table
}()

// FuzzSMS cuts the text into parts, one after the other, and counts them.
func FuzzSMS(f *testing.F) {
	seeds(f, func(s string) { f.Add(s) })
	f.Fuzz(func(t *testing.T, reply string) {
		got := render.Render(store.SMS, reply, 0)
		encoding, alone, part := "GSM-7", 160, 153
		for _, r := range got.Text {
			if gsm7[r] == 0 {
				encoding, alone, part = "UCS-2", 70, 67
			}
		}
		size := func(text string) (n int) {
			for _, r := range text {
				if encoding == "GSM-7" {
					n += gsm7[r]
				} else {
					n += len(utf16.Encode([]rune{r}))
				}
			}
			return n
		}
		var sent []string
		for rest := got.Text; rest != ""; {
			end := len(rest)
			if size(rest) > alone || len(sent) > 0 {
				for end = 0; end < len(rest); {
					_, n := utf8.DecodeRuneInString(rest[end:])
					if size(rest[:end+n]) > part {
						break
					}
					end += n
				}
			}
			sent, rest = append(sent, rest[:end]), rest[end:]
		}
		if got.Segments != len(sent) || got.Encoding != encoding {
			t.Errorf("%d %s, want %d %s: %q", got.Segments, got.Encoding, len(sent), encoding, got.Text)
		}
	})
}

// FuzzHTML reads the HTML as a mail program does.
func FuzzHTML(f *testing.F) {
	seeds(f, func(s string) {
		f.Add(s, uint8(0))
		f.Add(s, uint8(9))
	})
	allowed := strings.Fields("p br h1 h2 h3 h4 h5 h6 strong em del code pre blockquote ul ol li table tr th td a")
	f.Fuzz(func(t *testing.T, reply string, limit uint8) {
		markup := render.Render(store.Gmail, reply, int(limit)).HTML
		var open []string
		for tokens := html.NewTokenizer(strings.NewReader(markup)); ; {
			kind := tokens.Next()
			token := tokens.Token()
			switch kind {
			case html.ErrorToken:
				if len(open) > 0 {
					t.Errorf("open at the end: %v in %q", open, markup)
				}
				return
			case html.StartTagToken:
				if !slices.Contains(allowed, token.Data) {
					t.Errorf("<%s> in %q", token.Data, markup)
				}
				for _, a := range token.Attr {
					switch {
					case token.Data == "ol" && a.Key == "start" && regexp.MustCompile(`^\d+$`).MatchString(a.Val):
					case token.Data == "a" && a.Key == "href" && safe(a.Val):
					default:
						t.Errorf("%s=%q in %q", a.Key, a.Val, markup)
					}
				}
				if token.Data != "br" {
					open = append(open, token.Data)
				}
			case html.EndTagToken:
				if len(open) == 0 || open[len(open)-1] != token.Data {
					t.Errorf("</%s> closes %v in %q", token.Data, open, markup)
					return
				}
				open = open[:len(open)-1]
			case html.TextToken:
			default:
				t.Errorf("%s in %q", token, markup)
			}
		}
	})
}

func safe(address string) bool {
	u, err := url.Parse(address)
	return err == nil && slices.Contains([]string{"http", "https", "mailto", "tel"}, u.Scheme)
}
