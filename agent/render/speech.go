package render

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// speech is a document as a voice says it: sentences one after the other. What is struck out is not said.
func speech(doc []block) string {
	said := sentences(doc)
	for i, s := range said {
		if i < len(said)-1 || len(doc) != 1 || doc[0].kind != paragraph {
			said[i] = sentence(s)
		}
	}
	return strings.Join(said, " ")
}

func sentences(doc []block) []string {
	var out []string
	add := func(prefix string, runs []run) {
		if s := say(prefix + spoken(runs)); s != "" {
			out = append(out, s)
		}
	}
	for _, b := range doc {
		switch b.kind {
		case quote:
			out = append(out, sentences(b.blocks)...)
		case list:
			for i, it := range b.blocks {
				said := sentences(it.blocks)
				if b.ordered && len(said) > 0 {
					said[0] = strconv.Itoa(b.start+i) + ": " + said[0]
				}
				out = append(out, said...)
			}
		case table:
			for _, record := range records(b.rows) {
				add("", record)
			}
		default:
			add("", b.runs)
		}
	}
	return out
}

// spoken is the text of runs, line breaks as spaces.
func spoken(runs []run) string {
	var out strings.Builder
	for _, r := range runs {
		if r.style&strike == 0 {
			out.WriteString(strings.ReplaceAll(r.text, "\n", " "))
		}
	}
	text := out.String()
	if rest, ok := strings.CutPrefix(text, "[x] "); ok {
		return "done: " + rest
	}
	if rest, ok := strings.CutPrefix(text, "[ ] "); ok {
		return "to do: " + rest
	}
	return text
}

// sentence ends a text as a sentence ends.
func sentence(text string) string {
	text = strings.TrimRight(text, ",; ")
	if last, _ := utf8.DecodeLastRuneInString(text); text == "" || endsSentence(last) {
		return text
	}
	return text + "."
}

var (
	spokenURL   = regexp.MustCompile(`(?i)\b(?:https?://|www\.)[^\s<>"]*[^\s<>".,;:!?'()\[\]*_~]`)
	spokenEmail = regexp.MustCompile(`[\pL\pN][\pL\pN.+_-]*@[\pL\pN-]+(?:\.[\pL\pN-]+)+`)
	spokenMoney = regexp.MustCompile(`([$€£¥])\s?(\d[\d.,]*\d|\d)(?:\s?(million|billion|thousand|[kKmMbB])\b)?`)
	currencies  = map[string]string{"$": "dollar", "€": "euro", "£": "pound", "¥": "yen"}
	magnitudes  = map[string]string{"k": " thousand", "m": " million", "b": " billion"}
)

// say turns a text into words: what a voice would spell out, read as a symbol's name or stumble over is put as a person would
// say it, in English, or left out. A bare address is said as its host.
func say(text string) string {
	text = spokenURL.ReplaceAllStringFunc(text, func(u string) string {
		_, rest, ok := strings.Cut(u, "://")
		if !ok {
			rest = u
		}
		host := rest[:len(rest)-len(strings.TrimLeftFunc(rest, func(r rune) bool { return !strings.ContainsRune("/?#", r) }))]
		host = host[strings.LastIndexByte(host, '@')+1:]
		host, _, _ = strings.Cut(host, ":")
		return strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(host), "www."), ".", " dot ")
	})
	text = spokenEmail.ReplaceAllStringFunc(text, func(e string) string {
		return strings.NewReplacer("@", " at ", ".", " dot ", "+", " plus ", "_", " underscore ", "-", " dash ").Replace(e)
	})
	text = spokenMoney.ReplaceAllStringFunc(text, func(m string) string {
		part := spokenMoney.FindStringSubmatch(m)
		amount, unit := part[2], currencies[part[1]]
		if magnitude, short := magnitudes[strings.ToLower(part[3])]; short {
			amount += magnitude
		} else if part[3] != "" {
			amount += " " + part[3]
		}
		if amount != "1" && unit != "yen" {
			unit += "s"
		}
		return " " + amount + " " + unit
	})
	return settle(pronounce([]rune(text)))
}

