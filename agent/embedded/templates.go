package embedded

// The templates are all that the model says in its own words.
const (
	DontKnow      = "I'm sorry, I don't know that."
	DontKnowShort = "I don't know." // where a channel's maximum length leaves no room for the other
	Greeting      = "Hello! How can I help you?"
	Welcome       = "You're welcome!"
	Farewell      = "Goodbye!"
	Found         = "Here is what I found."                         // before what a tool has brought
	FoundNothing  = "I looked it up, and there is nothing to tell." // of an empty result
	FoundTooMuch  = "I looked it up, and it is too much to quote."  // of one without a sentence short enough
	Failed        = "I'm sorry, I could not look that up just now." // of a call that failed: why is not for customers
)

// Templates are all of them.
var Templates = []string{DontKnow, DontKnowShort, Greeting, Welcome, Farewell, Found, FoundNothing, FoundTooMuch, Failed}

// courtesies are the words of messages that say nothing else, with the template that answers them. The first one found in
// this order decides.
var courtesies = []struct {
	words  map[string]bool
	answer string
}{
	{set("bye", "goodbye", "farewell", "cheerio"), Farewell},
	{set("thanks", "thank", "thx", "cheers", "ta"), Welcome},
	{set("hello", "hi", "hey", "hiya", "morning", "afternoon", "evening", "greetings"), Greeting},
}

// fillers may stand beside a courtesy without making it a question.
var fillers = set("good", "day", "there", "you", "very", "much", "so", "a", "lot", "and", "for", "your", "help", "have", "nice", "everyone", "all", "dear",
	"how", "are", "that's", "that", "is", "was", "great", "perfect", "ok", "okay", "again", "then", "see", "later")

func set(words ...string) map[string]bool {
	s := make(map[string]bool, len(words))
	for _, w := range words {
		s[w] = true
	}
	return s
}

// courtesy is the answer to a message that is nothing but polite.
func courtesy(words []string) (string, bool) {
	found := -1
	for _, w := range words {
		kind := -1
		for i, c := range courtesies {
			if c.words[w] {
				kind = i
				break
			}
		}
		switch {
		case kind >= 0 && (found < 0 || kind < found):
			found = kind
		case kind < 0 && !fillers[w]:
			return "", false
		}
	}
	if found < 0 {
		return "", false
	}
	return courtesies[found].answer, true
}
