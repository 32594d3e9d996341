package embedded

import (
	"slices"

	"parley/agent"
	"parley/store"
)

const (
	shortMessage = 3 // terms: a message no longer than this may lean on an earlier one
	leanOn       = 4 // earlier messages of the user that are tried
)

// What some ways to ask ask for, where the texts may say it in other words.
var (
	askingPrice = telling([]string{"cost"})
	askingTime  = telling([]string{"time"})
	askingPlace = telling([]string{"address"})
	aboutTime   = set("long", "fast", "quick", "quickly", "soon")
)

// readings are the queries that a message may stand for, the likeliest first.
func (x *index) readings(said []string, earlier []agent.Message) []query {
	asked := asks(said)
	q := x.query(asked)
	if slices.Contains(said, "how") && slices.ContainsFunc(said, func(w string) bool { return aboutTime[w] }) {
		q.hint(x.query(askingTime))
	}
	named := len(q.known) > 0 || q.unknown > 0
	if !named && asksForPlace(said) {
		return []query{x.query(askingPlace)}
	}
	out := []query{q}
	if len(asked) > 0 && len(q.known)+len(q.asked) <= shortMessage && q.unknown < x.rare {
		if subject := x.subject(earlier); subject != nil {
			if goesOn(said) {
				out[0].hint(x.query(subject))
			}
			joined := x.query(distinct(append(asked, subject...)))
			joined.hints = q.hints
			out = append(out, joined)
		}
	}
	if !named && len(asked) == len(said) && slices.ContainsFunc(asked, func(t term) bool { return t.stem == askingPrice[0].stem }) {
		out = append(out, query{known: q.asked}) // "Prices?"
	}
	return out
}

// asks are the terms that a message has, and what "how much" means.
func asks(said []string) []term {
	asked := terms(said)
	if slices.Contains(said, "how") && slices.Contains(said, "much") {
		asked = append(asked, askingPrice...)
	}
	return asked
}

// hint adds what another query asks for as hints.
func (q *query) hint(other query) { q.hints = slices.Concat(q.hints, other.known, other.asked) }

// asksForPlace says whether words that name nothing ask where the business is: "Where are you?", "How do I get there?"
func asksForPlace(said []string) bool {
	return slices.Contains(said, "where") && slices.Contains(said, "you") || slices.Contains(said, "get") && slices.Contains(said, "there")
}

// goesOn says whether a message begins as those do that go on with an earlier one: "And on Sunday?", "What about Norway?"
func goesOn(said []string) bool {
	switch said[0] {
	case "and", "or", "but", "even":
		return true
	}
	return len(said) > 1 && said[1] == "about"
}

// subject is what the user spoke of last, for a short message that goes on with it: "And on Sunday?" Messages that name nothing
// the agent knows, such as another of that kind, are passed over.
func (x *index) subject(earlier []agent.Message) []term {
	tried := 0
	for _, message := range slices.Backward(earlier) {
		if message.Author != store.AuthorLead {
			continue
		}
		if tried++; tried > leanOn {
			break
		}
		said := asks(firstWords(message.Text, mostWords))
		if q := x.query(said); len(q.known) > 0 {
			return said
		}
	}
	return nil
}
