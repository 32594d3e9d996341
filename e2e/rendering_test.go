package e2e_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestRendering: what there is to say of how a channel shows a reply is told in the answer, whole and streamed, by both doors, in
// its replay, in its event, with its message, and by a test; and nothing where there is nothing to say.
func TestRendering(t *testing.T) {
	t.Parallel()
	cut := says("We are open from nine to five, and on Sundays.")
	limited := append([]string{chunk(object{"content": "We are"}, nil)}, chunk(object{}, "length"), counted(1, 2))
	for name, c := range map[string]struct {
		channel string
		script  []string
		reply   string
		want    string // JSON
	}{
		"SMS":            {"sms", says("It’s ", "**fine**."), "It's fine.", `{"encoding":"GSM-7","segments":1,"truncated":false}`},
		"SMS in UCS-2":   {"sms", says("Ok 🧶 ", strings.Repeat("x", 70)), "Ok 🧶 " + strings.Repeat("x", 70), `{"encoding":"UCS-2","segments":2,"truncated":false}`},
		"SMS, cut":       {"sms", cut, "We are open from nine to...", `{"encoding":"GSM-7","segments":1,"truncated":true}`},
		"Gmail":          {"gmail", says("It is **fine**,\n\n<script>x</script>ok"), "It is fine,\n\nok", `{"html":"\u003cp\u003eIt is \u003cstrong\u003efine\u003c/strong\u003e,\u003c/p\u003e\n\u003cp\u003eok\u003c/p\u003e","truncated":false}`},
		"Outlook":        {"outlook", says("Hi"), "Hi", `{"html":"\u003cp\u003eHi\u003c/p\u003e","truncated":false}`},
		"WhatsApp":       {"whatsapp", says("It is **fine**."), "It is *fine*.", ``},
		"WhatsApp, cut":  {"whatsapp", cut, "We are open from nine to…", `{"truncated":true}`},
		"limited tokens": {"linkedin", limited, "We are", `{"truncated":true}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := completions(t, c.script)
			s := start(t, "OPENAI_BASE_URL="+model.URL+"/v1")
			s.query(token, `mutation { updateAgent(id: "demo", input: {channelProfiles: [{channel: SMS, maxLength: 100}, {channel: WHATSAPP, maxLength: 30}]}) { id } }`, nil)
			if strings.HasSuffix(name, "SMS, cut") {
				s.query(token, `mutation { updateAgent(id: "demo", input: {channelProfiles: [{channel: SMS, maxLength: 30}]}) { id } }`, nil)
			}
			const all = `rendering { segments encoding html truncated }`
			got := func(v any) string { // what is null in GraphQL is absent in JSON
				shown, ok := v.(object)
				if !ok {
					return ""
				}
				for field, value := range shown {
					if value == nil {
						delete(shown, field)
					}
				}
				return encode(shown)
			}
			check := func(where string, reply, rendering any) {
				t.Helper()
				if reply != c.reply || got(rendering) != c.want {
					t.Errorf("%s: %q, %s\nwanted %q, %s", where, reply, got(rendering), c.reply, c.want)
				}
			}
			body := encode(object{"message": "Hours?", "channel": c.channel})
			status, _, answer := s.call("POST", "/agents/demo/chat", once("k"), body)
			if status != http.StatusOK {
				t.Fatalf("%d %v", status, answer)
			}
			check("the answer", at(answer, "reply"), at(answer, "rendering"))
			_, _, answer = s.call("POST", "/agents/demo/chat", once("k"), body)
			check("the replay", at(answer, "reply"), at(answer, "rendering"))
			run := at(s.query(token, `query($id: ID!) { run(id: $id) { reply { text `+all+` } } }`, object{"id": at(answer, "run_id")}), "run")
			check("the message", at(run, "reply", "text"), at(run, "reply", "rendering"))
			event := at(s.query(token, `{ events(last: 2) { nodes { data } } }`, nil), "events", "nodes", 0, "data")
			check("the event", at(event, "text"), at(event, "rendering"))
			said, _, done := s.streamed("/agents/demo/chat", withKey(apiKey), body)
			check("the stream", said, done["rendering"])
			check("its end", done["reply"], done["rendering"])
			event = at(s.query(token, `{ events(last: 2) { nodes { data } } }`, nil), "events", "nodes", 0, "data")
			check("the stream's event", at(event, "text"), at(event, "rendering"))
			chat := at(s.query(token, `mutation($in: ChatInput!) { chat(input: $in) { reply `+all+` } }`, object{"in": object{
				"agentId": "demo", "message": "Hours?", "channel": strings.ToUpper(c.channel),
			}}), "chat")
			check("by GraphQL", at(chat, "reply"), at(chat, "rendering"))
			_, _, answer = s.call("POST", "/agents/demo/test", withKey(apiKey), body)
			check("tried out", at(answer, "reply"), at(answer, "rendering"))
		})
	}
}
