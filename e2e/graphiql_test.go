package e2e_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// TestGraphiQL uses the page as a newcomer does: with a token typed in, and by the link that the first start prints.
func TestGraphiQL(t *testing.T) {
	t.Parallel()
	s := start(t)
	link := regexp.MustCompile(`http://\S+/#\S+`).FindString(s.stdout())
	if link != s.url()+"/#token="+token {
		t.Fatalf("the first start prints %q", link)
	}
	host := strings.TrimPrefix(s.url(), "http://")
	const result = ".result-window"

	t.Run("with a token typed in", func(t *testing.T) {
		b := browse(t)
		b.call("Page.navigate", object{"url": s.url() + "/graphiql"})
		b.shows(result, "Put an access token into the headers")
		eventually(t, "showing the token", func() bool {
			b.click(`[aria-label="Headers"] .CodeMirror-line`, "Authorization")
			b.fill(fmt.Sprintf(`{"Authorization": "Bearer %s"}`, token))
			return b.showing(`[aria-label="Headers"]`, token)
		})
		b.click(".graphiql-execute-button", "")
		b.shows(result, `"ADMIN"`)
		b.shows(result, `"demo"`)
		b.click("button", "Show Documentation Explorer") // the schema has come with the token
		b.shows(".graphiql-doc-explorer", "Subscription")
		b.behaved(host)
		b.eval(`fetch("http://192.0.2.1/").catch(() => {})`) // the test's own eyes
		eventually(t, "noticed", func() bool { return b.blamed("192.0.2.1") })
	})
	t.Run("by a link of an earlier version", func(t *testing.T) {
		b := browse(t)
		b.call("Page.navigate", object{"url": s.url() + "/graphiql#" + token})
		b.shows(`[aria-label="Headers"]`, `"Bearer `+token)
	})
	t.Run("by the printed link", func(t *testing.T) {
		b := browse(t)
		b.call("Page.navigate", object{"url": link})
		// GraphiQL copies what its first tab holds into whichever is open a moment later, and stores it then.
		eventually(t, "settled", func() bool {
			return b.eval("localStorage['graphiql:query'] ?? localStorage['graphiql:tabState']") != nil
		})
		b.click(".graphiql-tab button", "Events")
		b.shows(".graphiql-query-editor", "subscription Events")
		if address := b.eval("location.href"); address != s.url()+"/graphiql" {
			t.Errorf("the token stays in the address bar: %v", address)
		}
		b.click(".graphiql-execute-button", "")
		eventually(t, "subscribing", func() bool { return b.sent(`"subscribe"`) })
		eventually(t, "showing a chat's events", func() bool { // nothing tells when the server has taken the subscription
			s.chat("When are you open on Saturday?", "")
			return b.showing(result, `"RUN_FINISHED"`)
		})
		b.behaved(host)
	})
}
