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

// Limit is what a text on a channel may come to.
type Limit struct {
	channel limit
	most    int    // characters; 0: any number
	Mark    string // that more was said, where something was cut off
}

// LimitOf is the limit of a channel, and of a profile's maxLength; 0 is none.
func LimitOf(channel store.Channel, maxLength int) Limit {
	_, mark := shower(channel)
	return Limit{limits[channel], maxLength, mark}
}

// Fits says whether a text is within it.
func (l Limit) Fits(text string) bool { return l.channel.fits(text) && within(l.most, text) }

// Size is how long a text is, in all that is counted somewhere.
type Size struct{ characters, units, bytes int }

// SizeOf measures a text.
func SizeOf(text string) Size {
	return Size{utf8.RuneCountInString(text), units(text), len(text)}
}

// Plus is the size of two texts, one after the other.
func (s Size) Plus(t Size) Size {
	return Size{s.characters + t.characters, s.units + t.units, s.bytes + t.bytes}
}

// Holds says whether a text of this size is within the limit.
func (l Limit) Holds(s Size) bool {
	return (l.channel.units == 0 || s.units <= l.channel.units) && (l.channel.bytes == 0 || s.bytes <= l.channel.bytes) &&
		(l.most <= 0 || s.characters <= l.most)
}

// Segments counts the messages that a text of an SMS is sent and charged as, and names its encoding.
func Segments(text string) (n int, encoding string) { return segments(text) }

// Render shows a reply in Markdown as its channel does, in at most maxLength characters and within the channel's own limit.
// A maxLength of 0 is none. An unknown channel gets plain text of any length.
//
// Text is valid UTF-8 without control characters but line feeds. It is empty only if the reply is nothing but white space and
// control characters: a reply of which nothing would be shown is shown as it is written.
func Render(channel store.Channel, markdown string, maxLength int) Rendered {
	doc, show, text, truncated := shownAs(channel, markdown)
	limit := LimitOf(channel, maxLength)
	if !limit.Fits(text) {
		truncated = true
		short := shorten(doc, limit.Mark, show, limit.Fits)
		if text = show(short); short == nil {
			text = tiny(asWritten(doc), limit.Mark, limit.Fits)
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

// Show is the Text of Render for a part of a reply, of any length.
func Show(channel store.Channel, markdown string) string {
	_, _, text, _ := shownAs(channel, markdown)
	return text
}

// shownAs is a reply as a document, how that is shown, and what comes out.
func shownAs(channel store.Channel, markdown string) (doc []block, show func([]block) string, text string, truncated bool) {
	doc, truncated = parse(markdown)
	show, mark := shower(channel)
	if truncated {
		doc = cut(doc, len(markdown), mark)
	}
	if text = show(doc); text == "" {
		doc = plain(tidy(markdown))
		if text = show(doc); text == "" {
			show = asWritten
			text = show(doc)
		}
	}
	return doc, show, text, truncated
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
