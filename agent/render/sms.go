package render

import (
	"strings"
	"unicode/utf8"
)

// The encodings of an SMS.
const (
	gsm7 = "GSM-7"
	ucs2 = "UCS-2"
)

// How much one message takes, alone and as a part of a longer one: 140 octets, less the header that joins the parts.
// 3GPP TS 23.040, 9.2.3.24.1.
const (
	gsm7Alone, gsm7Part = 160, 153
	ucs2Alone, ucs2Part = 70, 67
)

// The GSM 7 bit default alphabet and its extension table, of which each character takes two septets: 3GPP TS 23.038
// (GSM 03.38), 6.2.1. The escape to the table and the form feed, which no reply holds, are left out.
const (
	gsm7Basic = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?" +
		"¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
	gsm7Extension = "^{}\\[~]|€"
)

// septets is what a character takes in GSM-7; 0 if it is not in it.
func septets(r rune) int {
	switch {
	case r < utf8.RuneSelf && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == ' '):
		return 1
	case strings.ContainsRune(gsm7Extension, r):
		return 2
	case strings.ContainsRune(gsm7Basic, r):
		return 1
	}
	return 0
}

func isGSM7(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return septets(r) == 0 })
}

// smart is the punctuation that word processors and models write, in the characters of GSM-7 that say the same.
var smart = strings.NewReplacer(
	"‘", "'", "’", "'", "‚", "'", "‛", "'", "′", "'", "`", "'", "´", "'",
	"“", `"`, "”", `"`, "„", `"`, "‟", `"`, "″", `"`, "«", `"`, "»", `"`, "‹", "'", "›", "'",
	"‐", "-", "‑", "-", "‒", "-", "–", "-", "—", "-", "―", "-", "−", "-", "•", "-", "⁃", "-",
	"…", "...", "→", "->", "←", "<-", "×", "x", "⁄", "/",
	"\u00a0", " ", "\u2002", " ", "\u2003", " ", "\u2004", " ", "\u2005", " ", "\u2006", " ", "\u2007", " ", "\u2008", " ",
	"\u2009", " ", "\u200a", " ", "\u202f", " ", "\u205f", " ", "\u3000", " ", "\t", " ",
	"\u200b", "", "\u2060", "", "\ufeff", "", "\u00ad", "",
)

// transliterate puts a text into GSM-7 if all of it can be without loss of meaning. Else it stays as it is: one character
// beyond GSM-7 sends all of it in UCS-2, which holds the others too.
func transliterate(text string) string {
	if text = strings.ReplaceAll(text, "\t", " "); isGSM7(text) {
		return text
	}
	if simple := smart.Replace(text); isGSM7(simple) {
		return simple
	}
	return text
}

// segments counts the messages that a text is sent as.
func segments(text string) (n int, encoding string) {
	if isGSM7(text) {
		return parts(text, septets, gsm7Alone, gsm7Part), gsm7
	}
	return parts(text, func(r rune) int { return units(string(r)) }, ucs2Alone, ucs2Part), ucs2
}

// parts counts the messages of a text: one if it fits alone, else parts, between which no character is split.
func parts(text string, size func(rune) int, alone, part int) int {
	total, n, used := 0, 0, part
	for _, r := range text {
		s := size(r)
		total += s
		if used += s; used > part {
			n, used = n+1, s
		}
	}
	if total > 0 && total <= alone {
		return 1
	}
	return n
}
