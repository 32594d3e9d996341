package render

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/rivo/uniseg"

	"parley/store"
)

// Rendered is a reply as its channel shows it.
type Rendered struct {
	Text      string // what the customer reads or hears
	HTML      string // of an e-mail: what stands beside Text
	Truncated bool   // the reply was longer than the channel or its profile takes
	Segments  int    // of an SMS: the messages it is sent and charged as
	Encoding  string // of an SMS: GSM-7 or UCS-2
}

// limit is what a channel takes at most. Zero is any length.
type limit struct {
	units int // of UTF-16: who counts characters counts no more than these
	bytes int // of UTF-8
}

// limits are the channels' own; doc.go says where they stand. The others take any length.
var limits = map[store.Channel]limit{
	store.SMS:       {units: 1600},
	store.WhatsApp:  {units: 4096},
	store.Instagram: {units: 999, bytes: 1000},
	store.LinkedIn:  {units: 8000},
}

// MaxLength is how many characters a channel takes at most; 0: any number.
func MaxLength(channel store.Channel) int { return limits[channel].units }

// Render shows a reply in Markdown as its channel does, in at most maxLength characters and within the channel's own limit.
// A maxLength of 0 is none. An unknown channel gets plain text of any length.
//
// Text is valid UTF-8 without control characters but line feeds. It is empty only if the reply is nothing but white space and
// control characters: a reply of which nothing would be shown is shown as it is written.
func Render(channel store.Channel, markdown string, maxLength int) Rendered {
	doc, truncated := parse(markdown)
	show, mark := shower(channel)
	if truncated {
		doc = cut(doc, len(markdown), mark)
	}
	fits := func(text string) bool { return limits[channel].fits(text) && within(maxLength, text) }
	text := show(doc)
	if text == "" {
		doc = plain(tidy(markdown))
		if text = show(doc); text == "" {
			show = asWritten
			text = show(doc)
		}
	}
	if !fits(text) {
		truncated = true
		short := shorten(doc, mark, show, fits)
		if text = show(short); short == nil {
			text = tiny(asWritten(doc), mark, fits)
			short = []block{{kind: paragraph, runs: []run{{text: text}}}}
		}
		doc = short
	}
	out := Rendered{Text: text, Truncated: truncated}
	switch channel {
	case store.Gmail, store.Outlook:
		out.HTML = markup(doc)
	case store.SMS:
		out.Segments, out.Encoding = segments(text)
	}
	return out
}

// shower is how a channel shows a document as text, and how it marks that more was said.
func shower(channel store.Channel) (show func([]block) string, mark string) {
	switch channel {
	case store.Voice:
		return speech, ""
	case store.SMS:
		return func(doc []block) string { return transliterate(writer{}.text(doc)) }, "..." // an ellipsis is not in GSM 7-bit
	case store.WhatsApp:
		return writer{whatsapp: true}.text, "…"
	}
	return writer{}.text, "…"
}

// asWritten is the last resort of a channel that has no way to show a text: an emoji, to speech.
func asWritten(doc []block) string { return strings.Join(strings.Fields(flatten(doc)), " ") }

func (l limit) fits(text string) bool {
	return (l.bytes == 0 || len(text) <= l.bytes) && within(l.units, text) && (l.units == 0 || units(text) <= l.units)
}

// within says that the text has at most so many characters; 0 is any number.
func within(most int, text string) bool {
	return most <= 0 || len(text) <= most || utf8.RuneCountInString(text) <= most
}

// units counts a text in UTF-16.
func units(text string) (n int) {
	for _, r := range text {
		n += utf16.RuneLen(r)
	}
	return n
}

// tiny is what is left of a reply under a limit that holds no beginning of it with the mark behind.
func tiny(text, mark string, fits func(string) bool) string {
	if mark != "" && fits(mark) {
		return mark
	}
	shown := ""
	for state := -1; text != ""; {
		var cluster string
		if cluster, text, _, state = uniseg.FirstGraphemeClusterInString(text, state); !fits(shown + cluster) {
			break
		}
		shown += cluster
	}
	if shown = strings.TrimSpace(shown); shown == "" {
		return "."
	}
	return shown
}
