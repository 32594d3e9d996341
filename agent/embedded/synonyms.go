package embedded

import (
	"strings"

	"github.com/kljensen/snowball/english"
)

// synonyms are the words of customer service that count as one, a line for each: what a shop calls delivery, its customers call
// shipping or postage. The first word of a line stands for all of it, in the agent's texts as in messages. Irregular forms that the
// stemmer does not know stand here too.
//
// Only words that say the same of nearly every business belong here. What a business sells has its synonyms in its own texts, and
// words that it may want to tell apart, such as a return, a refund and an exchange, have lines of their own.
var synonyms = canonical(`
	open opening =hours close shut
	deliver delivery ship shipment postage post dispatch
	arrive arrival
	parcel =package =packages packet
	cost price pricing charge fee rate tariff
	phone telephone call ring mobile
	address location locate situated whereabouts
	contact reach touch support assistance
	shop store
	return returnable
	refund reimburse reimbursement
	exchange swap
	buy bought purchase
	pay paid payment
	sell sold
	send sent
	lose lost
	repair mend fix
	faulty fault defect defective damage broken broke
	abroad overseas international worldwide foreign
	discount coupon promo promotion rebate
	voucher certificate
	guarantee warranty
	complaint complain
	person human people staff employee representative agent manager operator adviser`)

// canonical maps the stem of each word of the lines to that of the first.
func canonical(lines string) map[string]string {
	stem := map[string]string{}
	for line := range strings.Lines(strings.TrimSpace(lines)) {
		group := strings.Fields(line)
		first := english.Stem(group[0], false)
		for _, w := range group {
			if form, ok := strings.CutPrefix(w, "="); ok {
				stem[form] = first
			} else {
				stem[english.Stem(w, false)] = first
			}
		}
	}
	return stem
}

// stemOf is what a word is looked for by.
func stemOf(word string) string {
	if same, ok := synonyms[word]; ok {
		return same
	}
	stem := english.Stem(word, false)
	if same, ok := synonyms[stem]; ok {
		return same
	}
	return stem
}
