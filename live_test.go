package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// listener reads a subscription as server-sent events.
type listener struct {
	t     *testing.T
	lines *bufio.Scanner
}

type liveEvent struct {
	id   string
	Data struct {
		Events struct {
			Cursor string
			Node   struct{ ID, BusinessID string }
		}
	}
	Errors []struct{ Message string }
}

const feedQuery = `subscription($after: String) { events(after: $after) { cursor node { id businessId } } }`

func listen(t *testing.T, address, token, after, lastEventID string) *listener {
	t.Helper()
	variables, _ := json.Marshal(map[string]string{"after": after})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		address+"/graphql?query="+url.QueryEscape(feedQuery)+"&variables="+url.QueryEscape(string(variables)), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + token}, "Accept": {"text/event-stream"}, "Accept-Encoding": {"gzip"}}
	if lastEventID != "" {
		req.Header.Set("Last-Event-ID", lastEventID)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Encoding") != "" {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	return &listener{t, bufio.NewScanner(res.Body)}
}

// next is the next event, and of its id.
func (l *listener) next() (e liveEvent) {
	l.t.Helper()
	for l.lines.Scan() {
		name, value, _ := strings.Cut(l.lines.Text(), ": ")
		switch name {
		case "id":
			e.id = value
		case "data":
			if err := json.Unmarshal([]byte(value), &e); err != nil || len(e.Errors) > 0 {
				l.t.Fatalf("%s: %v", value, err)
			}
			return e
		}
	}
	l.t.Fatalf("the stream ended: %v", l.lines.Err())
	return e
}

func feedCursor(t *testing.T, address, token string) string {
	t.Helper()
	var end struct {
		Data struct{ FeedCursor string }
	}
	if err := json.Unmarshal(postAs(t, token, address+"/graphql", `{"query":"{feedCursor}"}`), &end); err != nil {
		t.Fatal(err)
	}
	return end.Data.FeedCursor
}

func TestEventStreamsResume(t *testing.T) {
	t.Parallel()
	address := serveInProcess(t, func(*Settings) {})
	start := feedCursor(t, address, "at_test")
	live := listen(t, address, "at_test", start, "")
	for range 2 {
		post(t, address+"/agents/demo/chat", `{"message":"Hello","channel":"sms"}`)
	}
	var all []liveEvent
	for range 6 {
		e := live.next()
		if e.id == "" || e.id != e.Data.Events.Cursor {
			t.Fatalf("id %q of an event with the cursor %q", e.id, e.Data.Events.Cursor)
		}
		all = append(all, e)
	}
	again := listen(t, address, "at_test", start, all[2].id) // as an EventSource does: the old URL, and the header
	for _, want := range all[3:] {
		if got := again.next(); got.Data.Events.Node.ID != want.Data.Events.Node.ID {
			t.Fatalf("resumed with %s, not %s", got.Data.Events.Node.ID, want.Data.Events.Node.ID)
		}
	}
}

func TestBusinessesNeverShareAnExecution(t *testing.T) {
	t.Parallel()
	var database string
	address := serveInProcess(t, func(s *Settings) { database = s.DatabaseURL })
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--database-url", database, "business", "create", "other"}, &out, &out); code != exitOK {
		t.Fatal(out.String())
	}
	tokens := []string{"at_test", regexp.MustCompile(`at_\S+`).FindString(out.String())}
	agents := []string{"demo", ""}
	var made struct {
		Data struct{ CreateAgent struct{ ID string } }
	}
	if err := json.Unmarshal(postAs(t, tokens[1], address+"/graphql", `{"query":"mutation{createAgent(input:{name:\"A\"}){id}}"}`), &made); err != nil {
		t.Fatal(err)
	}
	agents[1] = made.Data.CreateAgent.ID

	var listeners [2][2]*listener // of each business two, with the same query
	for i, token := range tokens {
		start := feedCursor(t, address, token)
		for j := range 2 {
			listeners[i][j] = listen(t, address, token, start, "")
		}
	}
	for range 5 {
		for i, token := range tokens {
			postAs(t, token, address+"/agents/"+agents[i]+"/chat", `{"message":"Hello","channel":"sms"}`)
		}
	}
	businesses := map[string]bool{}
	for i := range listeners {
		business := ""
		for j := range listeners[i] {
			for range 15 {
				e := listeners[i][j].next()
				if business == "" {
					business = e.Data.Events.Node.BusinessID
				}
				if e.Data.Events.Node.BusinessID != business {
					t.Fatalf("an event of %s in the feed of %s", e.Data.Events.Node.BusinessID, business)
				}
			}
		}
		businesses[business] = true
	}
	if len(businesses) != 2 {
		t.Errorf("events of %v", businesses)
	}
}
