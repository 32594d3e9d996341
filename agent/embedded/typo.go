package embedded

const (
	mendable     = 5 // letters a word must have for a slip in it to be mended: shorter ones are too near to each other
	shortestRoot = 4 // letters that words with different endings must share
	wrongLetter  = 6 // letters a word must have for one of them to be taken for wrong: shoes are not shows
	mostMended   = 8 // words of a message that are tried
)

// spelling is a word of the texts, and its stem's number.
type spelling struct {
	word string
	id   int32
}

// mended is the stem of the word that is one slip away from one that stands in no text of the agent, if there is exactly one
// such stem. The first letter must be right: that keeps the search short, and people seldom get it wrong.
func (x *index) mended(word string) (id int32, ok bool) {
	if len(word) < mendable {
		return 0, false
	}
	for _, s := range x.spelling[word[0]] {
		if len(s.word) >= mendable && oneSlip(word, s.word) || ending(word, s.word) {
			if ok && id != s.id {
				return 0, false
			}
			id, ok = s.id, true
		}
	}
	return id, ok
}

// ending says whether two words are one with another ending, which the stemmer does not know: itchy, and itch.
func ending(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return len(a) >= shortestRoot && len(b)-len(a) <= 2 && b[:len(a)] == a
}

// oneSlip says whether a is b but for one letter too many, missing, or wrong, or two that changed places.
func oneSlip(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 || a == b {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	return len(a) >= wrongLetter && a[i+1:] == b[i+1:] || i+2 <= len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}
