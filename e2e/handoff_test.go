package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// streamed makes a chat as a stream, and returns all that was told and the last event.
func (s *server) streamed(path string, header http.Header, body string) (said, last string, answer object) {
	s.t.Helper()
	header = header.Clone()
	header.Set("Accept", "text/event-stream")
	_, _, raw, err := s.try(context.Background(), "POST", path, header, body)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range events(strings.NewReader(string(raw))) {
		var data object
		if err := decode(strings.NewReader(e[1]), &data); err != nil {
			s.t.Fatal(e, err)
		}
		if last = e[0]; last == "delta" {
			said += data["text"].(string)
		} else {
			answer = data
		}
	}
	return said, last, answer
}

// reasoned is a model's call of the built-in tool, with words for the user or without.
func reasoned(words, arguments string) []string {
	var out []string
	if words != "" {
		out = append(out, chunk(object{"content": words}, nil))
	}
	return append(out, calls("handoff_to_human", arguments)...)
}

// TestHandoff has models ask for a person: the business's backend sees it in the answer, in its replay after a crash, on the
// run and in its event, and the user is told in the model's words, or in Parley's if it has none.
func TestHandoff(t *testing.T) {
	t.Parallel()
	const good = `{"reason": "Wants a refund", "summary": "Order A-7 came broken."}`
	const shown = `{"reason":"Wants a refund","summary":"Order A-7 came broken."}`
	for name, c := range map[string]struct {
		scripts [][]string
		reply   string
		asked   int // of the model
		off     bool
	}{
		"with words":          {scripts: [][]string{reasoned("Someone will **help** you.", good)}, reply: "Someone will *help* you.", asked: 1},
		"words afterwards":    {scripts: [][]string{reasoned("", good), says("Quelqu'un ", "va vous aider.")}, reply: "Quelqu'un va vous aider.", asked: 2},
		"no words":            {scripts: [][]string{reasoned("", good), {"refuse"}}, reply: "I'm passing you on to a person.", asked: 2},
		"half a word":         {scripts: [][]string{reasoned("", good), {chunk(object{"content": "Some"}, nil)}}, reply: "I'm passing you on to a person.", asked: 4},
		"more calls":          {scripts: [][]string{reasoned("", good), calls("handoff_to_human", good)}, reply: "I'm passing you on to a person.", asked: 2},
		"bad arguments first": {scripts: [][]string{reasoned("", `{"why": 1}`), reasoned("Soon.", good)}, reply: "Soon.", asked: 2},
		"switched off":        {scripts: [][]string{reasoned("", good), says("I can't.")}, reply: "I can't.", asked: 2, off: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := completions(t, c.scripts...)
			s := start(t, "PARLEY_PRIVATE_HOSTS=127.0.0.0/8")
			made := s.query(token, `mutation($in: AgentInput!) { createAgent(input: $in) { id handoff } }`, object{"in": object{
				"name": "Desk", "handoff": !c.off, "model": object{"provider": "OPENAI", "baseUrl": model.URL + "/v1"},
			}})
			if at(made, "createAgent", "handoff") == c.off {
				t.Errorf("made %v", made)
			}
			want := any(nil)
			if !c.off {
				want = shown
			}
			got := func(v any) any {
				if v == nil {
					return nil
				}
				return encode(v)
			}
			path := "/agents/" + at(made, "createAgent", "id").(string) + "/chat"
			const body = `{"message": "I want my money back", "channel": "whatsapp"}`
			status, _, first := s.call("POST", path, once("k"), body)
			streaming := name == "half a word" // which only who listens has heard
			if status != http.StatusOK || at(first, "reply") != c.reply || got(at(first, "handoff")) != want || len(model.requests) != c.asked {
				t.Fatalf("%d %v, after %d requests", status, first, len(model.requests))
			}
			if _, offered := model.request(0)["tools"]; offered == c.off {
				t.Errorf("the model was asked %v", model.request(0))
			}
			if c.asked == 2 && name != "bad arguments first" && !c.off && at(model.request(1), "tool_choice") != "none" {
				t.Errorf("it was asked again with %v", model.request(1))
			}
			s.kill()
			s.up()
			if status, header, again := s.call("POST", path, once("k"), body); status != http.StatusOK || header.Get("Idempotency-Replayed") != "true" || encode(again) != encode(first) {
				t.Errorf("again: %d %v", status, again)
			}
			run := at(s.query(token, `query($id: ID!) { run(id: $id) { handoff { reason summary } steps { toolCalls { name failed } } } }`, object{"id": at(first, "run_id")}), "run")
			if got(at(run, "handoff")) != want || at(run, "steps", 0, "toolCalls", 0, "name") != "handoff_to_human" {
				t.Errorf("the run: %v", run)
			}
			event := at(s.query(token, `{ events(last: 1) { nodes { type data } } }`, nil), "events", "nodes", 0)
			if got(at(event, "data", "handoff")) != want || at(event, "type") != "RUN_FINISHED" {
				t.Errorf("the event: %v", event)
			}
			model.again()
			said, last, done := s.streamed(path, withKey(apiKey), body)
			reply := c.reply
			if streaming {
				reply = "Some\n\n" + reply
			}
			if last != "done" || said != reply || done["reply"] != reply || got(done["handoff"]) != want {
				t.Errorf("streamed %q, then %s %v", said, last, done)
			}
			model.again()
			live := s.query(token, `mutation($in: ChatInput!) { chat(input: $in) { reply handoff { reason summary } } }`, object{"in": object{
				"agentId": at(made, "createAgent", "id"), "message": "I want my money back", "channel": "WHATSAPP",
			}})
			if at(live, "chat", "reply") != c.reply || got(at(live, "chat", "handoff")) != want {
				t.Errorf("by GraphQL: %v", live)
			}
			model.again()
			status, _, tried := s.call("POST", strings.TrimSuffix(path, "chat")+"test", withKey(apiKey), body)
			if status != http.StatusOK || at(tried, "reply") != c.reply || got(at(tried, "handoff")) != want || at(tried, "simulated") != true {
				t.Errorf("tried out: %d %v", status, tried)
			}
		})
	}
}

