package e2e_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestEqualSubscriptions: the viewers of a business that ask for the same share one execution an event, and those of another business
// that ask in the same words have one of their own, of their own events.
func TestEqualSubscriptions(t *testing.T) {
	t.Parallel()
	s := start(t)
	otherKey, otherToken := s.createBusiness("Other")
	agent := at(s.query(otherToken, `mutation { createAgent(input: {name: "Theirs", prompt: "We sell tea."}) { id } }`, nil), "createAgent", "id").(string)
	reader := at(s.query(token, `mutation { createAccessToken(name: "reader", scope: READ) { secret } }`, nil), "createAccessToken", "secret").(string)

	const feed = "subscription($after: String) { events(after: $after) { node { id businessId agentId } } }"
	watch := func(token string) *subscriber {
		return s.subscribe(token, feed, object{"after": at(s.query(token, "{ feedCursor }", nil), "feedCursor")})
	}
	ours, theirs := []*subscriber{watch(token), watch(token), watch(token)}, []*subscriber{watch(otherToken), watch(otherToken)}
	scoped := watch(reader) // with other rights, so in a group of its own

	made := func() (results, given float64) {
		t.Helper()
		_, _, metrics, err := s.try(t.Context(), "GET", "/metrics", nil, "")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(metrics)) {
			_, _ = fmt.Sscanf(line, "parley_live_results_made_total %g", &results)
			_, _ = fmt.Sscanf(line, "parley_live_results_given_total %g", &given)
		}
		return results, given
	}
	// The first events may reach a viewer while it still catches up by itself.
	eventually(t, "sharing", func() bool {
		before, givenBefore := made()
		s.chat("Hello", "")
		if status, _, answer := s.call("POST", "/agents/"+agent+"/chat", withKey(otherKey), `{"message":"Do you sell tea?","channel":"sms"}`); status != 200 {
			t.Fatalf("their chat: %d %v", status, answer)
		}
		for range 3 {
			for _, of := range []struct {
				viewers []*subscriber
				agent   string
			}{{ours, "demo"}, {theirs, agent}, {[]*subscriber{scoped}, "demo"}} {
				var first any
				for _, v := range of.viewers {
					node := at(v.wait(), "events", "node")
					if at(node, "agentId") != of.agent {
						t.Fatalf("a viewer of %s has got %v", of.agent, node)
					}
					if first == nil {
						first = at(node, "id")
					} else if at(node, "id") != first {
						t.Fatalf("viewers of one feed have got %v and %v", first, at(node, "id"))
					}
				}
			}
		}
		results, given := made()
		return results-before == 3*3 && given-givenBefore == 3*6 // three groups, six viewers
	})
}
