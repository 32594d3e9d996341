// Package render shows an agent's reply, which models write in Markdown, as its channel can show it. A prompt can ask a model
// for plain text or for three sentences; whether it gets them is the model's mood. This package does after the model what
// prompts cannot promise: on no channel does a customer read marks that the channel does not know, and no reply is longer
// than the channel or the agent's profile takes.
//
// The way is the same for all channels. Render reads the Markdown with goldmark into a document: blocks, and in them runs of
// text of one style. One of four writers shows the document: with WhatsApp's marks, as plain text, as speech, as HTML. If
// what comes out is too long, the document is cut, not what came out, and shown again; so each mark, tag and link is closed
// or absent. A cut is made behind a sentence if that leaves most of what fits, else behind a word, else, in a text without
// spaces, between grapheme clusters, and never in an address. It is marked with an ellipsis, in speech with a full stop.
//
// Plain text stays itself, line breaks too, which chats show and Markdown would join. Nothing of a reply is lost but what
// has no sense on the channel; a reply of which nothing would be left is shown as it is written. Render is a pure function,
// and bounded: what would take goldmark long is taken as plain text (markdown.go).
//
// # The channels, and where it is written
//
// WhatsApp. "How to format your messages", faq.whatsapp.com/539178204879377: *bold*, _italic_, ~strikethrough~, monospace in
// three backticks, inline code in one, lists with "- " or "1. ", quotes with "> ". A heading becomes bold, a link its text
// and address, a table a list. Characters that would pair as marks and are none are replaced by ones that look like them,
// in an address by their percent-encoding. Cloud API, "Text messages": a body has at most 4,096 characters.
//
// SMS. 3GPP TS 23.038 (GSM 03.38), 6.2.1: the GSM 7-bit alphabet and its extension table, of two septets a character; any
// other character puts all of the text into UCS-2. 3GPP TS 23.040, 9.2.3.24.1: 160 septets or 70 units of UCS-2, in several
// parts 153 or 67 each; no character is split between parts. Punctuation is put into GSM-7 if that saves the UCS-2, as
// Twilio's Smart Encoding does. Twilio, error 21617: at most 1,600 characters.
//
// Instagram. Meta, "Send a message": text is UTF-8 of at most 1,000 bytes, and "less than 1000 characters". LinkedIn says
// nothing public; its message box takes 8,000 characters. Neither knows marks: plain text, lists with "- ", addresses in
// full. Struck text keeps one tilde on either side, for without it what no longer holds would read as if it did.
//
// Gmail and Outlook. HTML and the plain text beside it (RFC 2046, 5.1.4). The HTML is a fragment made of the document alone:
// tags in the reply are left out, images are their alternative text, links are http, https, mailto or tel.
//
// Voice. Sentences, one after the other: no symbols, no emoji, no code marks, each list item and table row a sentence of its
// own, struck text not said. A link is its text, a bare address its host ("example dot com"). Symbols with a name and
// amounts of money are put into words, in English whatever the language of the reply; a business whose agent speaks
// another has the agent's instructions ask for words. W3C SSML 1.1, 3.1.9, leaves all this to the voice; voices differ.
//
// Lengths: a profile counts characters as the rest of Parley does, in Unicode code points; a channel's own limit is held in
// UTF-16 units, which are never fewer, since nobody says what is counted.
package render
