package embedded

import (
	"regexp"
	"strings"

	"parley/agent"
)

// The templates are all that the model says in its own words.
const (
	DontKnow      = "I'm sorry, I don't know that."
	DontKnowShort = "I don't know." // where a channel's maximum length leaves no room for the other
	Greeting      = "Hello! How can I help you?"
	Welcome       = "You're welcome!"
	Farewell      = "Goodbye!"
	AnythingElse  = "Is there anything else I can help you with?"
	Introduction  = "I'm an automated assistant, not a person. Ask me about this business: I answer with what I have been told about it."
	Found         = "Here is what I found."                         // before what a tool has brought
	FoundNothing  = "I looked it up, and there is nothing to tell." // of an empty result
	FoundTooMuch  = "I looked it up, and it is too much to quote."  // of one without a sentence short enough
	HandedOff     = agent.HandoffSentence
	Failed        = "I'm sorry, I could not look that up just now." // of a call that failed: why is not for customers
)

// Templates are all of them.
var Templates = []string{
	DontKnow, DontKnowShort, Greeting, Welcome, Farewell, AnythingElse, Introduction, Found, FoundNothing, FoundTooMuch, Failed, HandedOff,
}

// courtesies are the words of messages that say nothing else, with the template that answers them. The first one found in
// this order decides.
var courtesies = []struct {
	words  map[string]bool
	answer string
}{
	{set("bye", "goodbye", "farewell", "cheerio", "later"), Farewell},
	{set("thanks", "thank", "thx", "cheers", "ta"), Welcome},
	{set("hello", "hi", "hey", "hiya", "morning", "afternoon", "evening", "greetings"), Greeting},
	{set("ok", "okay", "great", "perfect", "good", "nice", "cool", "alright", "fine"), AnythingElse},
}

// fillers may stand beside a courtesy without making it a question.
var fillers = set("day", "there", "you", "very", "much", "so", "a", "lot", "and", "for", "your", "help", "have", "everyone", "all", "dear",
	"how", "are", "that's", "that", "is", "was", "again", "then", "see")

func set(words ...string) map[string]bool {
	s := make(map[string]bool, len(words))
	for _, w := range words {
		s[w] = true
	}
	return s
}

// introducing matches messages, in words with a space between them, that ask what answers here, and what it can do.
var introducing = regexp.MustCompile(`^(?:(?:hi|hello|hey|so|and|but|wait|ok|okay) )*(?:how are you(?: doing)?(?: today)?|` +
	`(?:who|what) (?:are|r) (?:you|u)|who is this|(?:what's|what is) your name|(?:introduce|tell me about) yourself|` +
	`(?:are you|r u|you're|you are|is this|is it|am i (?:talking|speaking|chatting|writing) (?:to|with))(?: (?:a|an|real|actual|live|just|or|bot|` +
	`chatbot|robot|ai|chatgpt|gpt|llm|machine|computer|program|human|person|being|assistant))+|` +
	`what (?:can|do) you (?:do|know)(?: for me)?|what can i ask(?: you)?|(?:how )?can you help(?: me)?|what can you help(?: me)? with|` +
	`help(?: me)?)(?: please)?$`)

const longestIntroducing = 12 // words

// courtesy is the answer to a message that is nothing but polite, or asks who is there.
func courtesy(words []string) (string, bool) {
	if len(words) <= longestIntroducing && introducing.MatchString(strings.Join(words, " ")) {
		return Introduction, true
	}
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
