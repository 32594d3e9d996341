package embedded_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"parley/agent"
	"parley/agent/embedded"
	"parley/agent/modeltest"
	"parley/store"
)

func TestContract(t *testing.T) {
	t.Parallel()
	modeltest.Run(t, modeltest.Subject{
		Model: embedded.New(embedded.Config{}), Slow: embedded.New(embedded.Config{Latency: time.Hour}),
	})
}

func TestToolsAreCalledAtTheirTriggers(t *testing.T) {
	t.Parallel()
	bare := func(name string, triggers ...string) agent.Tool { return agent.Tool{Name: name, Triggers: triggers} }
	for _, c := range []struct {
		message string
		tools   []agent.Tool
		want    []string
	}{
		{"Where is my ORDER?", []agent.Tool{bare("a", "order")}, []string{"a"}},
		{"Where is my order?", []agent.Tool{bare("a", "Order")}, []string{"a"}},
		{"I like borders", []agent.Tool{bare("a", "order")}, nil},
		{"Buy a gift, and a card", []agent.Tool{bare("a", "gift card")}, nil},
		{"Have you a Gift-Card?", []agent.Tool{bare("a", "gift card"), bare("b", "giftcard"), bare("c", "gift-card")}, []string{"a", "b", "c"}},
		{"Wo ist meine Größe?", []agent.Tool{bare("a", "GRÖSSE", "größe")}, []string{"a"}},
		{"order refund", []agent.Tool{bare("a", "order"), bare("b"), bare("c", "", "?!"), bare("d", "money", "refund")}, []string{"a", "d"}},
		{"order order", []agent.Tool{bare("a", "order", "order"), bare("a", "order")}, []string{"a"}},
		{"", []agent.Tool{bare("a", "", "order")}, nil},
	} {
		req := modeltest.Ask(c.message)
		req.Tools = c.tools
		req.Text = func(delta string) {
			if c.want != nil {
				t.Errorf("%q: %q is said beside a call", c.message, delta)
			}
		}
		reply, err := embedded.New(embedded.Config{}).Generate(t.Context(), req)
		var got []string
		for _, call := range reply.Calls {
			got = append(got, call.Name)
		}
		if err != nil || !slices.Equal(got, c.want) || (reply.Text == "") != (c.want != nil) {
			t.Errorf("%q: %v, %q, %v, want %v", c.message, got, reply.Text, err, c.want)
		}
	}
}

