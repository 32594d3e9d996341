package embedded

// mendable is how long a word must be for a slip in it to be mended: shorter ones are too near to each other.
const (
	mendable   = 5
	mendedMost = 8 // words of a message
)

// mended replaces the stems that no text of the agent has, and that are one slip away from exactly one that it has.
func (x *index) mended(query []string) []string {
	out := make([]string, 0, len(query))
	tries := 0
	for _, stem := range query {
		if _, known := x.known[stem]; !known && len(stem) >= mendable && tries < mendedMost {
			tries++
			var near string
			found := 0
			for candidate := range x.known {
				if len(candidate) >= mendable && oneSlip(stem, candidate) || ending(stem, candidate) {
					near = candidate
					found++
				}
			}
			if found == 1 {
				stem = near
			}
		}
		out = append(out, stem)
	}
	return distinct(out)
}

// ending says whether two stems are one word with another ending, which the stemmer does not know: itchy, and itch.
func ending(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return len(a) >= 4 && len(b)-len(a) <= 2 && b[:len(a)] == a
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
	return a[i+1:] == b[i+1:] || i+2 <= len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}