// words are the symbols that have a name.
var words = map[rune]string{
	'&': " and ", '%': " percent ", '@': " at ", '+': " plus ", '=': " equals ", '°': " degrees ", '×': " times ",
	'÷': " divided by ", '±': " plus or minus ", '−': " minus ", '§': " section ", '$': " dollars ", '€': " euros ",
	'£': " pounds ", '¥': " yen ", '…': ", ", '(': ", ", ')': ", ", '–': ", ", '—': ", ", '―': ", ",
}

// comparisons are said where spaces stand around them or a digit follows; else they are brackets of some kind.
var comparisons = map[rune]string{'<': " less than ", '>': " more than ", '≤': " at most ", '≥': " at least ", '~': " about ", '≈': " about "}

// pronounce replaces symbols, one by one.
func pronounce(text []rune) string {
	var out strings.Builder
	at := func(i int) rune {
		if i < 0 || i >= len(text) {
			return ' '
		}
		return text[i]
	}
	for i, r := range text {
		before, after := at(i-1), at(i+1)
		between := unicode.IsDigit(before) && unicode.IsDigit(after)
		word, named := words[r]
		comparison, compares := comparisons[r]
		switch {
		case (r == '–' || r == '—') && between:
			out.WriteString(" to ")
		case (r == '-' || r == '−') && unicode.IsSpace(before) && unicode.IsDigit(after):
			out.WriteString(" minus ")
		case r == '-' && (after == '-' || unicode.IsSpace(before) && unicode.IsSpace(after)):
			out.WriteString(", ")
		case r == '*' && between:
			out.WriteString(" times ")
		case r == '-' && (isWord(before) || isWord(after)), r == '/' && between:
			out.WriteRune(r)
		case r == '#' && unicode.IsDigit(after):
			out.WriteString(" number ")
		case compares && (unicode.IsDigit(after) || unicode.IsSpace(before) && unicode.IsSpace(after)):
			out.WriteString(comparison)
		case named:
			out.WriteString(word)
		case r == '\'' || r == '’' || r == '‘':
			if isWord(before) && isWord(after) {
				out.WriteByte('\'')
			}
		case (r == '\u200c' || r == '\u200d') && unicode.IsLetter(before) && unicode.IsLetter(after):
			out.WriteRune(r) // they join letters of Persian and of the Indic scripts
		case unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Variation_Selector, r) || unicode.Is(unicode.Me, r):
		case isWord(r) || unicode.IsNumber(r):
			out.WriteRune(r)
		case unicode.IsMark(r) && (isWord(before) || unicode.IsMark(before)):
			out.WriteRune(r)
		case unicode.Is(unicode.Po, r) && !strings.ContainsRune("\"*\\/#†‡•·§¶‰※", r):
			out.WriteRune(r)
		case unicode.In(r, unicode.Pi, unicode.Pf) || r == '"' || r == '„':
		default:
			out.WriteByte(' ')
		}
	}
	return out.String()
}

// settle puts the white space and the punctuation in order that dropped symbols leave behind.
func settle(text string) string {
	var out []rune
	space := false
	for _, r := range text {
		switch {
		case unicode.IsSpace(r):
			space = true
			continue
		case strings.ContainsRune(".,;:!?", r):
			last := rune(0)
			if len(out) > 0 {
				last = out[len(out)-1]
			}
			switch {
			case last == 0, r == ',' && strings.ContainsRune(".,;:!?", last), r == '.' && strings.ContainsRune(".!?", last),
				(r == ';' || r == ':') && strings.ContainsRune(";:", last):
				continue
			case last == ',':
				out[len(out)-1] = r
				space = false
				continue
			}
			space = false
		}
		if space && len(out) > 0 {
			out = append(out, ' ')
		}
		space = false
		out = append(out, r)
	}
	return strings.TrimRight(string(out), ",; ")
}