// TestHandoffOfTheEmbeddedModel: it asks for a person when it is told to, and only where the agent may.
func TestHandoffOfTheEmbeddedModel(t *testing.T) {
	t.Parallel()
	s := start(t)
	asked := func(message string) any {
		t.Helper()
		status, _, answer := s.call("POST", "/agents/demo/chat", withKey(apiKey), encode(object{"message": message, "channel": "sms"}))
		if status != http.StatusOK || (at(answer, "handoff") != nil) != (at(answer, "reply") == "I'm passing you on to a person.") {
			t.Errorf("%s: %d %v", message, status, answer)
		}
		return at(answer, "handoff", "reason")
	}
	if got := asked("Can I talk to a human?"); got != nil {
		t.Errorf("before it was switched on: %v", got)
	}
	s.query(token, `mutation { updateAgent(id: "demo", input: {handoff: true}) { id } }`, nil)
	s.query(token, `mutation { updateAgent(id: "demo", input: {name: "Bo"}) { id } }`, nil) // what is left out stays
	for _, message := range []string{"Can I talk to a human?", "I'd rather speak to someone.", "Get me a real person, please"} {
		if got := asked(message); got != message {
			t.Errorf("%s: %v", message, got)
		}
	}
	for _, message := range []string{"Are you a human?", "When are you open on Saturday?"} {
		if got := asked(message); got != nil {
			t.Errorf("%s: %v", message, got)
		}
	}
	if got := asked("A human! " + strings.Repeat("é", 600)); len([]rune(fmt.Sprint(got))) != 500 {
		t.Errorf("a long reason is kept with %d characters", len([]rune(fmt.Sprint(got))))
	}
}

// TestACrashAfterAHandoff kills the server between the model's wish and its words: the run failed, nobody is told of a
// handoff, and the message can be sent again.
func TestACrashAfterAHandoff(t *testing.T) {
	t.Parallel()
	const good = `{"reason": "Wants a refund"}`
	model := completions(t, reasoned("", good), []string{"gate"}, reasoned("Soon.", good))
	t.Cleanup(func() { close(model.gate) })
	s := start(t, "OPENAI_BASE_URL="+model.URL+"/v1")
	s.query(token, `mutation { updateAgent(id: "demo", input: {handoff: true}) { id } }`, nil)
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		_, _, _, _ = s.try(context.Background(), "POST", "/agents/demo/chat", once("k"), `{"message": "Refund!", "channel": "sms"}`)
	}()
	eventually(t, "asked for words", func() bool { return model.count() == 2 })
	s.kill()
	<-lost
	s.up()
	var answer any
	eventually(t, "answered", func() bool {
		status, _, got := s.call("POST", "/agents/demo/chat", once("k"), `{"message": "Refund!", "channel": "sms"}`)
		answer = got
		return status == http.StatusOK
	})
	if at(answer, "handoff", "reason") != "Wants a refund" || at(answer, "reply") != "Soon." {
		t.Errorf("again: %v", answer)
	}
	runs := at(s.query(token, `{ runs { nodes { status handoff { reason summary } } } }`, nil), "runs", "nodes").([]any)
	if got := encode(runs); got != `[{"handoff":{"reason":"Wants a refund","summary":null},"status":"FINISHED"},{"handoff":null,"status":"FAILED"}]` {
		t.Errorf("the runs: %s", got)
	}
}