func TestArgumentsAreNotMadeUp(t *testing.T) {
	t.Parallel()
	const message = "Where is \"my\" order?"
	const whole = `{"q":"Where is \"my\" order?"}`
	for schema, want := range map[string]string{
		``:                                       `{}`,
		`{"type":"object"}`:                      `{}`,
		`{"properties":{"q":{"type":"string"}}}`: `{}`,
		`{"properties":{"q":{"type":"string","description":"x"}},"required":["q"]}`:                      whole,
		`{"properties":{"q":{"type":"string"},"n":{"type":"integer"}},"required":["q"]}`:                 whole,
		`{"properties":{"q":{"type":"string"},"n":{"type":"string"}},"required":["q","n"]}`:              "",
		`{"properties":{"q":{"type":"integer"}},"required":["q"]}`:                                       "",
		`{"properties":{"q":{"type":["string","null"]}},"required":["q"]}`:                               "",
		`{"properties":{"q":{"type":"string","enum":["a"]}},"required":["q"]}`:                           "",
		`{"properties":{"q":{"type":"string","format":"email"}},"required":["q"]}`:                       "",
		`{"properties":{"q":{}},"required":["q"]}`:                                                       "",
		`{"properties":{},"required":["q"]}`:                                                             "",
		`{"properties":{"q":true},"required":["q"]}`:                                                     "",
		`{"properties":{"o":{"type":"object","required":["x"],"properties":{"x":{}}}},"required":["o"]}`: "",
	} {
		req := modeltest.Ask(message)
		req.Tools = []agent.Tool{{Name: "look_up", Triggers: []string{"order"}, Parameters: store.JSONObject(schema)}}
		reply, err := embedded.New(embedded.Config{}).Generate(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(reply.Calls) == 1 {
			got = string(reply.Calls[0].Arguments)
		}
		if got != want {
			t.Errorf("%s: called with %q, want %q", schema, got, want)
		}
	}
}

// after is a request for which a tool has brought something.
func after(message string, results ...agent.Result) agent.Request {
	req := modeltest.Ask(message)
	req.Tools = []agent.Tool{modeltest.LookUp}
	req.Steps = []agent.Step{{Results: results}}
	for i := range results {
		results[i].CallID = string(rune('a' + i))
		req.Steps[0].Calls = append(req.Steps[0].Calls, agent.Call{ID: results[i].CallID, Name: modeltest.LookUp.Name, Arguments: json.RawMessage("{}")})
	}
	return req
}

func TestWhatToolsBringIsQuoted(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("X", 3000)
	many := strings.Repeat("All is well. ", 300)
	for name, c := range map[string]struct {
		limit   int
		results []agent.Result
		want    string
	}{
		"a sentence":             {0, []agent.Result{{Content: "It left on Monday."}}, "Here is what I found. It left on Monday."},
		"a document":             {0, []agent.Result{{Content: `{"status": "sent", "on": "2.5."}`}}, `Here is what I found. {"status": "sent", "on": "2.5."}`},
		"lines":                  {0, []agent.Result{{Content: "#17: sent\n\n- on Monday\n"}}, "Here is what I found. #17: sent - on Monday"},
		"two results":            {0, []agent.Result{{Content: "One."}, {Content: "Two."}}, "Here is what I found. One. Two."},
		"one of two failed":      {0, []agent.Result{{Content: "secret stack", Failed: true}, {Content: "Two."}}, "Here is what I found. Two."},
		"all failed":             {0, []agent.Result{{Content: "secret stack", Failed: true}}, embedded.Failed},
		"nothing":                {0, []agent.Result{{Content: " \n"}}, embedded.FoundNothing},
		"bytes":                  {0, []agent.Result{{Content: "a\xffb."}}, "Here is what I found. a\uFFFDb."},
		"too much":               {0, []agent.Result{{Content: long}}, embedded.FoundTooMuch},
		"too much in the end":    {0, []agent.Result{{Content: "First. " + long + ". Last."}}, "Here is what I found. First."},
		"too much for a channel": {30, []agent.Result{{Content: "It left on Monday."}}, embedded.DontKnowShort},
		"enough for a channel":   {30, []agent.Result{{Content: "Sent. It left on Monday."}}, "Here is what I found. Sent."},
		"a bound for all":        {5000, []agent.Result{{Content: many}}, strings.TrimSpace("Here is what I found. " + many[:13*((2000-21)/13)])},
	} {
		req := after("Where is my order?", c.results...)
		if c.limit > 0 {
			req.Agent.ChannelProfiles = []store.ChannelProfile{{Channel: store.WhatsApp, MaxLength: &c.limit}}
		}
		reply, err := embedded.New(embedded.Config{}).Generate(t.Context(), req)
		if diff := cmp.Diff(c.want, reply.Text); diff != "" || err != nil || len(reply.Calls) != 0 {
			t.Errorf("%s: %v, %v %s", name, err, reply.Calls, diff)
		}
	}
}

func FuzzResult(f *testing.F) {
	for _, s := range []string{"It left on Monday.", `{"a":[1.5,"x. Y"]}`, "\xff", "。", "1. One\n2. Two", strings.Repeat("a. ", 3000)} {
		f.Add(s, 160)
	}
	m := embedded.New(embedded.Config{})
	f.Fuzz(func(t *testing.T, content string, limit int) {
		req := after("Where is my order?", agent.Result{Content: content})
		limit = max(limit, 1)
		req.Agent.ChannelProfiles = []store.ChannelProfile{{Channel: store.WhatsApp, MaxLength: &limit}}
		reply, err := m.Generate(t.Context(), req)
		if err != nil || reply.Text == "" || reply.Text != embedded.DontKnowShort && utf8.RuneCountInString(reply.Text) > limit {
			t.Errorf("%q in %d: %q, %v", content, limit, reply.Text, err)
		}
		// But for white space it is the beginning of what was brought.
		bare := func(s string) string { return strings.Join(strings.Fields(s), "") }
		quoted, ok := strings.CutPrefix(reply.Text, embedded.Found+" ")
		if ok != !slices.Contains(embedded.Templates, reply.Text) || ok && !strings.HasPrefix(bare(strings.ToValidUTF8(content, "\uFFFD")), bare(quoted)) {
			t.Errorf("%q: %q", content, reply.Text)
		}
	})
}
